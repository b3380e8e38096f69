"""Whole runs on pictures: learning, with the picture only, and runs that are killed."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from program import Program, start_program
from test_resume import OF_THIS_START

from mindrl.programs.tiny import PICTURES, made_counter
from mindrl.trainer.rollout_files import RolloutFiles

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

GAP = "logprob_gap/mean"
AHEAD = (
    "rl_config.use_integrated_worker=false",
    "rl_config.step_order=asynchronous",
    "rl_config.actor_resource.num_npus=1",
    "actor_config.backend=fsdp:d1",
    "rl_config.rollout_resource.num_npus=1",
    "rl_config.max_staleness=2",
    "rl_config.rollout_round_steps=4",
)
SHORT = (
    "megatron_training.train_iters=4",
    "megatron_training.save_interval=1",
    "megatron_training.keep_rollouts=4",
    "rl_config.test_freq=0",
)


@pytest.fixture(scope="module")
def counter() -> tuple[Path, Path]:
    """Return the folders of the pictures and of the model."""
    return made_counter(Path(__file__).parents[2] / ".cache/tiny", 1)


def run(folder: Path, counter: tuple[Path, Path], *more: str) -> Program:
    squares, model = counter
    return start_program(
        folder,
        [
            *("--config-name", PICTURES, f"actor_config.load={model}"),
            f"megatron_training.data_path={squares}/train.jsonl",
            f"megatron_training.test_data_path={squares}/test.jsonl",
            f"data_config.images.folder={folder.parent}/kept",
            *more,
        ],
        program="train",
    )


def ended(program: Program) -> Program:
    assert program.process.wait(timeout=900) == 0, program.text()
    return program


def of_results(program: Program) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in step.items() if not name.startswith(OF_THIS_START)}
        for step in program.steps()
    ]


@pytest.mark.parametrize("backend", ["fsdp:d2", "archon:d2"])
def test_the_policy_learns_to_count_the_squares(
    backend: str, counter: tuple[Path, Path], tmp_path: Path
) -> None:
    more = f"actor_config.backend={backend}", "megatron_training.keep_rollouts=16"
    program = ended(run(tmp_path / "run", counter, *more))
    steps = program.steps()
    assert max(step["logprob_gap/max"] for step in steps) < 1e-5
    summary = program.summary()
    assert summary["accuracy_after"] > summary["accuracy_before"] + 0.6
    rollouts = RolloutFiles(program.folder / "rollouts").read(16).rollouts
    assert rollouts.image_numbers_BI is not None
    assert rollouts.image_numbers_BI.shape == (128, 1)


@pytest.mark.parametrize("backend", ["fsdp:t2", "archon:t2"])
def test_qwen3_vl_learns_it_too_with_its_decoder_cut(backend: str, tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / ".cache/tiny_qwen3_vl"
    counter = made_counter(folder, 1, "qwen3_vl")
    program = ended(run(tmp_path / "run", counter, f"actor_config.backend={backend}"))
    # Two ranks add other partial sums than the engine; of 8,000 tokens one was 1.0e-5 apart.
    assert max(step["logprob_gap/max"] for step in program.steps()) < 2e-5
    summary = program.summary()
    assert summary["accuracy_after"] > summary["accuracy_before"] + 0.6


def test_it_does_not_learn_from_blank_pictures(counter: tuple[Path, Path], tmp_path: Path) -> None:
    squares, model = counter
    blank = tmp_path / "squares"
    blank.mkdir()
    Image.new("RGB", (84, 56), "white").save(blank / "blank.png")
    for name in ("train", "test"):
        rows = [json.loads(line) for line in (squares / f"{name}.jsonl").open()]
        for at, row in enumerate(rows):
            # Without a picture the rows would be equal.
            row["messages"][0]["content"] += f" ({name} {at})"
            row["images"] = ["blank.png"]
        (blank / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    program = ended(run(tmp_path / "run", (blank, model)))
    # One of five numbers is right.
    assert program.summary()["accuracy_after"] < 0.35


@pytest.mark.parametrize("partial", [False, True])
def test_a_killed_run_goes_on_to_the_same_bits(
    partial: bool, counter: tuple[Path, Path], tmp_path: Path
) -> None:
    more = [*SHORT]
    if partial:
        more += ["rl_config.partial_rollout=true", "rl_config.max_staleness=2"]
        more += ["rl_config.rollout_round_steps=2"]
    straight = ended(run(tmp_path / "straight", counter, *more))
    killed = run(tmp_path / "killed", counter, *more)
    killed.wait_for_steps(2)
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait(timeout=60)
    resumed = ended(run(tmp_path / "killed", counter, *more))
    assert of_results(resumed) == of_results(straight)


def test_replicas_of_their_own_see_the_pictures(counter: tuple[Path, Path], tmp_path: Path) -> None:
    program = ended(run(tmp_path / "run", counter, *SHORT, *AHEAD))
    # A step on tokens of older weights alone has no gap of its own.
    gaps = [step[GAP] for step in program.steps() if GAP in step]
    assert len(gaps) > 0
    assert max(gaps) < 1e-6
