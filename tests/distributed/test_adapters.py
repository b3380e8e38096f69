"""Adapters of each training engine against PEFT's on Hugging Face's model.

Shapes: B sequences, T positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from adapter_messages import Adapted
from assembly import assert_moved_alike, put_together
from forked_workers import ForkedWorkers
from nightly import at_night_but
from safetensors.torch import load_file, save_file
from state_messages import Kept
from test_training import MakeModel, hugging_face, minibatches, plain_updates
from test_training_state import whole
from torch import Tensor, nn
from training_messages import LOSS, OPTIMIZER, Case, Course
from transformers import AutoModelForCausalLM

from mindrl.batch.balance import MicroBatching
from mindrl.checkpoint.adapter_folder import WEIGHTS_FILE
from mindrl.config.archon import ArchonConfig
from mindrl.config.backends import TrainingBackend
from mindrl.config.lora import LINEARS
from mindrl.layouts.layout import TrainLayout
from mindrl.models.adapters import LowRank, adapter_sharding, factor_shapes
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import read_description
from mindrl.training.megatron.sharding import megatron_sharding
from mindrl.training.planning import Storage, planning_of

pytestmark = pytest.mark.distributed

EVERY_CHANGE = ("TP2 with cut sequences", "some layers, DP2", "archon DP2 TP2", "fsdp TP2")
SOME = ("q_proj", "v_proj", "down_proj")
LAYOUTS: Mapping[str, tuple[TrainLayout, bool, tuple[str, ...]]] = {
    "alone": (TrainLayout(), False, LINEARS),
    "TP2": (TrainLayout(tp=2), False, LINEARS),
    "TP2 with cut sequences": (TrainLayout(tp=2), True, LINEARS),
    "some layers, DP2": (TrainLayout(dp=2), False, SOME),
    "PP2": (TrainLayout(pp=2), False, LINEARS),
    "archon alone": (TrainLayout(), False, LINEARS),
    "archon TP2 with cut sequences": (TrainLayout(tp=2), True, LINEARS),
    # More ranks than key-value heads.
    "archon TP4": (TrainLayout(tp=4), False, LINEARS),
    "archon some layers, r=3, DP2": (TrainLayout(dp=2), False, SOME),
    "archon two copies, DP4": (TrainLayout(dp=4), False, SOME),
    "archon CP2": (TrainLayout(cp=2), False, LINEARS),
    "archon PP2": (TrainLayout(pp=2), False, LINEARS),
    "archon DP2 TP2": (TrainLayout(dp=2, tp=2), True, LINEARS),
    "fsdp DP2": (TrainLayout(dp=2), False, LINEARS),
    "fsdp TP2": (TrainLayout(tp=2), False, LINEARS),
}


EVERY = LowRank(r=4, alpha=8.0, targets=LINEARS)


def with_adapters(
    folder: Path, targets: tuple[str, ...], target: Path, r: int = 4
) -> tuple[Any, Path]:
    """Put PEFT's adapters on a model, with factors that both add something; keep them."""
    torch.manual_seed(3)
    model = hugging_face(folder)
    here = [name for name in targets if any(name in module for module, _ in model.named_modules())]
    config = peft.LoraConfig(r=r, lora_alpha=8, target_modules=here, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config)
    for name, factor in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(factor, std=0.05)
    adapted.save_pretrained(target)
    return adapted, target


def engine_of(way: str) -> TrainingBackend:
    first: Any = way.partition(" ")[0]
    return first if first in ("archon", "fsdp") else "megatron"


def factors_of(model: Any) -> dict[str, Tensor]:
    return {
        name.replace(".default", ""): factor.detach().clone()
        for name, factor in model.named_parameters()
        if "lora_" in name
    }


@pytest.mark.parametrize("way", at_night_but(EVERY_CHANGE, LAYOUTS))
def test_losses_and_factors_are_those_of_peft(
    way: str, forked_workers: ForkedWorkers, random_model: MakeModel, tmp_path: Path
) -> None:
    layout, sequence_parallel, targets = LAYOUTS[way]
    # Tied, where the stages that have the embedding differ.
    folder = random_model("PP2" in way)
    r = 3 if "r=3" in way else 4
    model, adapters = with_adapters(folder, targets, tmp_path / "adapters", r)
    before = factors_of(model)
    batches = minibatches(hugging_face(folder)) + minibatches(hugging_face(folder))
    low_rank, backend = LowRank(r=r, alpha=8.0, targets=targets), engine_of(way)
    fsdp_size = 2 if "two copies" in way else None
    settings = {
        "low_rank": low_rank,
        "adapter_folder": str(adapters),
        "archon": ArchonConfig(fsdp_size=fsdp_size),
    }
    case = Case(
        folder=str(folder),
        backend=backend,
        layout=layout,
        sequence_parallel=sequence_parallel,
        settings=settings,
    )
    course = Course(
        minibatches=batches,
        loss=LOSS,
        optimizer=OPTIMIZER,
        micro_batching=MicroBatching(sequences=2),
    )

    replies: list[Adapted] = forked_workers.run(
        "adapter_probe:learned", case, course, ranks=layout.world_size
    )

    metrics, _ = plain_updates(model, batches)
    # The last stage alone knows the loss.
    for found in replies[-layout.world_size // layout.pp :]:
        for ours, theirs in zip(found.metrics, metrics, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    description = read_description(str(folder))
    engine = planning_of(backend)
    base = engine.sharding(description, layout, Storage(dtype="float32", fsdp_size=fsdp_size))
    together = put_together(
        engine.adapters(description, layout, low_rank, base=base, fsdp_size=fsdp_size).trained,
        factor_shapes(description, low_rank),
        [found.factors for found in replies],
    )
    assert_moved_alike(together, factors_of(model), before, least=1e-4)
    merged = put_together(base, logical_shapes(description), [found.merged for found in replies])
    theirs = model.merge_and_unload().state_dict()
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, theirs[name], atol=2e-5, rtol=0)
    stayed = put_together(base, logical_shapes(description), [found.base for found in replies])
    for name, tensor in load_file(folder / "model.safetensors").items():
        assert torch.equal(stayed[name], tensor), name


class WithProducts(nn.Module):
    """A model of Hugging Face with W + scale * B A in the place of each adapted W.

    PEFT has one A for the gate and what lies beside it, which Hugging Face fuses in an expert.
    """

    def __init__(self, model: nn.Module, factors: Mapping[str, Tensor], scale: float) -> None:
        super().__init__()
        self.base, self.scale = [model.requires_grad_(requires_grad=False)], scale
        self.factors = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(each.clone()) for name, each in factors.items()}
        )

    def forward(self, tokens_BT: Tensor) -> Any:
        (model,) = self.base
        weights = dict(model.named_parameters())
        used = {}
        for name, weight in weights.items():
            stem = name.removesuffix(".weight")
            if name.endswith("experts.gate_up_proj"):
                here = name.removesuffix("gate_up_proj")
                fused = [
                    self.product(f"{here}{index}.{each}_proj")
                    for index in range(len(weight))
                    for each in ("gate", "up")
                ]
                used[name] = weight + torch.cat(fused).view_as(weight)
            elif name.endswith("experts.down_proj"):
                here = name.removesuffix("down_proj")
                parts = [self.product(f"{here}{index}.down_proj") for index in range(len(weight))]
                used[name] = weight + torch.stack(parts)
            elif f"base_model/model/{stem}/lora_A/weight".replace(".", "/") in self.factors:
                used[name] = weight + self.product(stem)
        return torch.func.functional_call(model, used, (tokens_BT,))

    def product(self, stem: str) -> Tensor:
        first, second = (
            self.factors[f"base_model.model.{stem}.lora_{kind}.weight".replace(".", "/")]
            for kind in "AB"
        )
        return self.scale * (second @ first)

    def found(self) -> dict[str, Tensor]:
        """Return copies of the factors, by their names."""
        return {
            name.replace("/", "."): each.detach().clone() for name, each in self.factors.items()
        }


def test_adapters_of_experts_learn_as_products_of_their_factors_do(
    forked_workers: ForkedWorkers, random_model_of: Callable[..., Path], tmp_path: Path
) -> None:
    folder = random_model_of("qwen3_moe")
    description = read_description(str(folder))
    shapes = factor_shapes(description, EVERY)
    torch.manual_seed(4)
    factors = {name: torch.randn(shape) * 0.05 for name, shape in shapes.items()}
    save_file(factors, tmp_path / WEIGHTS_FILE)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    batches = minibatches(model) * 2
    plain = WithProducts(model, factors, EVERY.scale)
    layout = TrainLayout(dp=2, ep=2)
    course = Course(
        minibatches=batches,
        loss=LOSS,
        optimizer=OPTIMIZER,
        micro_batching=MicroBatching(sequences=2),
    )
    settings = {"low_rank": EVERY, "adapter_folder": str(tmp_path)}
    case = Case(folder=str(folder), layout=layout, settings=settings)

    replies: list[Adapted] = forked_workers.run("adapter_probe:learned", case, course, ranks=2)

    metrics, _ = plain_updates(plain, batches)
    for found in replies:
        for ours, theirs in zip(found.metrics, metrics, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    base = megatron_sharding(description, layout, dtype="float32")
    together = put_together(
        adapter_sharding(base, EVERY), shapes, [found.factors for found in replies]
    )
    assert_moved_alike(together, plain.found(), factors)


def test_what_is_dropped_hangs_on_no_layout_and_what_is_made_again_is_the_same(
    forked_workers: ForkedWorkers, random_model: MakeModel
) -> None:
    folder = str(random_model(False))
    batches = minibatches(hugging_face(Path(folder)))
    course = Course(
        # 26 tokens, which two ranks share without padding: that would be drawn for too.
        minibatches=[each.rows(torch.tensor([1, 2])) for each in batches],
        loss=LOSS,
        optimizer=OPTIMIZER,
        micro_batching=MicroBatching(sequences=4),
    )
    again = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }

    def losses(layout: TrainLayout, dropout: float, more: Mapping[str, Any]) -> list[Any]:
        settings = {"low_rank": replace(EVERY, dropout=dropout), **more}
        case = Case(
            folder=folder, layout=layout, sequence_parallel=layout.tp > 1, settings=settings
        )
        replies: list[Adapted] = forked_workers.run(
            "adapter_probe:learned", case, course, ranks=layout.world_size
        )
        return replies[0].metrics

    without, with_some = (losses(TrainLayout(), share, {}) for share in (0.0, 0.3))
    assert with_some != without
    for other in (losses(TrainLayout(), 0.3, again), losses(TrainLayout(tp=2), 0.3, {})):
        for ours, theirs in zip(other, with_some, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("before", "after", "backends"),
    at_night_but(
        [({"tp": 2}, {"dp": 2}, ("megatron", "megatron"))],
        [
            ({"tp": 2}, {"dp": 2}, ("megatron", "megatron")),
            ({"dp": 2}, {"pp": 2}, ("megatron", "megatron")),
            ({"tp": 2}, {"dp": 2}, ("archon", "archon")),
            ({"dp": 2}, {"tp": 2}, ("fsdp", "megatron")),
        ],
    ),
)
def test_a_checkpoint_holds_the_factors_alone_for_any_layout(
    before: dict[str, int],
    after: dict[str, int],
    backends: tuple[TrainingBackend, TrainingBackend],
    forked_workers: ForkedWorkers,
    random_model: MakeModel,
    tmp_path: Path,
) -> None:
    folder = random_model(False)
    batches = minibatches(hugging_face(folder)) * 2
    course = Course(
        minibatches=batches,
        loss=LOSS,
        optimizer=OPTIMIZER,
        micro_batching=MicroBatching(sequences=2),
    )

    def run(function: str, layout: Mapping[str, int], backend: TrainingBackend) -> list[Kept]:
        made, settings = TrainLayout(**layout), {"low_rank": EVERY}
        case = Case(folder=str(folder), layout=made, backend=backend, settings=settings)
        return forked_workers.run(
            f"state_probe:{function}", case, course, str(tmp_path), 2, ranks=made.world_size
        )

    straight, resumed = run("save", before, backends[0]), run("load", after, backends[1])
    shapes = factor_shapes(read_description(str(folder)), EVERY)
    ours, theirs = whole(tmp_path / "again"), whole(tmp_path)
    assert {name.partition(" ")[2] for name in theirs} == shapes.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    for found, expected in zip(resumed[-1].metrics, straight[-1].metrics[2:], strict=True):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
