"""The convert program: files, memory, refusals, help."""

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from user_programs import python, with_torch

ROOT = Path(__file__).parents[3]
MakeModel = Callable[..., Path]
MIB = 1 << 20
# Runs a program and prints by how much it raised its anonymous memory at most, in bytes.
MEASURED = """
import pathlib, runpy, sys, threading
import torch, mindrl.checkpoint.conversion
def anonymous():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024
start, peak, ended = anonymous(), 0, threading.Event()
def watch():
    global peak
    while not ended.wait(0.0005):
        peak = max(peak, anonymous())
watcher = threading.Thread(target=watch)
watcher.start()
sys.argv = sys.argv[1:]
sys.path.insert(0, "cli")
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    ended.set()
    watcher.join()
    print("peak", peak - start)
"""


def convert(source: Path, target: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return with_torch("cli/convert_ckpt.py", "--from", str(source), "--to", str(target), *more)


def test_a_model_goes_to_a_layout_to_another_and_back_to_the_same_bits(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(random_model_of("qwen3_moe"), source)
    (source / "tokenizer.json").write_text("a tokenizer")
    steps = [
        ("first", ["--layout", "megatron:d2t2p2e2"]),
        ("second", ["--layout", "megatron:(attn:d4p2|ffn:t2p2)", "--layers-per-chunk", "1,3"]),
        ("shared", ["--layout", "archon:(attn:d4p2|ffn:t1e2)"]),
        ("third", []),
    ]
    before = source
    for name, more in steps:
        ended = convert(before, tmp_path / name, *more)
        assert (ended.returncode, ended.stderr) == (0, "")
        before = tmp_path / name
    assert ended.stdout.startswith(f"{tmp_path}/third: float32, 1 files, 4.1")
    for name in ("model.safetensors", "tokenizer.json", "generation_config.json"):
        assert (tmp_path / "third" / name).read_bytes() == (source / name).read_bytes()
    assert json.loads((tmp_path / "third" / "config.json").read_text()) == json.loads(
        (source / "config.json").read_text()
    )
    assert len(list((tmp_path / "first").glob("rank-*-of-00008.safetensors"))) == 4
    assert len(list((tmp_path / "shared").glob("rank-*-of-00008.safetensors"))) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "first",
        "second",
        "shared",
        "source",
        "third",
    ]


@pytest.mark.parametrize("role", ["reward", "critic"])
def test_a_model_with_a_score_keeps_it_and_scores_the_same(
    role: str, models: Mapping[str, str], tmp_path: Path
) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    classifiers = (AutoModelForSequenceClassification, AutoModelForTokenClassification)
    classifier = classifiers[role == "critic"]
    before, source = Path(models[role]), Path(models[role])
    for name, more in (
        ("stages", ["--layout", "megatron:t2p2"]),
        ("shares", ["--layout", "archon:d4"]),
        ("again", []),
    ):
        ended = convert(before, tmp_path / name, *more)
        assert (ended.returncode, ended.stderr) == (0, "")
        before = tmp_path / name
    tokens_BT = torch.arange(1, 25)[None]
    both = (classifier.from_pretrained(folder).eval() for folder in (source, before))
    with torch.no_grad():
        scores, again = (model(tokens_BT).logits for model in both)
    assert scores.abs().min() > 0
    assert torch.equal(again, scores)
    assert "score.weight" in load_file(before / "model.safetensors")
    configs = (json.loads((folder / "config.json").read_text()) for folder in (source, before))
    old, new = (config["architectures"] for config in configs)
    assert new == old


def test_bfloat16_and_the_size_of_the_files_are_as_asked(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    target = tmp_path / "new"
    # 0.0003 GiB are 322,122 bytes; the model has 1.28 million elements of 2 bytes.
    ended = convert(
        random_model_of("qwen3"), target, "--dtype", "bfloat16", "--shard-gib", "0.0003"
    )
    assert ended.returncode == 0, ended.stderr
    files = sorted(target.glob("*.safetensors"))
    assert len(files) == 5
    for path in files:
        assert path.stat().st_size < 322_122 + 4096
        with safe_open(path, framework="np") as file:
            kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
        assert kinds == {"BF16"}
    assert json.loads((target / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 of 92 MiB in one file, no tensor of more than 2 MiB."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=1024,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=10,
        num_attention_heads=8,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    )
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("large")
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize(
    "more", [["--layout", "megatron:d8"], ["--layout", "megatron:t2"], ["--shard-gib", "0.03"]]
)
def test_memory_holds_a_few_tensors_and_not_a_file(
    more: list[str], large_model: Path, tmp_path: Path
) -> None:
    """The fused gate and up are 4 MiB; files are 92, 46 and 31 MiB."""
    target = tmp_path / "new"
    arguments = ["cli/convert_ckpt.py", "--from", str(large_model), "--to", str(target), *more]
    ended = python("-c", MEASURED, *arguments)
    assert ended.returncode == 0, ended.stderr
    largest = max(path.stat().st_size for path in target.glob("*.safetensors"))
    assert largest > 30 * MIB
    peak = int(ended.stdout.split("peak")[1])
    # The largest tensor, its largest slice, and 18 MiB for tables and the program's own modules.
    assert 0 < peak < (4 + 2 + 18) * MIB


def copied(source: Path, target: Path, **config: Any) -> Path:
    shutil.copytree(source, target)
    values = json.loads((target / "config.json").read_text("utf-8"))
    (target / "config.json").write_text(json.dumps(values | config), "utf-8")
    return target


def refused(code: int, source: Path, target: Path, *more: str) -> list[str]:
    before = sorted(target.parent.rglob("*"))
    ended = convert(source, target, *more)
    assert ended.returncode == code, ended.stderr
    assert sorted(target.parent.rglob("*")) == before
    return ended.stderr.splitlines()


def test_layouts_that_do_not_divide_the_model_are_refused_with_all_findings(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source, target = random_model_of("qwen3"), tmp_path / "new"
    head, near = "error: --layout t=3 must divide", "nearest: 2, 4"
    assert refused(1, source, target, "--layout", "megatron:d2t3p3e2") == [
        f"{head} num_attention_heads=4; {near}",
        f"{head} num_key_value_heads=2 or be a multiple of it; {near}",
        f"{head} intermediate_size=256; {near}",
        f"error: --layout p=3 must divide num_hidden_layers=4; {near}; or give --layers-per-chunk",
        "error: --layout e=2 needs a model with experts; use 1",
    ]
    (error,) = refused(1, source, target, "--layout", "megatron:p2", "--layers-per-chunk", "1,2")
    assert error == (
        "error: --layers-per-chunk=1,2 must be 2 numbers from 1 with the sum num_hidden_layers=4"
    )
    assert refused(2, source, target, "--layout", "vllm:t2") == [
        "error: vllm:t2, character 1: 'vllm' cannot be used on this side; write megatron:t2"
    ]
    assert refused(2, source, target, "--layout", "megatron:d5000") == [
        "error: --layout megatron:d5000: 5000 ranks; the maximum is 4096"
    ]


def test_options_that_do_nothing_are_refused(random_model_of: MakeModel, tmp_path: Path) -> None:
    source, target = random_model_of("qwen3"), tmp_path / "new"
    assert refused(2, source, target, "--layers-per-chunk", "1,3") == [
        "error: --layers-per-chunk needs --layout; add it or remove the option"
    ]
    assert refused(2, source, target, "--shard-gib", "1", "--layout", "megatron:t2") == [
        "error: --shard-gib is for a Hugging Face folder; remove it or --layout"
    ]
    assert refused(2, source, target, "--shard-gib", "0")[-1].endswith("0 must be above 0")


def test_a_target_with_files_in_it_is_refused_and_an_empty_one_is_used(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    source, target = random_model_of("qwen3"), tmp_path / "new"
    target.mkdir()
    assert convert(source, target).returncode == 0
    for taken in (target, target / "config.json"):
        assert refused(1, source, taken) == [
            f"error: --to {taken} exists and is not an empty folder; name a new one"
        ]
    (beside,) = refused(1, source, target / "config.json" / "new")
    assert beside.startswith("error: cannot export the model to ")


def test_sources_that_cannot_be_read_are_refused_by_name(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    good, target = random_model_of("qwen3"), tmp_path / "new"
    none = tmp_path / "none"
    assert refused(2, none, target) == [f"error: model folder {none} does not exist"]
    cut = copied(good, tmp_path / "cut")
    with (cut / "model.safetensors").open("r+b") as file:
        file.truncate(200_000)
    (error,) = refused(2, cut, target)
    assert error.startswith(f"error: cannot read {cut}/model.safetensors: it is truncated: 200000")
    assert "the first incomplete tensor is model." in error
    ranks = tmp_path / "ranks"
    assert convert(good, ranks, "--layout", "megatron:t2").returncode == 0
    with (ranks / "rank-00001-of-00002.safetensors").open("r+b") as file:
        file.truncate(200_000)
    (error,) = refused(2, ranks, target)
    assert "/rank-00001-of-00002.safetensors: it is truncated: 200000" in error
    (ranks / "layout.json").write_text(
        '{"version": 1, "layout": "megatron:t8", "dtype": "float32"}'
    )
    (error,) = refused(2, ranks, target)
    assert error == (
        f"error: {ranks}/layout.json t=8 must divide num_attention_heads=4; nearest: 4"
    )


def test_another_type_is_converted_only_when_it_is_asked_for(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file as load_tensors
    from safetensors.torch import save_file

    half = copied(random_model_of("qwen3"), tmp_path / "half")
    tensors = load_tensors(half / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in tensors.items()}, half / "model.safetensors")
    assert refused(2, half, tmp_path / "new") == [
        f"error: --from {half} has an unsupported type; add --dtype float32 or bfloat16"
    ]
    assert convert(half, tmp_path / "new", "--dtype", "float32").returncode == 0
    found = load_tensors(tmp_path / "new" / "model.safetensors")
    assert all(torch.equal(found[name], tensors[name].half().float()) for name in tensors)


def test_tensors_that_the_model_does_not_ask_for_are_left_out_and_said_to_be(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    tied = copied(random_model_of("qwen3"), tmp_path / "tied", tie_word_embeddings=True)
    ended = convert(tied, tmp_path / "new")
    assert ended.returncode == 0
    assert ended.stderr == (
        "skipped 1 tensors that config.json does not require, the first is lm_head.weight\n"
    )
    assert "lm_head.weight" not in load_file(tmp_path / "new" / "model.safetensors")


def test_a_disk_without_room_is_seen_before_anything_is_written(
    random_model_of: MakeModel, tmp_path: Path
) -> None:
    """Two tensors of 6 TB that are all hole: 12 billion tokens of 128 elements of 4 bytes."""
    rows = 12_000_000_000
    source = copied(random_model_of("qwen3"), tmp_path / "source", vocab_size=rows)
    path = source / "model.safetensors"
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    stop = 0
    for name, entry in header.items():
        if name != "__metadata__":
            if entry["shape"][0] == 211:
                entry["shape"][0] = rows
            size = 4
            for length in entry["shape"]:
                size *= length
            entry["data_offsets"] = [stop, stop + size]
            stop += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with path.open("r+b") as file:
        file.truncate(8 + len(text) + stop)
    (error,) = refused(1, source, tmp_path / "new")
    assert error.startswith(f"error: --to {tmp_path}/new needs 12,288.00 GB; ")
    assert error.endswith(" free")


def test_help_shows_an_example_without_torch() -> None:
    without = "import sys; sys.modules['torch'] = None; sys.argv = ['mindrl', *sys.argv[1:]]\n"
    code = without + "from mindrl.programs.entry import main; main()"
    ended = python("-c", code, "convert-ckpt", "--help")
    assert ended.returncode == 0
    assert "usage: mindrl convert-ckpt" in ended.stdout
    assert "mindrl convert-ckpt --from cut/t4p2 --to models/again" in ended.stdout
    ended = python("-c", code, "convert-ckpt", "--from", "no/folder", "--to", "new")
    assert (ended.returncode, ended.stderr) == (2, "error: model folder no/folder does not exist\n")
