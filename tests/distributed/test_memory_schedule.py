"""The memory schedule of whole workers: all roles take turns on a device that holds none beside.

Actor, reference, critic and reward model of the same two workers lie in two layouts. The host
plays the device: its bytes are those of the storages of all regions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from role_steps import StepTrace, take_step
from test_values import plain_values
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from mindrl.batch.sequences import Sequences
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.launch.memory_watch import MemoryWatch
from mindrl.launch.parts import worker_handle
from mindrl.memory.plan import MemoryPlan
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import check
from mindrl.preflight.memory_plan import memory_plan
from mindrl.preflight.run_shardings import unordered_shardings

pytestmark = pytest.mark.distributed

MIB = 1 << 20
CAPACITY_MIB = 8
ROLES: dict[str, Any] = {
    "rl_config.actor_resource.num_npus": 2,
    "rl_config.adv_estimator": "gae",
    "rl_config.init_kl_coef": 0.1,
    "rl_config.old_log_probs": "recompute",
    # Sequences are dealt by their work, so that they travel out of order.
    "rl_config.use_dynamic_bsz": True,
    "rl_config.max_packing_token_size": 64,
    "rl_config.device_memory_mib": CAPACITY_MIB,
    "actor_config.tensor_model_parallel_size": 2,
    "critic_config.tensor_model_parallel_size": 1,
    "critic_config.lr": 1e-3,
    "reward_config.tensor_model_parallel_size": 1,
    "generate_config.infer_tensor_parallel_size": 2,
    "generate_config.kv_cache_mib": 6,
}
SWITCHES = {
    "generate_config": ("offload_train_param", "offload_train_grad", "offload_train_optimizer"),
    "critic_config": ("offload_train_param", "offload_train_grad", "offload_train_optimizer"),
    "ref_config": ("offload_param",),
    "reward_config": ("offload_param",),
}
ALL_STAYS = {f"{name}.{key}": False for name, keys in SWITCHES.items() for key in keys}
USES: tuple[tuple[str, frozenset[str], frozenset[str]], ...] = (
    ("reshard", frozenset({"actor_weights"}), frozenset()),
    ("rollout", frozenset(), frozenset()),
    ("reward", frozenset({"reward_weights"}), frozenset()),
    ("reference", frozenset({"reference_weights"}), frozenset()),
    ("forward", frozenset({"actor_weights"}), frozenset()),
    ("critic_forward", frozenset({"critic_weights"}), frozenset()),
    (
        "critic_train",
        frozenset({"critic_weights", "critic_optimizer"}),
        frozenset({"critic_weights", "critic_optimizer"}),
    ),
    (
        "train",
        frozenset({"actor_weights", "actor_optimizer"}),
        frozenset({"actor_weights", "actor_optimizer"}),
    ),
)
"""What a step does in turn: of the regions whose contents are kept, those that it reads, and those
that it changes."""


@dataclass
class Colocated:
    """What two workers with all roles said and had."""

    config: RunConfig
    plan: MemoryPlan
    steps: list[StepTrace]
    metrics: list[dict[str, float]]
    """Of the third step, by rank."""
    moments: list[list[MeasuredSnapshot]]
    """Of the third step, by rank."""


@pytest.fixture(scope="module")
def configured(
    models: dict[str, str],
    run_config: Callable[..., RunConfig],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., RunConfig]:
    data = tmp_path_factory.mktemp("data") / "prompts.jsonl"
    data.write_text("{}\n", "utf-8")
    folders = {
        "megatron_training.data_path": str(data),
        "critic_config.load": models["critic"],
        "reward_config.load": models["reward"],
    }
    return lambda overrides=None: run_config(
        Path(models["actor"]), ROLES | folders | (overrides or {})
    )


@pytest.fixture(scope="module")
def colocated(forked_workers: ForkedWorkers, configured: Callable[..., RunConfig]) -> Colocated:
    config = configured()
    plan = check(config, PLATFORMS["cpu"])
    group = forked_workers.start(plan)
    actor = worker_handle(group, plan)
    steps = [take_step(actor, config, 0), take_step(actor, config, 1)]
    group.call_all("flush_metrics")
    actor.record_memory(is_on=True)
    steps.append(take_step(actor, config, 2))
    made = Colocated(
        config=config,
        plan=actor.memory_plan(),
        steps=steps,
        metrics=group.call_all("flush_metrics"),
        moments=actor.flush_moments(),
    )
    group.stop()
    return made


def test_roles_that_together_need_2_2_times_the_device_run_on_it(colocated: Colocated) -> None:
    """They need 2.86 times its 8 MiB; at most 7.3 MiB lie on it, during rollout."""
    for rank, metrics in enumerate(colocated.metrics):
        together = sum(int(each[rank]) for each in colocated.plan.regions.values())
        assert together > 2.2 * CAPACITY_MIB * MIB
        assert metrics["memory/device_peak_bytes"] <= CAPACITY_MIB * MIB
    norms = [update["grad_norm"] for step in colocated.steps for update in step.metrics.values()]
    assert len(norms) == 6
    assert min(norms) > 1e-3


def test_the_peak_is_what_the_most_needy_phase_needs(colocated: Colocated) -> None:
    """1.00 times that; 1.05 would be the bound."""
    for rank, metrics in enumerate(colocated.metrics):
        assert metrics["memory/device_peak_bytes"] == colocated.plan.need_bytes(rank)


def test_a_step_copies_no_byte_more_than_it_must(colocated: Colocated) -> None:
    """1.00 times the least, region by region.

    The least: what a use does not read has left the device, for another may need the room; and a
    region stays from one use to the next where both read it, from one step to the next too. So in
    the cycle of a step's uses each unbroken run of uses that read a region brings it once, and
    each such run in which it is changed takes it back to the host once. Regions whose contents
    nobody reads again (gradients, rollout weights, KV cache) are not copied at all.
    """
    for rank, metrics in enumerate(colocated.metrics):
        sizes = {region.value: int(each[rank]) for region, each in colocated.plan.regions.items()}
        least = {}
        for region in {name for _, reads, _ in USES for name in reads}:
            brought, taken = least_copies(region)
            least[f"bytes/to_device_{region}"] = float(brought * sizes[region])
            least[f"bytes/to_host_{region}"] = float(taken * sizes[region])
        copied = {name: value for name, value in metrics.items() if name.startswith("bytes/to_")}
        assert copied == {name: value for name, value in least.items() if name in copied}
        assert sum(copied.values()) / sum(least.values()) == 1.0


def least_copies(region: str) -> tuple[int, int]:
    """Return how often a region has to come to the device in a step, and to go to the host."""
    count = len(USES)
    reads = [region in read for _, read, _ in USES]
    begins = [index for index, is_read in enumerate(reads) if is_read and not reads[index - 1]]
    changed = 0
    for begin in begins:
        run = takewhile(lambda use: reads[use % count], range(begin, begin + count))
        changed += any(region in USES[use % count][2] for use in run)
    return len(begins), changed


def test_the_least_is_counted_around_the_end_of_a_step() -> None:
    # The actor's weights stay from the update to the reshard of the next step.
    assert least_copies("actor_weights") == (2, 1)
    assert least_copies("critic_weights") == (1, 1)
    assert least_copies("reference_weights") == (1, 0)


def test_the_timeline_that_was_predicted_is_measured_to_the_byte(colocated: Colocated) -> None:
    """All regions of both workers at all 29 moments; the KV cache of 6 MiB is whole blocks.

    The one moment left out: on a host the engine's weights take memory only as they are filled.
    """
    plan = memory_plan(unordered_shardings(colocated.config).ordered, CAPACITY_MIB * MIB)
    for rank, moments in enumerate(colocated.moments):
        predicted = plan.of_rank(rank)
        assert [(moment.phase, moment.label) for moment in moments] == [
            (planned.phase, planned.label) for planned in predicted
        ]
        assert len(moments) == 29
        for moment, planned in zip(moments, predicted, strict=True):
            if moment.label == "bring rollout_weights":
                assert moment.total_bytes <= planned.total_bytes
            else:
                assert moment.region_bytes == planned.region_bytes, moment.label


def test_the_watch_of_a_run_finds_nothing_to_say(colocated: Colocated, tmp_path: Path) -> None:
    assert MemoryWatch(colocated.plan, tmp_path).note(3, colocated.moments) is None
    lines = (tmp_path / "memory.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 2 * 29


def test_values_and_rewards_of_other_layouts_come_back_in_their_rows(
    colocated: Colocated, models: dict[str, str]
) -> None:
    """The actor is cut over both workers; its critic and its reward model are whole on each."""
    critic = AutoModelForTokenClassification.from_pretrained(models["critic"], dtype=torch.float32)
    reward = AutoModelForSequenceClassification.from_pretrained(
        models["reward"], dtype=torch.float32
    )
    first = colocated.steps[0]
    assert first.values_BT is not None
    with torch.no_grad():
        values_BT = plain_values(critic, first.sequences)
    # Products of 128 hidden states of size 3 in float32, four layers.
    torch.testing.assert_close(first.values_BT, values_BT, atol=1e-4, rtol=0)
    for step in colocated.steps:
        assert step.rewards_B is not None
        rewards_B = _rewards(reward, step.sequences)
        torch.testing.assert_close(step.rewards_B, rewards_B, atol=1e-4, rtol=0)
        assert len(set(rewards_B.tolist())) == len(step.sequences) == 8


def _rewards(model: Any, sequences: Sequences) -> Tensor:
    rows = zip(sequences.tokens_BT, sequences.lengths_B.tolist(), strict=True)
    with torch.no_grad():
        return torch.cat([model(tokens_T[None, :length]).logits[0] for tokens_T, length in rows])


@pytest.mark.nightly
def test_200_swaps_leave_device_arena_and_process_as_large_as_they_were(
    forked_workers: ForkedWorkers, configured: Callable[..., RunConfig]
) -> None:
    """29 rounds of 7 phases, behind 6 rounds in which the heap finds its size."""
    plan = unordered_shardings(configured()).ordered.plan
    for taken in forked_workers.run("schedule_probe:swaps", plan, 35, ranks=2):
        warm, later = taken[5], taken[6:]
        for name in ("device", "host arena", "places in the arena"):
            assert {each[name] for each in later} == {warm[name]}
        grown = min(each["resident"] for each in later[-10:]) - warm["resident"]
        # The heap of the host keeps freed blocks for later, 2 MiB more or less of them. The
        # smallest region, of 1.2 MiB, would have grown it by 36 MiB if each round kept one.
        assert grown < 3 * MIB


def test_without_the_switches_the_plan_refuses_the_run_and_the_device_does(
    forked_workers: ForkedWorkers, configured: Callable[..., RunConfig]
) -> None:
    with pytest.raises(ConfigError) as error:
        check(configured(ALL_STAYS), PLATFORMS["cpu"])
    assert str(error.value).startswith(
        "rl_config.check_memory=true: the run needs about 22.9 MiB of device memory on "
        "rank 0 at 'rollout', and the device has 8.0 MiB; "
    )

    forced = configured(ALL_STAYS | {"rl_config.check_memory": False})
    plan = check(forced, PLATFORMS["cpu"])
    # The reward model and the critic are built first.
    message = (
        "out of device memory of 8.0 MiB: critic_optimizer needs 2.4 MiB more; on the device: "
        "critic_weights 2.4 MiB, critic_gradients 2.4 MiB, reward_weights 2.4 MiB"
    )
    refusals = forked_workers.run("schedule_probe:refusal", plan, ranks=2)
    assert refusals == [message, message]


def test_a_device_of_one_mebibyte_less_is_refused_before_the_start(
    configured: Callable[..., RunConfig],
) -> None:
    with pytest.raises(ConfigError, match=r"needs about 7.3 MiB .* at 'rollout', .* has 7.0 MiB"):
        check(configured({"rl_config.device_memory_mib": CAPACITY_MIB - 1}), PLATFORMS["cpu"])


def test_a_worker_plans_its_reshard_once_and_all_its_exports_once(
    forked_workers: ForkedWorkers, configured: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """By the calls that read a model, lay a run out, order ranks, shard, cut, choose senders."""
    folder, plan = str(tmp_path / "model"), unordered_shardings(configured()).ordered.plan
    found = forked_workers.run("schedule_probe:planned", plan, folder, ranks=2)
    assert found == [([0, 0, 0, 2, 1, 1, 1], [0, 0, 0, 2, 1, 2, 2])] * 2
