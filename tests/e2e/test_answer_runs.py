"""Runs on preferences, of reward models and with a teacher: killed ones end with the same bits."""

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
}


def run(folder: Path, kind: str, model: Path) -> Program:
    name, *more = KINDS[kind]
    data = model.parent / "data"
    file = data / ("train.jsonl" if kind == "distill" else "train_pairs.jsonl")
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
def test_a_killed_run_goes_on_to_the_same_bits(kind: str, tiny_model: Path, tmp_path: Path) -> None:
    straight = run(tmp_path / "straight", kind, tiny_model)
    assert straight.process.wait(timeout=600) == 0, straight.text()
    killed = run(tmp_path / "killed", kind, tiny_model)
    while len(results(killed)) < 5:
        assert killed.process.poll() is None, killed.text()
        time.sleep(0.1)
    killed.process.send_signal(signal.SIGKILL)
    killed.process.wait(timeout=60)
    resumed = run(tmp_path / "killed", kind, tiny_model)
    assert resumed.process.wait(timeout=600) == 0, resumed.text()
    assert len(results(straight)) == 12
    assert results(resumed) == results(straight)
    ours, theirs = (
        (each.folder / "model/model.safetensors").read_bytes() for each in (resumed, straight)
    )
    assert ours == theirs
