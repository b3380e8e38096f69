"""Gated delta nets: which rows of their tensors a rank of the engine holds.

The model: 2 key heads and 4 value heads of 32, hidden size 128, 4 heads of full attention.
"""

from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest

from mindrl.checkpoint.any_family import read_any_description
from mindrl.layouts.layout import RolloutLayout
from mindrl.models.decoder import logical_shapes
from mindrl.models.placement import LocalTensor, volume
from mindrl.rollout.vllm.sharding import vllm_sharding


def rows(entry: LocalTensor) -> list[tuple[str, tuple[int, int]]]:
    """Return the rows of each logical tensor, in the order of the local ones."""
    return [(each.tensor.split("linear_attn.")[-1], each.source[0]) for each in entry.placements]


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
