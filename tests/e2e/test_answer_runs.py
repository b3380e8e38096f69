"""Killed runs end with the same bits: on preferences, of reward models, with teachers, others."""

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from program import Program, start_program
from safetensors.torch import load_file, save_file
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
    "steps": (
        "reward_tiny_cpu",
        "preference_config.loss=steps",
        "preference_config.step_separator=', '",
        "preference_config.center_rewards_coefficient=0",
    ),
    "distill": ("distill_tiny_cpu",),
    "two teachers": ("distill_tiny_cpu", "data_config.source_column=subject"),
    # No answer of a random model is right, and the bonus alone moves it.
    "gated delta nets": ("grpo_qwen35_tiny_cpu", "rl_config.entropy_coeff=0.1"),
}
ROWS = {
    "steps": "train_steps.jsonl",
    **dict.fromkeys(("distill", "two teachers", "gated delta nets"), "train.jsonl"),
}


def run(folder: Path, kind: str, model: Path, data: Path) -> Program:
    name, *more = KINDS[kind]
    file = data / ROWS.get(kind, "train_pairs.jsonl")
    if kind == "kto":
        file = labelled(file, folder.parent / "labelled.jsonl")
    if kind == "distill":
        more.append(f"teacher_config.load={model}")
    if kind == "two teachers":
        file = with_subjects(file, folder.parent / "subjects.jsonl")
        loads = {"sums": model, "other": changed(model, folder.parent / "other")}
        models = ", ".join(f"{{data_source: {name}, load: {load}}}" for name, load in loads.items())
        more += [f"teacher_config.load={model}", f"teacher_config.models=[{models}]"]
    paths = (f"megatron_training.data_path={file}", "megatron_training.test_data_path=null")
    words = ["--config-name", name, f"actor_config.load={model}", *paths, *SHORT, *more]
    return start_program(folder, words, program="train")


def with_subjects(questions: Path, file: Path) -> Path:
    """Write questions with one of two subjects in turn."""
    rows = [json.loads(line) for line in questions.read_text("utf-8").splitlines()[:256]]
    lines = [
        json.dumps(row | {"subject": "other" if at % 2 else "sums"}) for at, row in enumerate(rows)
    ]
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


def changed(model: Path, folder: Path) -> Path:
    """Write a model with twice the logits of another."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] *= 2
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


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
