"""Weights from a Hugging Face folder to local tensors, together again, and out to a folder."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen2ForCausalLM

from mindrl.models.description import read_description
from mindrl.models.qwen2 import logical_shapes
from mindrl.resharding.gather import ReshardReport

pytestmark = pytest.mark.distributed

MakeModel = Callable[[bool], Path]
Gathered = tuple[dict[str, Tensor], list[str], ReshardReport]
KEY_WEIGHT = "model.layers.0.self_attn.k_proj.weight"


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_the_ranks_read_and_gather_is_the_file_to_the_bit(
    ranks: int, tied: bool, forked_workers: ForkedWorkers, random_model: MakeModel
) -> None:
    folder = random_model(tied)
    filed = load_file(folder / "model.safetensors")
    replies: list[Gathered] = forked_workers.run(
        "training_probe:gathered", str(folder), 256 << 20, ranks=ranks
    )
    whole_bytes = sum(tensor.nbytes for tensor in filed.values())
    assert len(replies) == ranks
    for tensors, order, _ in replies:
        assert order == list(logical_shapes(read_description(str(folder))))
        assert tensors.keys() == filed.keys()
        for name, tensor in filed.items():
            assert torch.equal(tensors[name], tensor), name
    # Each byte is offered by one rank, and received by every other.
    reports = [report for _, _, report in replies]
    assert sum(report.bytes_local for report in reports) == whole_bytes
    for report in reports:
        assert report.bytes_local + report.bytes_received == whole_bytes
        assert report.bytes_sent == report.bytes_local * (ranks - 1)


def test_buckets_of_one_byte_give_one_tensor_at_a_time_and_the_same_tensors(
    forked_workers: ForkedWorkers, random_model: MakeModel
) -> None:
    folder = random_model(False)
    (large, small) = (
        forked_workers.run("training_probe:gathered", str(folder), bucket_bytes, ranks=2)[1]
        for bucket_bytes in (256 << 20, 1)
    )
    assert small[1] == large[1]
    assert all(torch.equal(small[0][name], tensor) for name, tensor in large[0].items())
    assert small[2] == large[2]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_an_exported_folder_gives_transformers_the_same_logits_to_the_bit(
    tied: bool, forked_workers: ForkedWorkers, random_model: MakeModel, tmp_path: Path
) -> None:
    source, target = random_model(tied), tmp_path / "out" / "model"
    forked_workers.run("training_probe:exported", str(source), str(target))
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

    forked_workers.run("training_probe:exported", str(source), str(target))

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
        f"{short}: tensor {KEY_WEIGHT} has shape [63, 128], config.json asks for more",
        f"{flat}: tensor {KEY_WEIGHT} has shape [8192], config.json asks for more",
    ]
    assert messages[3].startswith(f"{cut}/model.safetensors cannot be read: ")
    assert messages[4].startswith(f"{garbage}/model.safetensors cannot be read: ")
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
    ((tensors, _, _),) = forked_workers.run("training_probe:gathered", str(tmp_path), 1 << 20)
    filed = load_file(whole / "model.safetensors")
    assert all(torch.equal(tensors[name], tensor) for name, tensor in filed.items())
