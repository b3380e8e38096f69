"""A run that loses a worker, then all its processes, goes on as if nothing had happened."""

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from disturbances import disturbance, environment, witnesses
from program import CHECKOUT, KEEPS, TEN_STEPS, Program, kill_at_once, start_program

from mindrl.checkpoint.commits import read_checkpoint

# Three programs one behind the other, each of which may take 600 s.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

TRACKERS = CHECKOUT / "tests/unit/tracking/user_trackers.py"
OF_THIS_START = (
    *("seconds/", "idle/", "memory/", "bytes/", "throughput/"),
    "turns/environment_seconds",
    "turns/idle_seconds",
)
"""Metrics that say how a step was carried out."""
RUNS = {
    "grpo": ("train_grpo", TEN_STEPS),
    "ppo": ("train_ppo", ("rl_config.test_freq=0",)),
    "tensor parallel": (
        "train_grpo",
        ("rl_config.test_freq=0", "actor_config.backend=megatron:t2"),
    ),
    "bfloat16": (
        "train_grpo",
        ("rl_config.test_freq=0", "megatron_training.bf16=true", "generate_config.dtype=bfloat16"),
    ),
    "experts": ("train_grpo", ("--config-name", "grpo_tiny_moe_cpu", "rl_config.test_freq=0")),
    "dapo": (
        "train_grpo",
        ("rl_config.test_freq=0", "+recipe=dapo"),
    ),
    "partial": (
        "train_grpo",
        (
            *("rl_config.test_freq=0", "rl_config.partial_rollout=true"),
            *("rl_config.rollout_round_steps=2", "rl_config.max_staleness=2"),
        ),
    ),
    "partial with replayed routes": (
        "train_grpo",
        (
            *("--config-name", "grpo_tiny_moe_cpu", "rl_config.test_freq=0"),
            *("actor_config.router_replay=R3", "rl_config.partial_rollout=true"),
            *("rl_config.rollout_round_steps=2", "rl_config.max_staleness=2"),
        ),
    ),
    "reference reset": (
        "train_grpo",
        (
            *("rl_config.test_freq=0", "rl_config.init_kl_coef=0.1"),
            "rl_config.ref_update_interval=2",
        ),
    ),
    "shuffled": ("train_grpo", ("rl_config.test_freq=0", "rl_config.shuffle_mini_batch=true")),
}


@pytest.mark.parametrize(
    "name", ["grpo", *(pytest.param(name, marks=pytest.mark.nightly) for name in [*RUNS][1:])]
)
def test_a_run_that_was_killed_goes_on_to_the_same_bits(
    name: str,
    tiny_model: Path,
    untaught_moe_model: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    program, overrides = RUNS[name]
    model = untaught_moe_model if "grpo_tiny_moe_cpu" in overrides else tiny_model
    asked = [*overrides, f"actor_config.load={model}", *(KEEPS if name != "grpo" else ())]
    if name == "grpo":
        straight: Program = request.getfixturevalue("whole_run")
    else:
        straight = start_program(tmp_path / "straight", asked, program=program)
    assert straight.process.wait(timeout=600) == 0, straight.text()

    planned = [
        disturbance("step", "worker 1", "SIGKILL", call=4),
        disturbance("to rollout", "worker 0", "exception", call=2),
    ]
    around = environment(tmp_path / "disturbed", planned)
    tracked = f"rl_config.tracking.trackers=['{TRACKERS}:FileTracker','{TRACKERS}:Hangs']"
    limit = "rl_config.tracking.timeout_seconds=5"
    again = [*asked, tracked, limit]
    killed = start_program(tmp_path / "killed", again, around, program=program)
    killed.wait_for_line("restart 2: ")
    saved, done = ((5,), 6) if name == "grpo" else ((2, 4), 4)
    killed.wait_for_steps(done)
    died, _ = witnesses(tmp_path / "disturbed")
    told = json.loads((killed.folder / "faults.jsonl").read_text().splitlines()[0])["error"]
    named = rf"worker-1 \(rank 1, process {died['pid']} on [^)]*\) died"
    assert re.search(named, told), told
    kill_at_once(killed.process)
    newest = max((killed.folder / "checkpoints").glob("step-*"))
    assert int(newest.name[-8:]) in saved
    resumed = resume(killed.folder, program)
    assert resumed.process.wait(timeout=600) == 0, resumed.text()
    assert f"continues after step {int(newest.name[-8:])}" in resumed.text()

    assert outcome(resumed.folder) == outcome(straight.folder)
    assert [line["step"] for line in resumed.steps()] == [line["step"] for line in straight.steps()]
    check_trackers(resumed)
    assert resumed.summary()["status"] == "completed"
    for kept in ("accuracy_after", "model_best_step", "steps", "skipped_updates"):
        assert resumed.summary()[kept] == straight.summary()[kept]


def check_trackers(resumed: Program) -> None:
    """See that one has each record once, in one run, and that another held nothing up."""
    told = (resumed.folder / "trackers").glob("*FileTracker/kept.txt")
    records = [line.split()[:2] for line in next(told).read_text().splitlines()]
    lines = (resumed.folder / "metrics.jsonl").read_text().splitlines()
    # Each start closes what it has opened.
    kept = [(name, int(step)) for name, step in records if step != "-1"]
    # A kill between the record and the note of it repeats the last record of a start.
    repeated = [
        at
        for at, (before, after) in enumerate(pairwise(kept))
        if before[0] != after[0] and before[1] == after[1]
    ]
    steps = [step for _, step in kept]
    possible = [steps, *([*steps[:at], *steps[at + 1 :]] for at in repeated)]
    assert [json.loads(line)["step"] for line in lines] in possible
    starts = list(dict.fromkeys(name for name, _ in records))
    # Each goes on with what the one before it has opened; one may have met no record.
    counts = [len(name) - len("run") for name in starts]
    assert starts == [f"run{'+' * count}" for count in sorted(counts)]
    assert len(starts) > 1
    outcomes = resumed.summary()["trackers"]
    assert (outcomes[f"{TRACKERS}:FileTracker"]["missed"]) == 0
    assert "Hangs has not responded for 5 s" in resumed.text()
    assert outcomes[f"{TRACKERS}:Hangs"]["kept"] == 0


@pytest.mark.nightly
def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(
    tiny_model: Path, tmp_path: Path
) -> None:
    """The workers find the damage, and are started again for the checkpoint before it."""
    asked = ["rl_config.test_freq=0", f"actor_config.load={tiny_model}", *KEEPS]
    first = start_program(tmp_path / "first", [*asked, "megatron_training.keep_last=2"])
    assert first.process.wait(timeout=600) == 0, first.text()
    straight = outcome(first.folder)
    before, newest = sorted((first.folder / "checkpoints").glob("step-*"))
    damaged = newest / "actor-00001.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    again = resume(first.folder, "train_grpo")
    assert again.process.wait(timeout=600) == 0, again.text()
    assert f"{damaged} is damaged" in again.text()
    assert f"continues after step {int(before.name[-8:])}" in again.text()
    assert outcome(first.folder) == straight


@pytest.mark.nightly
def test_a_run_goes_on_with_the_reference_that_it_had(tiny_model: Path, tmp_path: Path) -> None:
    # Reset before step 4 to the weights behind step 3, which no checkpoint has as the actor's.
    resets = ["rl_config.init_kl_coef=0.1", "rl_config.ref_update_interval=3"]
    asked = ["rl_config.test_freq=0", f"actor_config.load={tiny_model}", *resets, *KEEPS]
    first = start_program(tmp_path / "first", [*asked, "megatron_training.keep_every=2"])
    assert first.process.wait(timeout=600) == 0, first.text()
    kl = [line["update/kl"] for line in first.steps()]
    # Without a difference there is no KL: in the first step, and behind a reset.
    assert [step for step, value in enumerate(kl, 1) if abs(value) < 1e-6] == [1, 4]
    named = f"megatron_training.resume={first.folder}/checkpoints/step-00000004"
    second = start_program(tmp_path / "second", [*asked, named])
    assert second.process.wait(timeout=600) == 0, second.text()
    theirs, ours = outcome(first.folder), outcome(second.folder)
    later = [line for line in theirs["metrics"] if line["step"] > 4]
    assert [line for line in ours["metrics"] if line["step"] > 4] == later
    assert (ours["model"], ours["state"]) == (theirs["model"], theirs["state"])


@pytest.mark.nightly
@pytest.mark.parametrize("weights_alone", [False, True])
def test_a_new_run_begins_from_the_checkpoint_of_another(
    weights_alone: bool, tiny_model: Path, tmp_path: Path
) -> None:
    asked = ["rl_config.test_freq=0", f"actor_config.load={tiny_model}", *KEEPS]
    first = start_program(tmp_path / "first", [*asked, "megatron_training.keep_every=2"])
    assert first.process.wait(timeout=600) == 0, first.text()
    named = f"megatron_training.resume={first.folder}/checkpoints/step-00000002"
    anew = ["megatron_training.finetune=true", "megatron_training.train_iters=2"]
    second = start_program(tmp_path / "second", [*asked, named, *(anew if weights_alone else [])])
    assert second.process.wait(timeout=600) == 0, second.text()
    steps = [line["step"] for line in second.steps()]
    if weights_alone:
        assert steps == [1, 2]
        # The whole loop has those weights, and another schedule begins.
        assert "starts with the weights of" in second.text()
        assert second.summary()["logprob_gap_max_mean"] < 1e-4
        assert second.steps()[0]["update/lr"] == first.steps()[0]["update/lr"]
        return
    assert steps == [3, 4, 5]
    theirs, ours = outcome(first.folder), outcome(second.folder)
    assert ours["model"] == theirs["model"]
    assert ours["state"] == theirs["state"]
    later = [line for line in theirs["metrics"] if line["step"] > 2]
    assert [line for line in ours["metrics"] if line["step"] > 2] == later


def resume(folder: Path, program: str, around: Mapping[str, str] | None = None) -> Program:
    """Start a program that goes on in a run folder, with its configuration."""
    return start_program(folder, ["--resume", str(folder)], around, program=program)


def outcome(folder: Path) -> dict[str, Any]:
    """Return what a run computed: metrics, samples, tokens, answers, models, optimizer state."""
    read: dict[str, Any] = {}
    for name in ("metrics", "samples", "evaluations"):
        lines = (folder / f"{name}.jsonl").read_text().splitlines()
        read[name] = [_computed(json.loads(line)) for line in lines]
    read["rollouts"] = {path.name: path.read_bytes() for path in (folder / "rollouts").iterdir()}
    for model in sorted(folder.glob("*/model.safetensors")):
        read[model.parent.name] = model.read_bytes()
    newest = read_checkpoint(max((folder / "checkpoints").glob("step-*")))
    read["step"] = newest.step
    read["state"] = {each.name: each.checksum for each in newest.files if "-" in each.name}
    return read


def _computed(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.startswith(OF_THIS_START)}
