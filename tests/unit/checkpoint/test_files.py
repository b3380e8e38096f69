"""Weight files against config.json, by their headers alone."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file
from torch import Tensor

from mindrl.checkpoint.files import INDEX_FILE, check_files, tensor_shapes
from mindrl.errors import ModelError
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import read_description

MakeModel = Callable[[bool], Path]
KEY_WEIGHT = "model.layers.0.self_attn.k_proj.weight"


def copy(source: Path, target: Path, change: Callable[[dict[str, Tensor]], object]) -> str:
    """Copy a model folder with other tensors in it."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors")
    return str(target)


def message(folder: str) -> str:
    with pytest.raises(ModelError) as caught:
        check_files(folder, read_description(folder))
    return str(caught.value)


@pytest.mark.parametrize("tied", [True, False])
def test_the_files_of_a_real_model_are_those_that_its_config_asks_for(
    tied: bool, random_model: MakeModel
) -> None:
    folder = str(random_model(tied))
    model = read_description(folder)
    check_files(folder, model)
    assert tensor_shapes(folder) == logical_shapes(model)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_the_files_of_each_family_are_those_that_its_config_asks_for(
    family: str, random_model_of: Callable[..., Path]
) -> None:
    folder = str(random_model_of(family))
    model = read_description(folder)
    check_files(folder, model)
    assert tensor_shapes(folder) == logical_shapes(model)


def test_an_expert_that_is_missing_is_named(
    random_model_of: Callable[..., Path], tmp_path: Path
) -> None:
    name = "model.layers.3.mlp.experts.7.down_proj.weight"
    source = random_model_of("qwen3_moe")
    folder = copy(source, tmp_path / "model", lambda tensors: tensors.pop(name))
    assert message(folder) == f"{folder}: no tensor {name}; config.json needs [128, 64]"


def test_fifty_thousand_tensors_are_checked_in_seconds(tmp_path: Path) -> None:
    """Qwen3-MoE of 128 layers and 128 experts, one byte an element, sizes of one or two."""
    sizes: dict[str, Any] = {
        "model_type": "qwen3_moe",
        "head_dim": 2,
        "hidden_size": 2,
        "intermediate_size": 2,
        "max_position_embeddings": 64,
        "moe_intermediate_size": 1,
        "num_attention_heads": 1,
        "num_experts": 128,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "vocab_size": 8,
    }
    (tmp_path / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    model = read_description(str(tmp_path))
    shapes = logical_shapes(model)
    assert len(shapes) > 50_000
    arrays = {name: np.zeros(shape, np.uint8) for name, shape in shapes.items()}
    save_arrays(arrays, tmp_path / "model.safetensors")
    start = time.perf_counter()
    check_files(str(tmp_path), model)
    # 0.4 s on an idle machine; a check that reads all names again for each one takes minutes.
    assert time.perf_counter() - start < 20


def test_a_tensor_that_is_missing_is_named_with_the_shape_it_should_have(
    random_model: MakeModel, tmp_path: Path
) -> None:
    folder = copy(random_model(True), tmp_path / "model", lambda tensors: tensors.pop(KEY_WEIGHT))
    assert message(folder) == f"{folder}: no tensor {KEY_WEIGHT}; config.json needs [64, 128]"


def test_a_tied_model_may_also_hold_its_head_and_an_untied_one_must(
    random_model: MakeModel, tmp_path: Path
) -> None:
    source, folder = random_model(True), tmp_path / "model"
    shutil.copytree(source, folder)
    values = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(values | {"tie_word_embeddings": False}))
    assert message(str(folder)) == (
        f"{folder}: no tensor lm_head.weight; config.json needs [96, 128]"
    )
    untied = random_model(False)
    as_tied = read_description(str(source))
    check_files(str(untied), as_tied)


@pytest.mark.parametrize(("rows", "shape"), [(63, "[63, 128]"), (65, "[65, 128]")])
def test_a_tensor_that_is_shorter_or_longer_is_refused_with_both_shapes(
    rows: int, shape: str, random_model: MakeModel, tmp_path: Path
) -> None:
    def resize(tensors: dict[str, Tensor]) -> None:
        old = tensors[KEY_WEIGHT]
        tensors[KEY_WEIGHT] = old.new_zeros(rows, old.size(1))

    folder = copy(random_model(True), tmp_path / "model", resize)
    assert message(folder) == (
        f"{folder}: tensor {KEY_WEIGHT} has shape {shape}; config.json needs [64, 128]"
    )


def test_a_file_that_is_garbage_or_not_there_is_named(
    random_model: MakeModel, tmp_path: Path
) -> None:
    folder = copy(random_model(True), tmp_path / "model", lambda _: None)
    file = Path(folder) / "model.safetensors"
    for content in (b"\xff" * 64, b"\x10" + b"\0" * 7 + b"[1, 2, 3, 4, 5 ]"):
        file.write_bytes(content)
        assert message(folder).startswith(f"cannot read {file}: ")
    file.unlink()
    assert message(folder) == f"model folder {folder} has no .safetensors file"


def test_a_file_that_is_cut_off_is_named_with_the_first_tensor_that_is_not_whole(
    tmp_path: Path, random_model: MakeModel
) -> None:
    """Three tensors of 4, 8 and 16 bytes behind a header; all lengths count in bytes."""
    folder = copy(random_model(True), tmp_path / "model", lambda _: None)
    file = Path(folder) / "model.safetensors"
    arrays = {"a": np.zeros(16, np.uint8), "b": np.zeros(4, np.uint8), "c": np.zeros(8, np.uint8)}
    save_arrays(arrays, file)
    whole = file.read_bytes()
    header = json.loads(whole[8 : len(whole) - 28])
    first, second, third = sorted(arrays, key=lambda name: int(header[name]["data_offsets"][0]))
    ends = {name: len(whole) - 28 + int(header[name]["data_offsets"][1]) for name in arrays}
    for length, tensor in [
        (len(whole) - 1, third),
        (ends[second], third),
        (ends[second] - 1, second),
        (ends[first], second),
        (ends[first] - 1, first),
        (len(whole) - 28, first),
    ]:
        file.write_bytes(whole[:length])
        assert message(folder) == (
            f"cannot read {file}: it is truncated: {length} of {len(whole)} bytes; the "
            f"first incomplete tensor is {tensor}"
        )
    file.write_bytes(whole[:20])
    assert message(folder) == (
        f"cannot read {file}: it is truncated inside the header: 20 of {len(whole) - 28} bytes"
    )
    file.write_bytes(whole[:7])
    assert message(folder) == f"cannot read {file}: it is truncated: 7 bytes, no header"


def test_a_pointer_of_git_lfs_is_told_from_a_damaged_file(
    random_model: MakeModel, tmp_path: Path
) -> None:
    folder = copy(random_model(True), tmp_path / "model", lambda _: None)
    file = Path(folder) / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n")
    assert message(folder).endswith("a Git LFS pointer; fetch the file with git lfs pull")


@pytest.fixture
def sharded(random_model: MakeModel, tmp_path: Path) -> Path:
    """Copy the untied model into four files with an index."""
    from transformers import Qwen2ForCausalLM

    folder = tmp_path / "sharded"
    model = Qwen2ForCausalLM.from_pretrained(random_model(False))
    model.save_pretrained(folder, max_shard_size="300KB")
    assert len(list(folder.glob("*.safetensors"))) == 4
    return folder


def index_of(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / INDEX_FILE).read_text("utf-8"))
    return values


def rewrite_index(folder: Path, places: object) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": places}), "utf-8")


def test_only_the_files_that_an_index_names_count(sharded: Path) -> None:
    model = read_description(str(sharded))
    (sharded / "consolidated.safetensors").write_bytes(b"of another program")
    save_arrays({"of.no.index": np.zeros(1)}, sharded / "model.safetensors")
    check_files(str(sharded), model)
    assert tensor_shapes(str(sharded)) == logical_shapes(model)


def test_a_file_that_the_index_names_and_that_is_missing_is_named_with_its_tensors(
    sharded: Path,
) -> None:
    places = index_of(sharded)["weight_map"]
    gone = sharded / "model-00002-of-00004.safetensors"
    tensors = [tensor for tensor, file in places.items() if file == gone.name]
    gone.unlink()
    assert message(str(sharded)) == (
        f"{gone} is missing; {INDEX_FILE} lists {len(tensors)} tensors in it, "
        f"the first is {tensors[0]}"
    )


def test_an_index_that_disagrees_with_a_file_is_refused_with_tensor_and_file(sharded: Path) -> None:
    places = index_of(sharded)["weight_map"]
    first, third = (f"model-0000{number}-of-00004.safetensors" for number in (1, 3))
    wrong = next(tensor for tensor, file in places.items() if file == third)
    rewrite_index(sharded, places | {wrong: first})
    assert message(str(sharded)) == (
        f"{sharded / first}: no tensor {wrong}, which {INDEX_FILE} lists there"
    )
    rewrite_index(sharded, places)
    save_file(load_file(sharded / first) | load_file(sharded / third), sharded / first)
    assert message(str(sharded)).startswith(f"{sharded / first}: unexpected tensor ")
    assert message(str(sharded)).endswith(f"; {INDEX_FILE} lists it in {third}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ": Expecting property name"),
        ("[]", " has no weight_map, which maps each tensor to its file"),
        ('{"weight_map": {}}', " has no weight_map, which maps each tensor to its file"),
        ('{"weight_map": {"a": "../a"}}', ": weight_map.a='../a' must be a file in its folder"),
        ('{"weight_map": {"a": 1}}', ": weight_map.a=1 must be a file in its folder"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused_by_name(
    text: str, words: str, sharded: Path
) -> None:
    (sharded / INDEX_FILE).write_text(text)
    assert f"{sharded / INDEX_FILE}{words}" in message(str(sharded))


def test_a_tensor_in_two_files_without_an_index_is_refused(
    random_model: MakeModel, tmp_path: Path
) -> None:
    folder = copy(random_model(True), tmp_path / "model", lambda _: None)
    save_arrays({KEY_WEIGHT: np.zeros(1)}, Path(folder) / "other.safetensors")
    assert message(folder) == (
        f"{folder}: tensor {KEY_WEIGHT} is in model.safetensors and in other.safetensors"
    )
