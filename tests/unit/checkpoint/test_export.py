"""The folder that an export writes: its files, whatever order the tensors come in."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from mindrl.checkpoint.any_family import read_any_description
from mindrl.checkpoint.carried_files import RunTokenizer
from mindrl.checkpoint.export import (
    EXPORT_FILE,
    exported_model,
    keep_folder,
    new_folder,
    write_json,
)
from mindrl.checkpoint.files import INDEX_FILE
from mindrl.errors import ModelError, OutputError
from mindrl.models.decoder import DType
from mindrl.models.description import read_description
from mindrl.models.sharding import full_sharding
from mindrl.tiny.vision.model import (
    build_vision_model,
    build_vision_tokenizer,
    save_vision_model,
)

MakeModel = Callable[..., Path]


def export(
    source: Path, target: Path, names: Sequence[str], shard_bytes: int, dtype: DType = "float32"
) -> None:
    """Write the tensors of a folder in the order of their names."""
    model = read_any_description(str(source))
    table = full_sharding(model, world_size=1, holders=[0], dtype=dtype).table(0)
    tensors = load_file(source / "model.safetensors")
    with exported_model(str(source), target, table, dtype=dtype, shard_bytes=shard_bytes) as sink:
        for name in names:
            sink.open(name).copy_(tensors[name])
        for name in names:
            sink.close(name)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_files_do_not_depend_on_the_order_in_which_the_tensors_come(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source = random_model_of("qwen3")
    names = list(load_file(source / "model.safetensors"))
    export(source, tmp_path / "forwards", names, 600_000)
    export(source, tmp_path / "backwards", names[::-1], 600_000)
    forwards = contents(tmp_path / "forwards")
    assert forwards == contents(tmp_path / "backwards")
    sizes = {name: len(data) for name, data in forwards.items() if name.endswith(".safetensors")}
    assert len(sizes) == 5
    # A header is some kilobytes.
    assert max(sizes.values()) < 600_000 + 4096
    index = json.loads(forwards[INDEX_FILE])
    assert set(index["weight_map"].values()) == set(sizes)
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "forwards" / file, framework="np") as opened:
            assert name in opened.keys()  # noqa: SIM118 - no mapping


def test_one_file_is_the_file_of_safetensors_itself_to_the_bit(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source = random_model_of("qwen3")
    export(source, tmp_path / "new", list(load_file(source / "model.safetensors")), 1 << 30)
    ours, theirs = (folder / "model.safetensors" for folder in (tmp_path / "new", source))
    assert ours.read_bytes() == theirs.read_bytes()


def test_bfloat16_is_what_torch_rounds_to(random_model_of: MakeModel, tmp_path: Path) -> None:
    source = random_model_of("qwen3")
    before = load_file(source / "model.safetensors")
    export(source, tmp_path / "new", list(before), 1 << 30, "bfloat16")
    after = load_file(tmp_path / "new" / "model.safetensors")
    assert all(torch.equal(after[name], before[name].bfloat16()) for name in before)
    assert json.loads((tmp_path / "new" / "config.json").read_text())["dtype"] == "bfloat16"


def test_any_vocabulary_and_the_code_of_the_author_come_along(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(random_model_of("qwen3"), source)
    names = ("tiktoken.model", "vocab.txt", "qwen.tiktoken", "tokenization_own.py")
    for name in names:
        (source / name).write_text(name)
    export(source, tmp_path / "new", [*load_file(source / "model.safetensors")], 1 << 30)
    assert [(tmp_path / "new" / name).read_text() for name in names] == [*names]


def copied(model: Path, folder: Path) -> tuple[Path, list[str]]:
    """Copy a model's folder; return the copy and the names of the model's tensors."""
    shutil.copytree(model, folder)
    return folder, [*load_file(folder / "model.safetensors")]


def add_layers_that_draft(folder: Path) -> dict[str, torch.Tensor]:
    """Add a fifth layer and a tensor named as in Qwen3-Next to a model of four; return them."""
    whole = load_file(folder / "model.safetensors")
    drafts = {
        name.replace(".3.", ".4."): each.bfloat16() + 1
        for name, each in whole.items()
        if name.startswith("model.layers.3.")
    } | {"mtp.fc.weight": torch.ones(2, 3)}
    save_file(whole | drafts, folder / "model.safetensors", metadata={"format": "pt"})
    return drafts


def test_layers_that_draft_tokens_come_along_to_the_bit_and_an_unused_head_does_not(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source, names = copied(random_model_of("qwen3"), tmp_path / "source")
    drafts = add_layers_that_draft(source)
    values = json.loads((source / "config.json").read_text("utf-8"))
    write_json(source / "config.json", values | {"tie_word_embeddings": True})
    names.remove("lm_head.weight")
    export(source, tmp_path / "new", names, 1 << 30)
    assert load_file(tmp_path / "new" / "model-00001-of-00001.safetensors").keys() == {*names}
    kept = load_file(tmp_path / "new" / "model-kept.safetensors")
    assert kept.keys() == drafts.keys()
    for name, each in drafts.items():
        assert each.dtype == kept[name].dtype
        assert torch.equal(each, kept[name])
    index = json.loads((tmp_path / "new" / INDEX_FILE).read_text("utf-8"))["weight_map"]
    assert index.keys() == {*names, *drafts}
    assert read_description(str(tmp_path / "new")) == read_description(str(source))


def test_without_an_index_only_files_of_the_model_come_along(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source, names = copied(random_model_of("qwen3"), tmp_path / "source")
    for name in ("consolidated", "adapter_model", "model-drafts"):
        save_file({f"{name}.weight": torch.ones(2)}, source / f"{name}.safetensors")
    export(source, tmp_path / "new", names, 1 << 30)
    kept = load_file(tmp_path / "new" / "model-kept.safetensors")
    assert kept.keys() == {"model-drafts.weight"}
    # An index says that a file is the model's.
    files = dict.fromkeys(names, "model.safetensors") | {
        "consolidated.weight": "consolidated.safetensors"
    }
    write_json(source / INDEX_FILE, {"weight_map": files})
    export(source, tmp_path / "indexed", names, 1 << 30)
    kept = load_file(tmp_path / "indexed" / "model-kept.safetensors")
    assert kept.keys() == {"consolidated.weight"}


def test_an_export_has_the_tokenizer_and_the_chat_template_of_its_run(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source, tokenizer, target = (tmp_path / name for name in ("source", "tokenizer", "new"))
    shutil.copytree(random_model_of("qwen3"), source)
    for name in ("vocab.json", "chat_template.json", "generation_config.json", "modeling_own.py"):
        (source / name).write_text("{}", "utf-8")
    build_vision_tokenizer().save_pretrained(tokenizer)
    (tokenizer / "modeling_own.py").write_text("of another model", "utf-8")
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }}!", "utf-8")
    run = RunTokenizer(folder=str(tokenizer), chat_template=str(template))
    with new_folder(str(source), target, dtype="float32", held=(), tokenizer=run):
        pass
    found = AutoTokenizer.from_pretrained(target)
    assert found.get_vocab() == build_vision_tokenizer().get_vocab()
    chat = [{"role": "user", "content": "2+2"}]
    assert found.apply_chat_template(chat, tokenize=False) == "2+2!"
    # The model's own: neither a second vocabulary, nor the template that processors read first.
    assert not {"vocab.json", "chat_template.json"} & contents(target).keys()
    for name in ("modeling_own.py", "generation_config.json"):
        assert contents(target)[name] == b"{}"
    template.unlink()
    again = new_folder(str(source), target, dtype="float32", held=(), tokenizer=run)
    with pytest.raises(OutputError, match=r"chat_template=.*template\.jinja: no such file"), again:
        pass
    shutil.rmtree(tokenizer)
    with pytest.raises(ModelError, match=r"tokenizer_name_or_path=.*: no such folder"):
        run.check()


def test_an_export_that_fails_leaves_nothing_behind(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source = random_model_of("qwen3")
    names = list(load_file(source / "model.safetensors"))
    with pytest.raises(AssertionError, match="1 tensors were not sent"):
        export(source, tmp_path / "new", names[1:], 1 << 30)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot export the model to"):
        export(source, tmp_path / "file" / "new", names, 1 << 30)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_critic_is_written_as_a_classifier_of_tokens_with_one_label_and_no_bias(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source = random_model_of("qwen3")
    model = read_description(str(source))
    sharding = full_sharding(model, world_size=1, holders=[0], dtype="float32", head="value")
    with exported_model(
        str(source), tmp_path / "critic", sharding.table(0), dtype="float32"
    ) as sink:
        for name in sharding.table(0):
            sink.open(name).zero_()
            sink.close(name)
    before = json.loads((source / "config.json").read_text("utf-8"))
    after = json.loads((tmp_path / "critic" / "config.json").read_text("utf-8"))
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    assert before["architectures"] == ["Qwen3ForCausalLM"]
    assert changed == {
        "architectures": ["Qwen3ForTokenClassification"],
        "id2label": {"0": "value"},
        "label2id": {"value": 0},
        "token_classification_bias": False,
    }
    assert read_description(str(tmp_path / "critic")) == model


def test_a_record_lies_in_the_folder_and_does_not_travel_with_a_conversion(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source = random_model_of("qwen3")
    names = list(load_file(source / "model.safetensors"))
    export(source, tmp_path / "new", names, 1 << 30)
    write_json(tmp_path / "new" / EXPORT_FILE, {"step": 3, "seed": 1})
    # Whatever reads the folder passes it by.
    assert read_description(str(tmp_path / "new")) == read_description(str(source))
    export(tmp_path / "new", tmp_path / "again", names, 1 << 30)
    assert not (tmp_path / "again" / "mindrl_export.json").exists()


def test_an_export_of_a_model_with_a_tower_loads_again_with_its_image_processor(
    tmp_path: Path,
) -> None:
    tokenizer, source, target = build_vision_tokenizer(), tmp_path / "source", tmp_path / "new"
    save_vision_model(build_vision_model(tokenizer, 3), tokenizer, source)
    names = list(load_file(source / "model.safetensors"))
    export(source, target, names, 1 << 30)
    # Those of published folders, which have two more files.
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        (source / name).write_text("{}", encoding="utf-8")
    export(source, tmp_path / "published", names, 1 << 30)
    lacking = {each.name for each in source.iterdir()} - {
        each.name for each in (tmp_path / "published").iterdir()
    }
    assert lacking == set()
    found = AutoModelForImageTextToText.from_pretrained(target).state_dict()
    expected = AutoModelForImageTextToText.from_pretrained(source).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert type(AutoProcessor.from_pretrained(target)).__name__ == "Qwen2_5_VLProcessor"


def test_a_kept_export_shares_its_files_and_outlives_the_one_it_was_made_of(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source = random_model_of("qwen3")
    names = list(load_file(source / "model.safetensors"))
    export(source, tmp_path / "model", names, 1 << 30)
    before = contents(tmp_path / "model")
    keep_folder(tmp_path / "model", tmp_path / "model_best")
    assert (tmp_path / "model_best" / "model.safetensors").samefile(
        tmp_path / "model" / "model.safetensors"
    )
    export(source, tmp_path / "model", names, 1 << 30, "bfloat16")
    assert contents(tmp_path / "model_best") == before != contents(tmp_path / "model")
    # A second one replaces the first.
    keep_folder(tmp_path / "model", tmp_path / "model_best")
    assert contents(tmp_path / "model_best") == contents(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model_best"]
    with pytest.raises(OutputError, match=r"cannot keep .*/none as .*/model_best: .*No such file"):
        keep_folder(tmp_path / "none", tmp_path / "model_best")
    assert contents(tmp_path / "model_best") == contents(tmp_path / "model")
