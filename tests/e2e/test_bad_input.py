"""Bad input is refused in words, with an exit code, before anything is trained."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from program import CHECKOUT

Folders = tuple[Path, Path]
"""The model of the test and a folder for what it makes."""


def edited(model: Path, scratch: Path, name: str, text: str) -> str:
    """Copy a model with one file replaced; returns the override that loads it."""
    copy = scratch / "model"
    shutil.copytree(model, copy)
    (copy / name).write_text(text)
    return f"actor_config.load={copy}"


def data(scratch: Path, *lines: str) -> str:
    """Write a data file; returns the override that trains on it."""
    path = scratch / "data.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return f"megatron_training.data_path={path}"


def row(question: str) -> str:
    return json.dumps({"messages": [{"role": "user", "content": question}], "answer": "2"})


Case = tuple[Callable[[Path, Path], list[str]], int, list[str]]

CASES: dict[str, Case] = {
    "a misspelt key": (
        lambda _model, _scratch: ["rl_config.n_sampels_per_prompt=4"],
        2,
        ["rl_config.n_sampels_per_prompt", "did you mean rl_config.n_samples_per_prompt?"],
    ),
    "a wrong type": (
        lambda _model, _scratch: ["rl_config.epochs=many"],
        2,
        ['rl_config.epochs="many" must be a valid integer'],
    ),
    "a missing model": (
        lambda _model, scratch: [f"actor_config.load={scratch}/none"],
        2,
        ["/none does not exist"],
    ),
    "an unreadable config.json": (
        lambda model, scratch: [edited(model, scratch, "config.json", "{")],
        2,
        ["config.json cannot be read"],
    ),
    "unreadable weights": (
        lambda model, scratch: [edited(model, scratch, "model.safetensors", "not weights")],
        2,
        ["model.safetensors cannot be read"],
    ),
    "missing data": (
        lambda _model, scratch: [f"megatron_training.data_path={scratch}/none.jsonl"],
        2,
        ["megatron_training.data_path=", "none.jsonl: no such file"],
    ),
    "a malformed line": (
        lambda _model, scratch: [data(scratch, row("1+1=?"), row("2+0=?"), '{"messages": [')],
        1,
        ["data.jsonl:3"],
    ),
    "a prompt that is too long": (
        lambda _model, scratch: [data(scratch, row("1+1=?"), row("1" * 50))],
        1,
        ["data.jsonl:2", "rl_config.max_prompt_length"],
    ),
    "a layout that does not divide the heads": (
        lambda _model, _scratch: [
            "rl_config.actor_resource.num_npus=8",
            "actor_config.tensor_model_parallel_size=8",
        ],
        2,
        ["actor_config.tensor_model_parallel_size=8 must divide num_attention_heads=4; nearest: 4"],
    ),
    "a reward that does not import": (
        lambda _model, _scratch: ["rl_config.verifier_function=[no.such.module:score]"],
        2,
        ["rl_config.verifier_function", "no.such.module"],
    ),
    "too few devices": (
        lambda _model, _scratch: ["rl_config.actor_resource.num_npus=64"],
        1,
        ["rl_config.actor_resource.num_npus=64: this machine has", "CPU device(s)"],
    ),
    "a run folder that cannot be written": (
        lambda _model, _scratch: ["hydra.run.dir=/proc/none/run"],
        1,
        ["the run folder cannot be made"],
    ),
    "an export folder with files in it": (
        lambda model, _scratch: [f"actor_config.save={model}"],
        1,
        ["actor_config.save=", "holds files already"],
    ),
}


@pytest.mark.e2e
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_bad_input_is_refused_in_words_before_training(
    case: Case, tiny_model: Path, tmp_path: Path
) -> None:
    overrides, code, words = case
    run_dir = tmp_path / "run"
    command = [
        sys.executable,
        "cli/train_grpo.py",
        f"actor_config.load={tiny_model}",
        f"hydra.run.dir={run_dir}",
        *overrides(tiny_model, tmp_path),
    ]

    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)

    output = done.stdout + done.stderr
    assert done.returncode == code, output
    for word in words:
        assert word in output
    assert "Traceback" not in output
    assert not (run_dir / "metrics.jsonl").exists() or not (run_dir / "metrics.jsonl").read_text()
