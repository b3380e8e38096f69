"""What the PyTorch-native engine demands of a model, each demand with its whole message."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from geometry import models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import ModelDescription, read_description
from mindrl.training.archon.legality import archon_findings, archon_orders
from mindrl.training.archon.sharding import archon_sharding

MODELS = Path(__file__).parents[4] / "configs" / "models"
KEYS = {
    "tp": "train.tp",
    "cp": "train.cp",
    "pp": "train.pp",
    "vpp": "train.vpp",
    "ep": "train.ep",
    "etp": "train.etp",
    "layers_per_chunk": "train.layers",
    "backend": "train.backend",
}


def described(name: str, **changes: Any) -> ModelDescription:
    return replace(read_description(str(MODELS / name), to_plan=True), **changes)


def trains(model: ModelDescription, **sizes: Any) -> list[str]:
    return [str(each) for each in archon_findings(model, TrainLayout(**sizes), KEYS)]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("Qwen3-8B", {"dp": 4, "pp": 2, "tp": 2}),
        # Eight key-value heads: 16 ranks have each twice; 36 layers in 4 chunks.
        ("Qwen3-8B", {"tp": 16, "pp": 2, "vpp": 2, "folds": True, "cp": 2}),
        ("Qwen2.5-7B", {"tp": 4, "dp": 3}),
        ("Llama-3.2-1B", {"tp": 2, "pp": 2, "dp": 2}),
        ("Qwen3-30B-A3B", {"tp": 4, "dp": 8, "ep": 8, "etp": 4}),
        # Experts are cut by more ranks than all else, and by fewer.
        ("Qwen3-30B-A3B", {"tp": 2, "dp": 16, "ep": 8, "etp": 4}),
        ("Qwen3-30B-A3B", {"tp": 4, "dp": 8, "ep": 8, "etp": 2}),
        ("Qwen3-235B-A22B", {"tp": 4, "dp": 16, "ep": 64, "pp": 2}),
    ],
)
def test_layouts_that_people_run_these_models_with_are_legal(
    name: str, sizes: dict[str, Any]
) -> None:
    assert trains(described(name), **sizes) == []


@pytest.mark.parametrize(
    ("name", "sizes", "found"),
    [
        ("phi-4", {}, ["train.backend: fused projections need megatron"]),
        (
            "DeepSeek-V3",
            {},
            [
                (
                    "train.backend: latent attention, shared experts, a bias of expert "
                    "routing, expert groups need megatron"
                )
            ],
        ),
        (
            "Qwen2.5-7B",
            {"tp": 8},
            ["train.tp=8 must divide num_attention_heads=28; nearest: 7, 14"],
        ),
        (
            "Qwen2.5-7B",
            {"tp": 2, "cp": 4},
            [
                (
                    "train.cp=4 must divide the attention heads of a tensor-parallel rank=14; "
                    "nearest: 2, 7"
                )
            ],
        ),
        (
            "Qwen2.5-7B",
            {"pp": 3},
            ["train.pp=3 must divide num_hidden_layers=28; nearest: 2, 4; or give train.layers"],
        ),
        (
            "Qwen2.5-7B",
            {"pp": 2, "layers_per_chunk": (14, 13)},
            ["train.layers=14,13 must be 2 numbers from 1 with the sum num_hidden_layers=28"],
        ),
        ("Qwen2.5-7B", {"vpp": 2}, ["train.vpp=2 needs train.pp of 2 or more, found 1"]),
        (
            "Qwen2.5-7B",
            {"dp": 2, "ep": 2},
            ["train.ep=2 needs a model with experts; use 1"],
        ),
        (
            "Qwen3-30B-A3B",
            {"dp": 3, "ep": 3},
            ["train.ep=3 must divide num_experts=128; nearest: 2, 4"],
        ),
        (
            "Qwen3-30B-A3B",
            {"tp": 4, "dp": 5, "etp": 5},
            ["train.etp=5 must divide moe_intermediate_size=768; nearest: 4, 6"],
        ),
    ],
)
def test_what_is_not_is_refused_with_the_nearest_legal_values(
    name: str, sizes: dict[str, Any], found: list[str]
) -> None:
    assert trains(described(name), **sizes) == found


def test_a_finding_names_what_could_be_there_instead() -> None:
    (one,) = archon_findings(described("phi-4"), TrainLayout(), KEYS)
    assert (one.field, one.legal) == ("train.backend", ("megatron",))
    model = described("Qwen3-30B-A3B")
    (other,) = archon_findings(model, TrainLayout(tp=4, dp=5, etp=5), KEYS)
    assert (other.field, other.value, other.legal[:2]) == ("train.etp", 5, (6, 4))


def test_rows_belong_to_a_place_only_where_the_ranks_of_a_replica_follow_each_other() -> None:
    def neighbours(**sizes: int) -> set[str]:
        """Return in which dimension rank 1 differs from rank 0."""
        found = set()
        for order in archon_orders(TrainLayout(**sizes).dense_order, 4):
            found |= {name for name, at in order.coordinates[1].items() if at}
        return found

    assert neighbours(cp=2, dp=2) == {"cp"}
    assert neighbours(tp=2, dp=2) == {"tp", "dp"}


@given(data=st.data())
def test_a_place_of_the_grid_has_the_same_shard_in_every_legal_order(data: st.DataObject) -> None:
    model = described("Qwen3-30B-A3B", num_hidden_layers=2)
    sizes = data.draw(st.sampled_from([(2, 2, 2), (1, 2, 4), (2, 1, 4), (1, 4, 2)]))
    layout = TrainLayout(tp=sizes[0], cp=sizes[1], dp=sizes[2], ep=4, etp=sizes[0])

    def held(one: TrainLayout) -> dict[frozenset[tuple[str, int]], str]:
        rows = zip(one.dense_order.coordinates, archon_sharding(model, one).held_by, strict=True)
        return {frozenset(place.items()): names[0] for place, names in rows}

    order = data.draw(st.sampled_from([*archon_orders(layout.dense_order, 8)]))
    assert isinstance(order, RankOrder)
    assert held(replace(layout, order=order)) == held(layout)


# Of tp, cp, pp, vpp, ep and etp: about one draw in seven is legal.
SIZES = st.tuples(*map(st.sampled_from, [(1, 2, 3, 5), (1, 2), (1, 2), (1, 2), (1, 2, 3), (1, 2)]))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(model=models(("qwen2", "qwen3", "qwen3_moe")), sizes=SIZES)
def test_a_layout_without_findings_has_tables_of_every_tensor(
    model: ModelDescription, sizes: tuple[int, ...]
) -> None:
    tp, cp, pp, vpp, ep, etp = sizes
    # Whole grids of experts, as checks of the configuration demand.
    layout = TrainLayout(tp=tp, cp=cp, dp=ep * etp, pp=pp, vpp=vpp, ep=ep, etp=etp)
    if [*archon_findings(model, layout, KEYS)]:
        return
    held = {each.tensor for _, _, each in archon_sharding(model, layout).placements()}
    assert held == logical_shapes(model).keys()
