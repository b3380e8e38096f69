"""Killed runs end with the same bits: on preferences, of reward models, with a teacher, others."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from program import Program, start_program
from test_resume import OF_THIS_START

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

SHORT = (
    "megatron_training.train_iters=12",
    "megatron_training.save_interval=3",
    "rl_config.test_freq=0",
    "rl_config.memory_timeline_steps=0",
)
KINDS = {
    "dpo": ("dpo_tiny_cpu",),
    "kto": ("dpo_tiny_cpu", "preference_config.loss=kto"),
    "reward": ("reward_tiny_cpu",),
    "distill": ("distill_tiny_cpu",),
    # No answer of a random model is right, and the bonus alone moves it.
    "gated delta nets": ("grpo_qwen35_tiny_cpu", "rl_config.entropy_coeff=0.1"),
}
FROM_QUESTIONS = ("distill", "gated delta nets")


def run(folder: Path, kind: str, model: Path, data: Path) -> Program:
    name, *more = KINDS[kind]
    file = data / ("train.jsonl" if kind in FROM_QUESTIONS else "train_pairs.jsonl")
    if kind == "kto":
        file = labelled(file, folder.parent / "labelled.jsonl")
    if kind == "distill":
        more.append(f"teacher_config.load={model}")
    paths = (f"megatron_training.data_path={file}", "megatron_training.test_data_path=null")
    words = ["--config-name", name, f"actor_config.load={model}", *paths, *SHORT, *more]
    return start_program(folder, words, program="train")


def labelled(pairs: Path, file: Path) -> Path:
    """Write the answers of pairs as rows of KTO: its chosen ones are desirable."""
    text = pairs.read_text("utf-8").splitlines()[:512]
    rows = [
        line.replace('"chosen"', '"completion"').replace('"rejected":', '"label": true, "other":')
        if at % 2
        else line.replace('"rejected"', '"completion"').replace('"chosen":', '"label": false, "o":')
        for at, line in enumerate(text)
    ]
    file.write_text("\n".join(rows) + "\n", "utf-8")
    return file


def results(program: Program) -> list[dict[str, Any]]:
    path = program.folder / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    steps = [line for line in map(json.loads, lines) if "update/grad_norm" in line]
    return [
        {name: value for name, value in step.items() if not name.startswith(OF_THIS_START)}
        for step in steps
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_to_the_same_bits(
    kind: str, tiny_model: Path, untaught_delta_model: Path, tmp_path: Path
) -> None:
    data = tiny_model.parent / "data"
    model = untaught_delta_model if kind == "gated delta nets" else tiny_model
    straight = run(tmp_path / "straight", kind, model, data)
    assert straight.process.wait(timeout=600) == 0, straight.text()
    killed = run(tmp_path / "killed", kind, model, data)
    while len(results(killed)) < 5:
        assert killed.process.poll() is None, killed.text()
        time.sleep(0.1)
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait(timeout=60)
    resumed = run(tmp_path / "killed", kind, model, data)
    assert resumed.process.wait(timeout=600) == 0, resumed.text()
    assert len(results(straight)) == 12
    assert results(resumed) == results(straight)
    ours, theirs = (
        (each.folder / "model/model.safetensors").read_bytes() for each in (resumed, straight)
    )
    assert ours == theirs
