"""Weights from a Hugging Face folder to local tensors, and out to a folder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from assembly import assembled
from forked_workers import ForkedWorkers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen2ForCausalLM

from mindrl.layouts.layout import TrainLayout

pytestmark = pytest.mark.distributed

MakeModel = Callable[[bool], Path]
KEY_WEIGHT = "model.layers.0.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("tied", "shard_bytes", "files"), [(True, 1 << 30, 1), (False, 1 << 30, 1), (False, 300_000, 4)]
)
def test_an_exported_folder_gives_transformers_the_same_logits_to_the_bit(
    tied: bool,
    shard_bytes: int,
    files: int,
    forked_workers: ForkedWorkers,
    random_model: MakeModel,
    tmp_path: Path,
) -> None:
    source, target = random_model(tied), tmp_path / "out" / "model"
    forked_workers.run("training_probe:exported", str(source), str(target), shard_bytes)
    assert len(list(target.glob("*.safetensors"))) == files
    tokens_BT = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        expected, found = (
            Qwen2ForCausalLM.from_pretrained(folder)(tokens_BT).logits
            for folder in (source, target)
        )
    assert torch.equal(found, expected)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]


def test_an_export_carries_config_and_tokenizer_and_replaces_an_older_one(
    forked_workers: ForkedWorkers, random_model: MakeModel, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(random_model(True), source)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (source / name).write_text(f"text of {name}")
    (source / "README.md").write_text("about the source, not about what becomes of it")
    target, unfinished = tmp_path / "model", tmp_path / ".model.incomplete"
    for folder in (target, unfinished):
        folder.mkdir()
        (folder / "left_over.safetensors").write_text("of an earlier run")

    forked_workers.run("training_probe:exported", str(source), str(target), 1 << 30)

    assert sorted(path.name for path in target.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert not unfinished.exists()
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (target / name).read_bytes() == (source / name).read_bytes()
    assert read_config(target) == read_config(source)
    assert read_config(target)["dtype"] == "float32"


def read_config(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return values


def changed_copy(source: Path, target: Path, change: Callable[[dict[str, Tensor]], None]) -> str:
    """Copy a model folder with other tensors in it."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return str(target)


def test_weights_that_cannot_be_read_are_refused_by_file_or_tensor(
    forked_workers: ForkedWorkers, random_model: MakeModel, tmp_path: Path
) -> None:
    good = random_model(True)

    def drop(tensors: dict[str, Tensor]) -> None:
        del tensors[KEY_WEIGHT]

    def shorten(tensors: dict[str, Tensor]) -> None:
        tensors[KEY_WEIGHT] = tensors[KEY_WEIGHT][:-1].contiguous()

    def flatten(tensors: dict[str, Tensor]) -> None:
        tensors[KEY_WEIGHT] = tensors[KEY_WEIGHT].flatten()

    missing = changed_copy(good, tmp_path / "missing", drop)
    short = changed_copy(good, tmp_path / "short", shorten)
    flat = changed_copy(good, tmp_path / "flat", flatten)
    cut = Path(changed_copy(good, tmp_path / "cut", lambda _: None))
    weights = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(weights[:-100])
    garbage = Path(changed_copy(good, tmp_path / "garbage", lambda _: None))
    (garbage / "model.safetensors").write_bytes(b"\xff" * 64)
    empty = Path(changed_copy(good, tmp_path / "empty", lambda _: None))
    (empty / "model.safetensors").unlink()

    folders = [str(folder) for folder in (missing, short, flat, cut, garbage, empty, good)]
    (messages,) = forked_workers.run("training_probe:import_errors", folders)

    assert messages[:3] == [
        f"{missing}: no tensor {KEY_WEIGHT}",
        (
            f"{short}: tensor {KEY_WEIGHT} has shape [63, 128], which is smaller than "
            "config.json requires"
        ),
        f"{flat}: tensor {KEY_WEIGHT} has shape [8192], which is smaller than config.json requires",
    ]
    assert messages[3].startswith(f"cannot read {cut}/model.safetensors: ")
    assert messages[4].startswith(f"cannot read {garbage}/model.safetensors: ")
    assert messages[5:] == [
        f"model folder {empty} has no .safetensors file",
        "read without an error",
    ]


def test_a_model_in_several_files_is_read_like_one_in_a_single_file(
    forked_workers: ForkedWorkers, random_model: MakeModel, tmp_path: Path
) -> None:
    whole = random_model(False)
    Qwen2ForCausalLM.from_pretrained(whole).save_pretrained(tmp_path, max_shard_size="200KB")
    assert len(list(tmp_path.glob("*.safetensors"))) >= 3
    (local,) = forked_workers.run("training_probe:read", str(tmp_path))
    tensors = assembled(str(tmp_path), TrainLayout(), [local])
    filed = load_file(whole / "model.safetensors")
    assert all(torch.equal(tensors[name], tensor) for name, tensor in filed.items())
