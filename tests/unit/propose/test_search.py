"""The proposals of well-known models: legal, fitting, and the best that there are."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nightly import at_night_but
from proposal_tasks import MODELS, asked

from mindrl.allocation.meaning import parse_rollout, parse_training
from mindrl.memory.schedule import Region
from mindrl.models.description import read_description
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import checked_with_legal_values
from mindrl.preflight.memory_plan import Capacity, memory_plan
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.programs.compose import composed_config
from mindrl.propose.candidates import (
    Candidate,
    Task,
    TeacherModel,
    candidate_config,
    legal_rollout,
    legal_training,
)
from mindrl.propose.figures import figures_of, slowdown
from mindrl.propose.fitting import (
    Fit,
    Sizes,
    best_fit,
    exact_sizes,
    least_sizes,
    prepared,
)
from mindrl.propose.search import planned_models, remedies, search

LARGER = TeacherModel(
    load=str(MODELS / "Qwen2.5-32B"),
    model=read_description(str(MODELS / "Qwen2.5-32B"), to_plan=True),
)


def said(_: str) -> None:
    """Take what a search tells, and drop it."""


def planned_sizes(task: Task, candidate: Candidate) -> Sizes:
    """Return the exact bytes of a candidate, its messages included."""
    models, moved = planned_models(task, candidate)
    sizes = exact_sizes(task, models, models.reshard.peak_staging)
    return replace(sizes, reshard_seconds=moved.seconds)


def exhaustive(task: Task) -> Iterator[tuple[Candidate, Fit | None]]:
    """Plan every candidate to the end, the reshard included; its lower bounds must be below."""
    for training in legal_training(task):
        ready = prepared(task, training)
        for rollout in legal_rollout(task):
            candidate = Candidate(training=training, rollout=rollout)
            exact = best_fit(task, ready, rollout, planned_sizes(task, candidate))
            bound = best_fit(task, ready, rollout, least_sizes(task, candidate))
            if isinstance(exact, Fit):
                assert isinstance(bound, Fit), candidate
                assert bound.step_seconds <= exact.step_seconds
            yield candidate, exact


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["megatron", "archon"])
def test_a_search_finds_what_planning_every_candidate_finds(engine: str) -> None:
    """On 8 devices of 32 GB some of the 27 candidates do not fit; the others come in order."""
    task = asked(devices=8, device="ascend-910b-32g", engine=engine)
    every = dict(exhaustive(task))
    fitting = {each: fit for each, fit in every.items() if isinstance(fit, Fit)}
    best = sorted(fitting, key=lambda each: (fitting[each].step_seconds, task.texts(each)))
    assert 0 < len(fitting) < len(every) == 27
    found = search(task, len(every), said)
    assert [each.candidate for each in found.proposals] == best
    assert [each.fit for each in found.proposals] == [fitting[each] for each in best]


TASKS = {
    "Qwen2.5-7B on 8": asked(devices=8),
    "Qwen2.5-7B on 16": asked(),
    "Qwen3-30B-A3B on 16": asked("Qwen3-30B-A3B"),
    "Qwen2.5-7B, PPO": asked(algorithm="ppo"),
    "Qwen2.5-7B, fsdp": asked(devices=8, engine="fsdp"),
    "Qwen2.5-7B, PPO, archon": asked(algorithm="ppo", engine="archon"),
    "Qwen2.5-7B, taught by 32B": asked(algorithm="distill", teacher=LARGER),
    "Qwen2.5-7B, taught by 32B, archon": asked(
        algorithm="distill", teacher=LARGER, engine="archon"
    ),
}


@pytest.mark.parametrize(
    "name",
    at_night_but(("Qwen2.5-7B on 8", "Qwen2.5-7B, taught by 32B, archon"), TASKS),
)
def test_proposals_pass_the_checks_of_a_run_and_leave_a_tenth_of_the_device(name: str) -> None:
    task = TASKS[name]
    dense = task.model.moe is None
    for proposal in search(task, 2 if dense else 1, said).proposals:
        config = candidate_config(task, proposal.candidate, proposal.fit.settings)
        capacity = Capacity(device_bytes=task.device.memory_bytes)
        platform = PLATFORMS[task.device.kind]
        checked = checked_with_legal_values(config, platform, capacity, needs_files=False)
        assert checked.models is not None, "the folders are here, so they are checked"
        assert checked.findings == []
        assert config.world_size == task.devices
        assert {config.training_backend(role) for role in config.roles} == {task.engine}
        assert proposal.fit.with_activations_bytes <= 0.9 * task.device.memory_bytes
        if dense:  # the plan of a mixture takes seconds
            plan = memory_plan(unordered_shardings(config).ordered, capacity.device_bytes)
            assert plan.peak_bytes == proposal.fit.peak_bytes


@pytest.mark.parametrize("engine", ["megatron", "archon"])
def test_experts_are_cut_over_other_ranks_than_tensors_where_no_more_could_have_whole_ones(
    engine: str, tmp_path: Path
) -> None:
    """Of four experts on eight devices: with tp 1 each may be cut in two, in place of copies."""
    values = json.loads((MODELS / "Qwen3-30B-A3B" / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(values | {"num_experts": 4}), "utf-8")
    layouts = legal_training(asked(str(tmp_path), devices=8, engine=engine))
    alone = {(each.etp, each.ep) for each in layouts if each.tp == each.pp == each.cp == 1}
    assert alone == {(1, 1), (1, 2), (1, 4), (2, 4)}
    both = {(each.etp, each.ep) for each in layouts if each.tp == 2 and each.pp == each.cp == 1}
    assert both == alone | {(2, 1), (2, 2)}


def test_the_first_proposal_costs_no_more_than_the_shipped_layout() -> None:
    """configs/grpo_qwen25_7b.yaml: d2t4 to d4t2 on 8 devices."""
    config = composed_config("grpo_qwen25_7b", [])
    shipped = Candidate(training=config.layout("actor"), rollout=config.rollout_layout)
    training, rollout = parse_training("megatron:d2t4"), parse_rollout("vllm:d4t2")
    assert shipped == Candidate(training=training, rollout=rollout)
    task = asked(devices=8)
    sizes = planned_sizes(task, shipped)
    theirs = best_fit(task, prepared(task, shipped.training), shipped.rollout, sizes)
    assert isinstance(theirs, Fit)
    (ours,) = search(task, 1, said).proposals
    assert ours.fit.step_seconds <= theirs.step_seconds
    assert slowdown(theirs, theirs) == "0.0 s slower than the first: almost equal"
    assert slowdown(ours.fit, theirs).endswith("s")


@pytest.mark.nightly
def test_words_and_figures_of_a_proposal_agree() -> None:
    task = asked("Qwen3-30B-A3B", devices=16)
    found = search(task, 2, said, most_pieces=0)
    first, second = figures_of(task, found)["proposals"]
    assert sum(first["shares"].values()) == pytest.approx(1)
    assert first["step_seconds"] == pytest.approx(sum(first["seconds"].values()))
    assert first["behind_the_first"] is None
    assert second["behind_the_first"] is not None
    gap = second["step_seconds"] - first["step_seconds"]
    assert second["behind_the_first"].startswith(f"{gap:.1f} s slower than the first: ")
    layout = found.proposals[0].candidate.training
    expected = f"ep {layout.ep}: each rank has {128 // layout.ep} experts of a layer; "
    assert any(reason.startswith(expected) for reason in first["reasons"])
    # No plan was allowed: the reshard is a bound, and the answer says so.
    assert first["reshard_received_bytes"] is None
    assert first["reasons"][-1].startswith("reshard: not planned")


@pytest.mark.nightly
def test_where_nothing_fits_the_answer_names_the_next_number_of_devices() -> None:
    task = asked("Qwen2.5-32B", devices=2, prompts=8)
    found = search(task, 5, said)
    assert found.proposals == []
    miss, *ways = remedies(task, found, said)
    # Weights, gradients and optimizer: 18 bytes of each of 32.76e9 parameters, over two ranks.
    assert found.nearest is not None
    _, nearest = found.nearest
    assert 0 < nearest.need_bytes - 9 * 32_763_876_352 < 4 << 30
    assert f"needs {nearest.need_bytes / 2**30:.2f} GiB of a device in train" in miss
    assert "no layout fits; the nearest is megatron:" in miss
    assert ways[0].startswith("it fits with --devices 16: megatron:")
    assert not search(replace(task, devices=8), 1, said).proposals


@pytest.mark.nightly
def test_a_host_without_room_is_answered_with_the_memory_that_it_would_need() -> None:
    """PPO on 4 devices: both optimizers must leave, 12 bytes a parameter; a critic has no head."""
    task = asked(devices=4, algorithm="ppo", host_bytes=1 << 30)
    found = search(task, 1, said)
    assert found.proposals == []
    (way,) = [line for line in remedies(task, found, said) if "--host-memory-gib" in line]
    gib = int(way.removeprefix("it fits with --host-memory-gib "))
    assert gib >= 12 * (2 * 7_615_616_512 - 152064 * 3584) / 2**30
    assert search(replace(task, host_bytes=gib << 30), 1, said).proposals


@pytest.mark.nightly
def test_a_larger_teacher_takes_memory_and_time_of_its_own_size() -> None:
    task = asked(algorithm="distill", teacher=LARGER)
    (alone,), (taught,) = (search(each, 1, said).proposals for each in (asked(), task))
    assert taught.fit.seconds["compute"] > 1.5 * alone.fit.seconds["compute"]
    assert taught.fit.step_seconds > alone.fit.step_seconds
    config = candidate_config(task, taught.candidate, taught.fit.settings)
    assert config.roles == ("actor", "teacher")
    assert config.rl_config.adv_estimator == "teacher"
    plan = memory_plan(unordered_shardings(config).ordered, task.device.memory_bytes)
    layout = config.layout("teacher")
    # Two bytes for each of 32.8 billion parameters, over the ranks of a replica.
    share = 2 * 32.8e9 / layout.ranks_per_replica
    assert plan.regions[Region.TEACHER_WEIGHTS].mean() == pytest.approx(share, rel=0.05)
