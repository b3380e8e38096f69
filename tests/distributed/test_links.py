"""Weights on their way to replicas that have a world of their own, and what the death of one does.

Real training engines and real vLLM engines in processes of their own; Ray alone is left out.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from forked_workers import ForkedWorkers
from linked_groups import LinkedGroups, begin_all
from safetensors import safe_open
from shards_messages import Case
from torch.distributed import PrefixStore

from mindrl.config.run import RunConfig
from mindrl.platform.rendezvous import call_off, link_name, reach_store
from mindrl.preflight.run_shardings import unordered_shardings

pytestmark = pytest.mark.distributed

MakeModel = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]
PROMPTS = [[5, 9, 40], [88, 3], [17, 17, 17, 17, 90], [2]]
LIMIT_SECONDS = 15
APART: dict[str, Any] = {
    "rl_config.use_integrated_worker": False,
    "rl_config.actor_resource.num_npus": 2,
    "rl_config.rollout_resource.num_npus": 2,
    "generate_config.kv_cache_mib": 4,
    "generate_config.max_num_seqs": 8,
    "generate_config.max_num_batched_tokens": 128,
    "generate_config.reshard_timeout_seconds": LIMIT_SECONDS,
}
TP, PP = "tensor_model_parallel_size", "pipeline_model_parallel_size"
TWO_REPLICAS, ONE_OF_TWO = ({"generate_config.infer_tensor_parallel_size": size} for size in (1, 2))
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "tp2 to two of one rank": ("qwen2", {f"actor_config.{TP}": 2, **TWO_REPLICAS}),
    "pp2 to one of tp2": ("qwen2", {f"actor_config.{PP}": 2, **ONE_OF_TWO}),
    "pp2 to two of one rank": ("qwen3", {f"actor_config.{PP}": 2, **TWO_REPLICAS}),
    "tp2 to one of tp2": ("qwen3", {f"actor_config.{TP}": 2, **ONE_OF_TWO}),
    "experts ep2 to one of tp2": (
        "qwen3_moe",
        {"actor_config.expert_model_parallel_size": 2, **ONE_OF_TWO},
    ),
    "archon t2 to two of one rank": (
        "qwen2",
        {"actor_config.backend": "archon:t2", f"actor_config.{TP}": 2, **TWO_REPLICAS},
    ),
}


def groups_of(
    workers: ForkedWorkers, run_config: MakeConfig, folder: Path, changes: dict[str, Any]
) -> LinkedGroups:
    """Start the training side and all replicas, and link them."""
    config = run_config(folder, APART | changes)
    linked = LinkedGroups(workers, unordered_shardings(config).ordered.plan)
    for replica in range(config.rollout_layout.replicas):
        linked.start(replica)
        assert linked.link(replica) == [None, None]
    return linked


def tensor_bytes(folder: Path) -> int:
    """Add up what the tensors of a folder take, which are float32."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return sum(file.get_tensor(name).numel() * 4 for name in file.keys())  # noqa: SIM118


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
def test_replicas_answer_as_engines_that_loaded_each_exported_version(
    forked_workers: ForkedWorkers,
    run_config: MakeConfig,
    random_model_of: MakeModel,
    tmp_path: Path,
    way: str,
) -> None:
    family, changes = WAYS[way]
    model = random_model_of(family)
    linked = groups_of(forked_workers, run_config, model, changes)
    numbers, ranks = [*linked.replicas], linked.plan.replica.world_size
    answers: list[Any] = []
    for version in range(3):
        linked.trainers.call_all("change", version)
        lost, received = linked.publish(version, numbers)
        assert lost == [{}, {}]
        assert {said for each in received.values() for said, _ in each} == {""}
        linked.trainers.call_all("export", str(tmp_path / str(version)), {})
        answers.append([linked.replicas[each].call_all("ask", PROMPTS) for each in numbers])
    sent = [each["bytes/reshard_sent"] for each in linked.trainers.call_all("flush_metrics")]
    metrics = [linked.replicas[each].call_all("flush_metrics") for each in numbers]
    linked.stop()
    case = Case(
        folder=str(model), later_folder="", tensor_parallel_size=ranks, expert_parallel=False
    )
    folders = [str(tmp_path / str(version)) for version in range(3)]
    loaded = forked_workers.run("link_probe:loaded_answers", case, folders, PROMPTS, ranks=ranks)
    for version in range(3):
        # The same kernels on the same weights: equal to the bit.
        assert answers[version] == [[each[version] for each in loaded]] * len(numbers)
    assert loaded[0][0] != loaded[0][1] != loaded[0][2]
    got = [each["bytes/reshard_received"] for ranks_of in metrics for each in ranks_of]
    assert sum(sent) == sum(got)
    assert got == [each["bytes/reshard_needed"] for ranks_of in metrics for each in ranks_of]
    if ranks == 1:
        # Each of them gets each number of the model once, three times in all.
        assert got == [3 * tensor_bytes(model)] * 2


@pytest.fixture(scope="module")
def started_two(
    forked_workers: ForkedWorkers, run_config: MakeConfig, random_model_of: MakeModel
) -> Iterator[LinkedGroups]:
    """Training ranks of tp2, and two replicas of one rank; 2.6 MB go to each in several rounds."""
    family, changes = WAYS["tp2 to two of one rank"]
    changes = changes | {"generate_config.reshard_bucket_mib": 1}
    linked = groups_of(forked_workers, run_config, random_model_of(family), changes)
    yield linked
    linked.stop()


@pytest.fixture
def two(started_two: LinkedGroups) -> LinkedGroups:
    """The same for all tests; a replica that one of them killed is started again."""
    started_two.restart_ended()
    return started_two


def test_a_replica_that_dies_takes_no_other_along_and_another_comes_in_its_place(
    two: LinkedGroups,
) -> None:
    assert two.publish(0, [0, 1])[0] == [{}, {}]
    # Before a transfer.
    two.kill(1)
    began = time.monotonic()
    lost, received = two.publish(1, [0], sent=[0, 1])
    assert time.monotonic() - began < LIMIT_SECONDS
    assert lost[0] == lost[1]
    assert [*lost[0]] == [1]
    assert "rank 0 of replica 1" in lost[0][1]
    assert received[0][0][0] == ""
    first = two.replicas[0].call_all("ask", PROMPTS)
    assert two.publish(1, [0], sent=[0, 1])[0] == [{1: "no link to replica 1 exists"}] * 2
    # Another one, which says nothing before it has weights.
    two.start(1)
    ((said, _),) = two.replicas[1].call_all("tried", "begin_sequences", [], None)
    assert "has no weights" in said
    assert two.link(1) == [None, None]
    assert two.publish(2, [0, 1])[0] == [{}, {}]
    assert two.replicas[1].call_all("ask", PROMPTS) == first
    # In a transfer.
    two.trainers.call_all("change", 0)
    two.kill_in_next_transfer(1, tensors=5)
    began = time.monotonic()
    lost, received = two.publish(3, [0, 1])
    assert time.monotonic() - began < 2 * LIMIT_SECONDS
    assert "rank 0 of replica 1" in lost[0][1]
    assert received[0][0][0] == ""
    assert received[1] is None
    assert two.replicas[0].call_all("ask", PROMPTS) != first
    assert two.publish(4, [0])[0] == [{}, {}]


@pytest.mark.nightly
def test_a_replica_that_is_frozen_is_told_within_the_limit_and_the_next_gets_its_weights(
    two: LinkedGroups,
) -> None:
    assert two.publish(0, [0, 1])[0] == [{}, {}]
    before = two.replicas[1].call_all("ask", PROMPTS)
    two.trainers.call_all("change", 0)
    frozen = two.kill(0, by=signal.SIGSTOP)
    try:
        began = time.monotonic()
        lost, received = two.publish(1, [1], sent=[0, 1])
        assert LIMIT_SECONDS <= time.monotonic() - began < 3 * LIMIT_SECONDS
    finally:
        os.kill(frozen, signal.SIGKILL)
    assert [*lost[0]] == [0]
    assert "rank 0 of replica 0" in lost[0][0]
    # It has waited for as long as the training ranks waited for the other.
    assert received[1][0][0] == ""
    assert two.replicas[1].call_all("ask", PROMPTS) != before


def test_who_does_not_come_to_a_link_is_named_and_who_comes_late_is_waited_for(
    two: LinkedGroups,
) -> None:
    assert two.publish(0, [0, 1])[0] == [{}, {}]
    began, number = time.monotonic(), next(two.generations)
    said = two.trainers.call_all("open_link", 1, number)
    assert LIMIT_SECONDS <= time.monotonic() - began < 2 * LIMIT_SECONDS
    late = f"rank 0 of replica 1 did not join link 1 {number} within {LIMIT_SECONDS} s"
    assert said == [late] * 2
    # Its old link is given up on the training side: nothing comes.
    ((said, seconds),) = two.replicas[1].call_all("tried", "receive_weights", 1)
    assert "training rank 0" in said
    assert seconds < 2 * LIMIT_SECONDS
    ((said, _),) = two.replicas[1].call_all("tried", "begin_sequences", [], None)
    assert "the last transfer did not complete" in said
    number = next(two.generations)
    begin_all(two.trainers, "open_link", 1, number)
    time.sleep(2)
    two.replicas[1].call_all("join_link", two.address, 1, number)
    assert two.trainers.collect() == [None, None]
    assert two.publish(1, [0, 1])[0] == [{}, {}]


def test_a_link_that_is_called_off_is_not_waited_for(two: LinkedGroups) -> None:
    began, number = time.monotonic(), next(two.generations)
    begin_all(two.trainers, "open_link", 1, number)
    call_off(two.address, link_name(1, number), "replica 1 is gone", timedelta(seconds=5))
    assert two.trainers.collect() == ["replica 1 is gone"] * 2
    assert time.monotonic() - began < LIMIT_SECONDS / 2
    assert two.link(1) == [None, None]
    assert two.publish(2, [0, 1])[0] == [{}, {}]


def test_a_link_is_called_off_too_where_one_who_was_there_is_gone_before_the_group_is_made(
    two: LinkedGroups,
) -> None:
    began, number = time.monotonic(), next(two.generations)
    begin_all(two.trainers, "open_link", 1, number)
    store = reach_store(two.address, timedelta(seconds=5))
    # Rank 2 of the link says that it is here, and never comes.
    PrefixStore(link_name(1, number), store).set("here 2", "")
    time.sleep(2)
    call_off(two.address, link_name(1, number), "replica 1 is gone", timedelta(seconds=5))
    assert two.trainers.collect() == ["replica 1 is gone"] * 2
    assert time.monotonic() - began < LIMIT_SECONDS / 2
    assert two.link(1) == [None, None]
    assert two.publish(2, [0, 1])[0] == [{}, {}]


@pytest.fixture(scope="module")
def started_pair(
    forked_workers: ForkedWorkers, run_config: MakeConfig, random_model_of: MakeModel
) -> Iterator[LinkedGroups]:
    """Training ranks of tp2 with a reference, and one replica of two ranks."""
    changes = WAYS["tp2 to one of tp2"][1] | {"rl_config.init_kl_coef": 0.1}
    linked = groups_of(forked_workers, run_config, random_model_of("qwen2"), changes)
    yield linked
    linked.stop()


@pytest.fixture
def pair(started_pair: LinkedGroups) -> LinkedGroups:
    """The same for all tests; a replica that one of them killed is started again."""
    started_pair.restart_ended()
    return started_pair


def test_each_side_has_on_its_devices_what_its_plan_says_to_the_byte(pair: LinkedGroups) -> None:
    plans = pair.trainers.call_all("memory_plan")
    phases = [phase.value for phase in plans[0].phases]
    assert phases == ["send_weights", "reference", "train"]
    pair.trainers.call_all("through", phases)
    seen = pair.trainers.call_all("through", phases)
    pair.trainers.call_all("flush_metrics")
    pair.trainers.call_all("record_memory", True)
    assert pair.publish(0, [0])[0] == [{}, {}]
    moments = pair.trainers.call_all("flush_moments")
    sending = pair.trainers.call_all("flush_metrics")
    for rank, plan in enumerate(plans):
        expected = {at.label: at for at in plan.of_rank(rank)}
        totals = {label: sum(at.region_bytes.values()) for label, at in expected.items()}
        for phase, found in zip(phases, seen[rank], strict=True):
            assert found == expected[phase].region_bytes
        assert expected["messages in flight"].region_bytes["staging"] > 0
        # The way from the update to the weights that are sent begins with all that had learned.
        assert sending[rank]["memory/device_peak_bytes"] == max(
            totals["train"], totals["messages in flight"]
        )
        labels = [at.label for at in moments[rank]]
        assert labels[-2:] == ["send_weights", "messages in flight"]
        for at in moments[rank]:
            assert at.region_bytes == expected[at.label].region_bytes
    found = pair.replicas[0].call_all("region_bytes")
    peaks = pair.replicas[0].call_all("flush_metrics")
    for rank, plan in enumerate(pair.replicas[0].call_all("memory_plan")):
        receiving, during = plan.of_rank(rank)
        assert found[rank] == during.region_bytes
        assert peaks[rank]["memory/device_peak_bytes"] == sum(receiving.region_bytes.values())


def test_the_death_of_one_rank_of_a_replica_is_told_to_its_other_ranks_too(
    pair: LinkedGroups,
) -> None:
    assert pair.publish(0, [0])[0] == [{}, {}]
    pair.kill(0, rank=1)
    begin_all_that_live = pair.replicas[0].ranks[:1]
    group = type(pair.replicas[0])(begin_all_that_live)
    begin_all(group, "tried", "receive_weights", 1)
    lost = pair.trainers.call_all("send_weights", [0])
    assert "rank 1 of replica 0" in lost[0][0]
    assert lost[0] == lost[1]
    ((said, seconds),) = group.collect()
    assert said == "" or "replica 0" in said
    assert seconds < 2 * LIMIT_SECONDS
