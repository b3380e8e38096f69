"""Bad input of a training program: what it is, the exit code, words of the answer."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

Folders = tuple[Path, Path]
"""The model of the test and a folder for what it makes."""


def edited(model: Path, scratch: Path, name: str, text: str) -> str:
    """Copy a model with one file replaced; returns the override that loads it."""
    copy = scratch / "model"
    shutil.copytree(model, copy)
    (copy / name).write_text(text)
    return f"actor_config.load={copy}"


def cut_off(model: Path, scratch: Path) -> str:
    """Copy a model and cut the last byte off its weights; returns the override that loads it."""
    copy = scratch / "model"
    shutil.copytree(model, copy)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    return f"actor_config.load={copy}"


def indexed(model: Path, scratch: Path) -> str:
    """Copy a model and add an index that names another file; returns the override."""
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    return edited(model, scratch, "model.safetensors.index.json", json.dumps(index))


def data(scratch: Path, *lines: str) -> str:
    """Write a data file; returns the override that trains on it."""
    path = scratch / "data.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return f"megatron_training.data_path={path}"


def reward(scratch: Path, body: str) -> str:
    """Write a reward function; returns the override that rates with it."""
    path = scratch / "reward.py"
    path.write_text(f"def score(response, reference):\n    {body}\n")
    return f"rl_config.verifier_function=[{path}:score]"


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
        ["cannot read", "config.json"],
    ),
    "unreadable weights": (
        lambda model, scratch: [edited(model, scratch, "model.safetensors", "not weights")],
        2,
        ["cannot read", "model.safetensors"],
    ),
    "weights that are cut off": (
        lambda model, scratch: [cut_off(model, scratch)],
        2,
        ["it is truncated", "the first incomplete tensor is model.", "safetensors"],
    ),
    "a weight file that is missing": (
        lambda model, scratch: [indexed(model, scratch)],
        2,
        ["model-00002-of-00002.safetensors is missing", "the first is model.norm.weight"],
    ),
    "a family that is not supported": (
        lambda model, scratch: [edited(model, scratch, "config.json", '{"model_type": "gpt2"}')],
        2,
        ["model_type='gpt2' is not supported; supported: ", "docs/how-to/add-a-model.md"],
    ),
    "stages that do not fit the layers": (
        lambda _model, _scratch: [
            "actor_config.pipeline_model_parallel_size=2",
            "actor_config.num_layer_list=[1,5]",
        ],
        2,
        ["actor_config.num_layer_list=1,5 must be 2 numbers from 1 with the sum num_hidden_"],
    ),
    "a token budget below the longest sequence": (
        lambda _model, _scratch: [
            "rl_config.use_dynamic_bsz=true",
            "rl_config.max_packing_token_size=20",
        ],
        2,
        ["rl_config.max_packing_token_size=20 must hold the longest sequence", "56 or more"],
    ),
    "missing data": (
        lambda _model, scratch: [f"megatron_training.data_path={scratch}/none.jsonl"],
        2,
        ["megatron_training.data_path=", "none.jsonl: no such file"],
    ),
    "a malformed line": (
        lambda _model, scratch: [data(scratch, row("1+1=?"), row("2+0=?"), '{"messages": [')],
        2,
        ["data.jsonl:3"],
    ),
    "a prompt that is too long": (
        lambda _model, scratch: [data(scratch, row("1+1=?"), row("1" * 50))],
        2,
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
    "a reward that returns a list": (
        lambda _model, scratch: [
            reward(scratch, "return [float(reference in response)]"),
            "rl_config.verifier_weight=[1.0]",
        ],
        2,
        ["rl_config.verifier_function='", "a trial call: value: returned [1.0];", "reward.py:1)"],
    ),
    "too few devices": (
        lambda _model, _scratch: ["rl_config.actor_resource.num_npus=64"],
        2,
        ["rl_config.actor_resource.num_npus=64: the run needs 64", "CPU device(s)"],
    ),
    "a run folder that cannot be written": (
        lambda _model, _scratch: ["hydra.run.dir=/proc/none/run"],
        1,
        ["cannot create the run folder"],
    ),
    "an export folder with files in it": (
        lambda model, _scratch: [f"actor_config.save={model}"],
        2,
        ["actor_config.save=", "is not empty"],
    ),
}
