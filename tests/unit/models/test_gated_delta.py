"""Gated delta nets: their sizes, and which rows of their tensors a rank holds.

The model: 2 key heads and 4 value heads of 32, hidden size 128, 4 heads of full attention.
"""

import json
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
from placed_rows import rows

from mindrl.checkpoint.any_family import read_any_description
from mindrl.checkpoint.files import tensor_shapes
from mindrl.errors import ModelError
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import read_description
from mindrl.models.placement import volume
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.archon.legality import archon_findings
from mindrl.training.archon.sharding import archon_sharding


def test_the_second_of_two_ranks_has_the_second_half_of_each_kind_of_head(
    random_model_of: Callable[..., Path],
) -> None:
    model = read_any_description(str(random_model_of("qwen3_5_text")))
    table = vllm_sharding(model, RolloutLayout(tp=2), dtype="float32").table(1)
    here = "model.layers.0.linear_attn."
    mixed = [(32, 64), (96, 128), (192, 256)]
    assert rows(table[f"{here}in_proj_qkvz.weight"]) == [
        *(("in_proj_qkv.weight", each) for each in mixed),
        ("in_proj_z.weight", (64, 128)),
    ]
    assert rows(table[f"{here}in_proj_ba.weight"]) == [
        ("in_proj_b.weight", (2, 4)),
        ("in_proj_a.weight", (2, 4)),
    ]
    assert rows(table[f"{here}conv1d.weight"]) == [("conv1d.weight", each) for each in mixed]
    assert rows(table[f"{here}A_log"]) == [("A_log", (2, 4))]
    assert table[f"{here}out_proj.weight"].placements[0].source == ((0, 128), (64, 128))
    # Each query head of full attention has 32 rows, and 32 of the gate of its output.
    queries = table["model.layers.3.self_attn.qkv_proj.weight"].placements[0]
    assert (queries.tensor, queries.source[0]) == (
        "model.layers.3.self_attn.q_proj.weight",
        (128, 256),
    )


@pytest.mark.parametrize("tp", [1, 2])
def test_the_ranks_have_every_number_of_the_model(
    tp: int, random_model_of: Callable[..., Path]
) -> None:
    model = read_any_description(str(random_model_of("qwen3_5_text")))
    sharding = vllm_sharding(model, RolloutLayout(tp=tp), dtype="bfloat16")
    held: Counter[str] = Counter()
    for rank in range(tp):
        for entry in sharding.table(rank).values():
            for each in entry.placements:
                held[each.tensor] += volume(each.source)
    for name, shape in logical_shapes(model).items():
        is_cut = "norm" not in name
        assert held[name] == prod(shape) * (1 if is_cut else tp), name
    # Decays are float32 in an engine of any data type.
    assert sharding.held_bytes()[0] % 4 == 0


def test_mindrls_own_network_has_the_tensors_of_the_folder_and_turns_a_fourth_of_each_head(
    random_model_of: Callable[..., Path],
) -> None:
    folder = str(random_model_of("qwen3_5_text"))
    model, other = read_description(folder), read_any_description(folder)
    assert logical_shapes(model) == tensor_shapes(folder)
    assert (model.delta, model.rotary_width, model.qk_norm) == (other.delta, 8, True)
    assert [model.is_linear(layer) for layer in range(4)] == [True, True, True, False]
    tables = [
        vllm_sharding(each, RolloutLayout(tp=2), dtype="float32").table(1)
        for each in (model, other)
    ]
    assert tables[0] == tables[1]


def test_a_tensor_rank_of_the_trainer_has_some_heads_and_a_shard_some_rows_of_each_kind(
    random_model_of: Callable[..., Path],
) -> None:
    model = read_description(str(random_model_of("qwen3_5_text")))
    here = "model.layers.0.linear_attn."
    ranks = TrainLayout(tp=2, pp=2)
    table = archon_sharding(model, ranks).table(
        ranks.dense_order.coordinates.index({"tp": 1, "cp": 0, "dp": 0, "pp": 0})
    )
    assert [name for name in table if name.startswith("model.layers.2")] == []
    mixed = [(32, 64), (96, 128), (192, 256)]
    for name, width in (("in_proj_qkv.weight", (128,)), ("conv1d.weight", (1, 4))):
        assert rows(table[here + name]) == [(name, each) for each in mixed]
        assert table[here + name].shape == (128, *width)
    assert rows(table[f"{here}in_proj_z.weight"]) == [("in_proj_z.weight", (64, 128))]
    for name in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        assert rows(table[here + name]) == [(name, (2, 4))]
    assert table[f"{here}out_proj.weight"].placements[0].source == ((0, 128), (64, 128))
    assert rows(table[f"{here}norm.weight"]) == [("norm.weight", (0, 32))]
    # FSDP2 cuts the 128 rows of the first tensor rank: after 43 of 3 shards, 21 keys are left.
    shard = archon_sharding(model, TrainLayout(tp=2, dp=3))
    places = shard.held_by.index(("stage 0, tensor 0, shard 1",))
    assert rows(shard.table(places)[f"{here}in_proj_qkv.weight"]) == [
        ("in_proj_qkv.weight", (75, 96)),
        ("in_proj_qkv.weight", (128, 150)),
    ]


def test_tensor_ranks_of_the_trainer_divide_key_heads_and_context_ranks_are_refused(
    random_model_of: Callable[..., Path],
) -> None:
    model = read_description(str(random_model_of("qwen3_5_text")))
    keys = {"tp": "t", "cp": "c", "pp": "p"}
    assert not [*archon_findings(model, TrainLayout(dp=2, tp=2, pp=2), keys)]
    (heads,) = archon_findings(model, TrainLayout(tp=4), keys)
    assert str(heads) == "t=4 must divide linear_num_key_heads=2; nearest: 2"
    (context,) = archon_findings(model, TrainLayout(cp=2), keys)
    assert str(context).startswith("c=2 must be 1: a gated delta net reads the tokens of a")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"layer_types": ["full_attention"] * 4}, "layer_types needs a layer with 'linear_att"),
        ({"attn_output_gate": False}, "attn_output_gate=false is not supported; only true"),
        ({"attention_bias": True}, "attention_bias=true is not supported in this family"),
        ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim=0 must be an integer of at least"),
    ],
)
def test_what_mindrls_own_network_lacks_is_refused(
    change: dict[str, Any], error: str, random_model_of: Callable[..., Path], tmp_path: Path
) -> None:
    values = json.loads((random_model_of("qwen3_5_text") / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(values | change), "utf-8")
    with pytest.raises(ModelError, match=error):
        read_description(str(tmp_path))
