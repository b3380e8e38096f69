"""Rank files: which ranks have one, the content of layout.json, and refusals."""

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from mindrl.checkpoint.conversion import Conversion, convert
from mindrl.checkpoint.rank_files import (
    LAYOUT_FILE,
    CutModel,
    open_rank_files,
    rank_files,
    read_layout,
    writing_ranks,
)
from mindrl.errors import InterruptedRunError, ModelError
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import read_description
from mindrl.models.sharding import Sharding, full_sharding
from mindrl.training.megatron.sharding import megatron_sharding

MakeModel = Callable[..., Path]
LAYOUT = TrainLayout(tp=2, pp=2, dp=2)


def side_of(folder: Path, layout: TrainLayout) -> Sharding:
    return megatron_sharding(read_description(str(folder)), layout, dtype="float32")


def test_replicas_share_the_file_of_the_first_of_them(random_model_of: MakeModel) -> None:
    """Of 8 ranks TP2 DP2 PP2, ranks 2, 3, 6 and 7 hold what 0, 1, 4 and 5 hold."""
    sharding = side_of(random_model_of("qwen3"), LAYOUT)
    assert writing_ranks(sharding) == (0, 1, 4, 5)
    numbers = [int(name[5:10]) for name in rank_files(sharding)]
    assert numbers == [0, 1, 0, 1, 4, 5, 4, 5]
    assert rank_files(sharding)[3] == "rank-00001-of-00008.safetensors"


def test_expert_parallel_ranks_have_files_of_their_own(random_model_of: MakeModel) -> None:
    """Of 4 ranks DP4 EP2, ranks 2 and 3 hold the experts of 0 and 1."""
    folder = random_model_of("qwen3_moe")
    assert writing_ranks(side_of(folder, TrainLayout(dp=4, ep=2))) == (0, 1)
    assert writing_ranks(side_of(folder, TrainLayout(dp=4, ep=4))) == (0, 1, 2, 3)


def conversion_of(source: Path, target: Path, layout: TrainLayout | None) -> Conversion:
    model = read_description(str(source))
    return Conversion(
        source=str(source),
        source_sharding=None,
        target=target,
        target_sharding=megatron_sharding(model, layout, dtype="float32")
        if layout
        else full_sharding(model, world_size=1, holders=[0], dtype="float32"),
        layout=layout,
        shard_bytes=600_000,
    )


@pytest.mark.parametrize("layout", [LAYOUT, None])
def test_a_conversion_that_is_stopped_leaves_nothing_behind(
    layout: TrainLayout | None, random_model_of: MakeModel, tmp_path: Path
) -> None:
    written: list[int] = []

    def stop(size: int) -> None:
        written.append(size)
        if len(written) == 20:
            raise InterruptedRunError("stopped by SIGINT")

    conversion = conversion_of(random_model_of("qwen3"), tmp_path / "new", layout)
    with pytest.raises(InterruptedRunError):
        convert(conversion, stop)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def cut(random_model_of: MakeModel, tmp_path: Path) -> Path:
    """A Qwen3 of 4 layers in the files of 8 ranks."""
    target = tmp_path / "cut"
    conversion = conversion_of(random_model_of("qwen3"), target, LAYOUT)
    written: list[int] = []
    convert(conversion, written.append)
    assert sum(written) == conversion.total_bytes
    return target


def test_layout_json_gives_back_the_layout_and_names_the_files_there_are(cut: Path) -> None:
    assert read_layout(str(cut)) == CutModel(layout=LAYOUT, backend="megatron", dtype="float32")
    values = json.loads((cut / LAYOUT_FILE).read_text("utf-8"))
    assert values["layout"] == "megatron:d2p2t2"
    assert len(values["files"]) == 8
    assert set(values["files"]) == {path.name for path in cut.glob("*.safetensors")}


def test_a_rank_file_holds_what_its_table_says(cut: Path) -> None:
    tensors = load_file(cut / "rank-00005-of-00008.safetensors")
    # The second half of 211 tokens padded to 212, on the last of two stages.
    assert tensors["chunk0.output_layer.weight"].shape == (106, 128)
    assert not tensors["chunk0.output_layer.weight"][105].any()
    assert "chunk0.embedding.word_embeddings.weight" not in tensors
    table = side_of(cut, LAYOUT).table(5)
    assert {name: array.shape for name, array in tensors.items()} == {
        name: entry.shape for name, entry in table.items()
    }


def refusal(folder: Path) -> str:
    sharding = side_of(folder, read_layout(str(folder)).layout)
    with ExitStack() as stack, pytest.raises(ModelError) as caught:
        open_rank_files(str(folder), sharding, stack, framework="np")
    return str(caught.value)


def test_a_rank_file_that_is_missing_cut_off_or_another_ranks_is_named(cut: Path) -> None:
    first, last = (cut / f"rank-0000{rank}-of-00008.safetensors" for rank in (0, 5))
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    assert refusal(cut) == (
        f"cannot read {last}: it is truncated: {len(whole) - 1} of {len(whole)} bytes; "
        "the first incomplete tensor is chunk0.output_layer.weight"
    )
    shutil.copyfile(first, last)
    assert refusal(cut) == (
        f"{last}: no tensor chunk0.decoder.final_layernorm.weight; config.json needs [128]"
    )
    tensors = load_file(first)
    name = "chunk0.decoder.layers.1.mlp.linear_fc1.weight"
    save_file(tensors | {name: tensors[name][1:]}, first)
    assert refusal(cut) == (
        f"{first}: tensor {name} has shape [255, 128]; config.json needs [256, 128]"
    )
    first.unlink()
    assert refusal(cut) == f"{first} is missing; layout.json requires it"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, ": version=2 must be 1"),
        ({"dtype": "float16"}, ": dtype='float16' must be one of float32, bfloat16"),
        (
            {"layout": "vllm:t2"},
            ": layout=vllm:t2, character 1: 'vllm' cannot be used on this side",
        ),
        ({"head": "score"}, ": head='score' must be one of vocabulary, value"),
        ({"layout": None}, ": layout=None, character 1: the backend is missing"),
        ({"layers_per_chunk": [1, 0]}, ": layers_per_chunk=[1, 0] must be null or a list"),
    ],
)
def test_a_layout_json_that_makes_no_sense_is_refused_by_field(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    values = {"version": 1, "layout": "megatron:t2", "layers_per_chunk": None, "dtype": "float32"}
    (tmp_path / LAYOUT_FILE).write_text(json.dumps(values | change))
    with pytest.raises(ModelError) as caught:
        read_layout(str(tmp_path))
    assert str(caught.value).startswith(f"{tmp_path / LAYOUT_FILE}{words}")


def test_a_layout_json_that_is_no_json_object_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / LAYOUT_FILE
    path.write_text("[1]")
    with pytest.raises(ModelError, match=r"layout\.json: version=None must be 1"):
        read_layout(str(tmp_path))
    path.write_text("{")
    with pytest.raises(ModelError, match=r"cannot read .*layout\.json: "):
        read_layout(str(tmp_path))
