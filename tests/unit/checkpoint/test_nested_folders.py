"""Folders of Qwen3.5 with a vision tower: read as their decoder, and written as they were.

The folder has the random text model of its family; see nested_folders.
"""

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from nested_folders import others_of, tensors_of
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from user_programs import with_torch

from mindrl.checkpoint.any_family import read_any_description
from mindrl.checkpoint.export import exported_model, new_folder
from mindrl.checkpoint.files import check_files, tensor_shapes
from mindrl.checkpoint.readers import fill, folder_reader
from mindrl.errors import ModelError, OutputError
from mindrl.models.config_file import read_config
from mindrl.models.decoder import DType
from mindrl.models.description import read_description
from mindrl.models.sharding import full_sharding

MakeModel = Callable[..., Path]
FAMILIES = ("qwen3_5", "qwen3_5_moe")


def exported(
    source: Path,
    target: Path,
    *,
    changed: bool = True,
    dtype: DType = "float32",
    shard_bytes: int = 600_000,
) -> Path:
    """Export the model of a folder, its embedding doubled."""
    model = read_description(str(source))
    table = full_sharding(model, world_size=1, holders=[0], dtype=dtype).table(0)
    with ExitStack() as stack:
        read = folder_reader(str(source), stack)
        into = exported_model(str(source), target, table, dtype=dtype, shard_bytes=shard_bytes)
        sink = stack.enter_context(into)
        for name in sorted(table):
            fill(sink.open(name), table[name], read)
            if changed and "embed_tokens" in name:
                sink.open(name).mul_(2.0)
            sink.close(name)
    return target


def carry(source: Path, target: Path) -> None:
    """Make a new folder with what the export of another carries over."""
    with new_folder(str(source), target, dtype="float32", held=()):
        pass


def convert(source: Path, target: Path, *more: str) -> None:
    ended = with_torch("cli/convert_ckpt.py", "--from", str(source), "--to", str(target), *more)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_it_is_described_as_the_folder_of_its_decoder(
    family: str, tied: bool, random_model_of: MakeModel
) -> None:
    nested, flat = (str(random_model_of(name, tied)) for name in (family, f"{family}_text"))
    assert read_description(nested) == read_description(flat)
    shapes = tensor_shapes(flat)
    assert tensor_shapes(nested) == shapes
    found, expected = read_any_description(nested), read_any_description(flat)
    assert found.other is not None
    assert expected.other is not None
    assert dict(found.other.tensors) == dict(expected.other.tensors) == shapes
    assert found.other.architecture == expected.other.architecture
    assert found.tie_word_embeddings == tied
    assert not found.reads_images
    check_files(nested, found)


def test_the_head_is_tied_by_the_key_of_the_whole_model(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    values = json.loads((random_model_of("qwen3_5") / "config.json").read_text("utf-8"))
    for at_top, nested, expected in ((True, False, True), (False, True, False), (None, True, True)):
        text = {**values["text_config"], "tie_word_embeddings": nested}
        whole = {**values, "text_config": text, "tie_word_embeddings": at_top}
        if at_top is None:
            del whole["tie_word_embeddings"]
        (tmp_path / "config.json").write_text(json.dumps(whole), "utf-8")
        assert read_description(str(tmp_path)).tie_word_embeddings is expected
        assert "image_token_id" not in read_config(str(tmp_path))[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_has_the_tower_to_the_bit_and_loads_in_transformers_as_the_whole_and_the_decoder(
    family: str, random_model_of: MakeModel, tmp_path: Path
) -> None:
    source = random_model_of(family)
    target = exported(source, tmp_path / "new")
    before, after = tensors_of(source), tensors_of(target)
    assert after.keys() == before.keys()
    changed = {name for name, each in before.items() if not torch.equal(each, after[name])}
    assert changed == {"model.language_model.embed_tokens.weight"}
    kept = others_of(target)
    assert len(kept) == 34
    assert {each.dtype for each in kept.values()} == {torch.bfloat16, torch.float32}
    assert all(each.dtype == before[name].dtype for name, each in kept.items())
    index = json.loads((target / "model.safetensors.index.json").read_text("utf-8"))
    assert index["weight_map"].keys() == after.keys()
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in after.values())
    assert {index["weight_map"][name] for name in kept} == {"model-kept.safetensors"}
    whole, report = AutoModelForImageTextToText.from_pretrained(
        target, dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    decoder = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    expected = AutoModelForCausalLM.from_pretrained(
        exported(random_model_of(f"{family}_text"), tmp_path / "flat"), dtype=torch.float32
    )
    ids = torch.arange(40)[None]
    assert torch.equal(decoder(ids).logits, expected(ids).logits)
    assert torch.equal(whole(ids).logits, expected(ids).logits)
    # The next export from the first one.
    again = exported(target, tmp_path / "again", changed=False)
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {
        path.name: path.read_bytes() for path in target.iterdir()
    }


def test_an_export_with_one_file_of_weights_loads_in_transformers_with_its_tower(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    target = exported(random_model_of("qwen3_5"), tmp_path / "new", shard_bytes=1 << 30)
    files = sorted(path.name for path in target.glob("*.safetensors"))
    assert files == ["model-00001-of-00001.safetensors", "model-kept.safetensors"]
    whole, report = AutoModelForImageTextToText.from_pretrained(target, output_loading_info=True)
    assert not report["missing_keys"]
    filed, loaded = others_of(target), whole.state_dict()
    assert all(
        torch.equal(loaded[name].to(each), each) for name, each in filed.items() if "visual" in name
    )
    check_files(str(target), read_description(str(target)))


def test_an_export_in_bfloat16_leaves_the_types_of_the_tower_and_names_its_own_in_both_places(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    target = exported(random_model_of("qwen3_5"), tmp_path / "new", dtype="bfloat16")
    values = json.loads((target / "config.json").read_text("utf-8"))
    assert values["dtype"] == values["text_config"]["dtype"] == "bfloat16"
    found = tensors_of(target)
    assert found["model.language_model.layers.3.self_attn.q_proj.weight"].dtype == torch.bfloat16
    assert found["mtp.fc.weight"].dtype == torch.float32


def test_a_stack_of_experts_is_never_in_two_files(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    target = exported(random_model_of("qwen3_5_moe"), tmp_path / "new")
    sizes = [path.stat().st_size for path in target.glob("model-0*.safetensors")]
    # A stack of gates and ups has 8 x 128 x 128 numbers, 524,288 bytes.
    assert max(sizes) < 600_000 + 4096
    name = "model.language_model.layers.0.mlp.experts.gate_up_proj"
    assert tensors_of(target)[name].shape == (8, 128, 128)


def test_a_damaged_tower_is_an_error_that_names_the_file(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(random_model_of("qwen3_5"), source)
    tower = source / "model-00002-of-00002.safetensors"
    tower.write_bytes(tower.read_bytes()[:-100])
    with pytest.raises(OutputError, match=f"cannot read {tower}: it is truncated"):
        carry(source, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    tower.write_bytes(b"")
    with pytest.raises(ModelError, match=f"cannot read {tower}"):
        tensor_shapes(str(source))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversion_to_rank_files_and_back_has_every_byte(
    family: str, random_model_of: MakeModel, tmp_path: Path
) -> None:
    source, cut, again = random_model_of(family), tmp_path / "cut", tmp_path / "again"
    convert(source, cut, "--layout", "archon:d2")
    assert (cut / "model-kept.safetensors").is_file()
    assert not (cut / "model.safetensors.index.json").exists()
    convert(cut, again)
    before, after = tensors_of(source), tensors_of(again)
    assert after.keys() == before.keys()
    assert all(torch.equal(each, before[name]) for name, each in after.items())
