"""From a Hugging Face folder into a layout and back: the same files, the same logits, bit by bit.

Shapes: B sequences, T positions, V the vocabulary.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but
from reshard_messages import Way
from safetensors.torch import load_file
from test_training_latent import MODELS, save_random
from torch import Tensor
from transformers import AutoModelForCausalLM

from mindrl.checkpoint.conversion import Conversion, convert
from mindrl.checkpoint.rank_files import LAYOUT_FILE, read_layout
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.description import read_description
from mindrl.models.sharding import full_sharding
from mindrl.training.megatron.sharding import megatron_sharding

pytestmark = pytest.mark.distributed

MakeModel = Callable[..., Path]
T = TrainLayout
DENSE = [
    (T(tp=2), T(pp=2)),
    # Two key-value heads: each lies on two ranks.
    (T(tp=4, pp=2), T(pp=2, vpp=2, dp=2)),
    (T(pp=2, layers_per_chunk=(1, 3)), T(tp=2, cp=2, dp=2)),
]
EXPERTS = [
    (T(dp=2, ep=2), T(dp=2, etp=2)),
    (T(tp=2, dp=2, pp=2, ep=2), T(dp=4, ep=2, etp=2)),
    (T(tp=2, dp=2, ep=4), T(pp=2, vpp=2, dp=2, ep=2)),
]
LATENT = [
    (T(tp=2, ep=2), T(pp=2)),
    (T(pp=2, layers_per_chunk=(1, 3)), T(dp=2, etp=2)),
    (T(tp=2, pp=2, dp=2, ep=2), T(dp=4, ep=4)),
]
FAMILIES = {
    "qwen2": DENSE,
    "qwen2 tied": DENSE,
    "qwen3": DENSE,
    "llama": DENSE,
    "mistral": DENSE,
    "phi3": DENSE,
    "qwen3_moe": DENSE + EXPERTS,
    "deepseek V2 Lite": LATENT,
    "deepseek V2": LATENT,
    "deepseek V3": LATENT,
}


@pytest.fixture(scope="module")
def model_of(
    random_model_of: MakeModel, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Make a folder of 4 layers with random float32 weights."""

    def make(name: str) -> Path:
        family, _, kind = name.partition(" ")
        if family != "deepseek":
            return random_model_of(family, tied=kind == "tied")
        folder = tmp_path_factory.mktemp("latent")
        save_random(MODELS[kind], folder)
        return folder

    return make


def converted(source: Path, target: Path, layout: TrainLayout | None) -> Path:
    """Convert to a layout, or to a Hugging Face folder with files of at most 600 kB."""
    model = read_description(str(source))
    sharding = None
    if (source / LAYOUT_FILE).exists():
        cut = read_layout(str(source))
        sharding = megatron_sharding(model, cut.layout, dtype=cut.dtype)
    conversion = Conversion(
        source=str(source),
        source_sharding=sharding,
        target=target,
        target_sharding=megatron_sharding(model, layout, dtype="float32")
        if layout
        else full_sharding(model, world_size=1, holders=[0], dtype="float32"),
        layout=layout,
        shard_bytes=600_000,
    )
    convert(conversion, lambda _: None)
    return target


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def logits(folder: Path) -> Tensor:
    """Return [B, T, V] in float32."""
    tokens_BT = torch.arange(24).reshape(2, 12)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits_BTV: Tensor = model(tokens_BT).logits
    return logits_BTV


def check_same_model(folder: Path, source: Path) -> None:
    """Compare the tensors and what transformers makes of them with where they came from."""
    before = load_file(source / "model.safetensors")
    after = {
        name: tensor
        for path in folder.glob("*.safetensors")
        for name, tensor in load_file(path).items()
    }
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert torch.equal(logits(folder), logits(source))


# Tied; with fused files; with experts; with latent attention.
@pytest.mark.parametrize(
    "name", at_night_but(["qwen2 tied", "phi3", "qwen3_moe", "deepseek V3"], FAMILIES)
)
def test_files_go_through_any_two_layouts_and_come_back_to_the_bit(
    name: str, model_of: Callable[[str], Path], tmp_path: Path
) -> None:
    source = model_of(name)
    for index, (first, second) in enumerate(FAMILIES[name]):
        folder = tmp_path / str(index)
        ranks = converted(source, folder / "ranks", first)
        exported = converted(ranks, folder / "exported", None)
        again = converted(exported, folder / "again", second)
        others = converted(again, folder / "others", first)
        assert contents(others) == contents(ranks)
        exported_again = converted(again, folder / "exported again", None)
        assert contents(exported_again) == contents(exported)
        assert len(list(exported.glob("*.safetensors"))) >= 4
        assert json.loads((exported / "config.json").read_text("utf-8")) == json.loads(
            (source / "config.json").read_text("utf-8")
        )
    check_same_model(exported_again, source)


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        pytest.param(
            "qwen2 tied", [T(tp=2, pp=2), T(pp=2, vpp=2, dp=2)], marks=pytest.mark.nightly
        ),
        ("qwen3_moe", [T(tp=2, dp=2, ep=2), T(pp=2, dp=2, ep=2)]),
    ],
)
def test_workers_export_the_file_that_they_imported_whatever_their_layout(
    name: str,
    layouts: Sequence[TrainLayout],
    forked_workers: ForkedWorkers,
    model_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    source = model_of(name)
    targets = [tmp_path / "first", tmp_path / "second"]
    ways = [
        Way(folder=str(folder), train=layout, rollout=RolloutLayout(dp=4))
        for folder, layout in zip([source, targets[0]], layouts, strict=True)
    ]
    paths = [str(target) for target in targets]
    forked_workers.run("round_trip_probe:exported", ways, paths, ranks=4)
    assert contents(targets[1]) == contents(targets[0])
    assert (targets[0] / "model.safetensors").read_bytes() == (
        source / "model.safetensors"
    ).read_bytes()
    check_same_model(targets[1], source)
