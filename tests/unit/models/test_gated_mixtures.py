"""Mixtures with gated delta nets: their sizes, and which rows a rank of the engine holds.

The models: 2 key heads and 4 value heads of 32, hidden size 128, 4 heads of full attention.
"""

import json
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest
import torch
from placed_rows import rows
from transformers import AutoConfig, AutoModelForCausalLM

from mindrl.checkpoint.any_family import read_any_description
from mindrl.checkpoint.files import tensor_shapes
from mindrl.errors import ModelError
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.any_family import any_description
from mindrl.models.config_file import read_config
from mindrl.models.decoder import logical_shapes, parameters_of
from mindrl.models.description import MoeDescription, read_description
from mindrl.models.mixture import experts_of
from mindrl.models.placement import volume
from mindrl.rollout.vllm.cache import cache_sizes
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.archon.legality import archon_findings
from mindrl.training.archon.sharding import archon_sharding

ROOT = Path(__file__).parents[3]
MIXTURES = ("qwen3_next", "qwen3_5_moe_text")
"""Families with 8 experts of width 64, of which a token takes 2, and a shared one of width 96."""
FAMILIES = ("qwen3_5_text", *MIXTURES)


def test_one_matrix_of_all_projections_is_cut_between_key_heads(
    random_model_of: Callable[..., Path],
) -> None:
    model = read_any_description(str(random_model_of("qwen3_next")))
    table = vllm_sharding(model, RolloutLayout(tp=2), dtype="float32").table(1)
    here = "model.layers.0.linear_attn."
    # A key head has 32 rows of queries and of keys, and two heads of values and of their gates.
    assert rows(table[f"{here}in_proj_qkvz.weight"]) == [("in_proj_qkvz.weight", (192, 384))]
    assert rows(table[f"{here}in_proj_ba.weight"]) == [("in_proj_ba.weight", (4, 8))]
    # The convolution has all queries, then all keys, then all values.
    assert rows(table[f"{here}conv1d.weight"]) == [
        ("conv1d.weight", each) for each in [(32, 64), (96, 128), (192, 256)]
    ]


@pytest.mark.parametrize("family", MIXTURES)
def test_a_rank_of_the_engine_has_half_of_each_expert_and_the_gates_whole(
    family: str, random_model_of: Callable[..., Path]
) -> None:
    model = read_any_description(str(random_model_of(family)))
    assert model.moe == MoeDescription(
        num_experts=8,
        num_experts_per_tok=2,
        intermediate_size=64,
        shared_intermediate_size=96,
        gated_shared=True,
        norm_topk_prob=True,
    )
    table = vllm_sharding(model, RolloutLayout(tp=2), dtype="float32").table(1)
    here = "model.layers.3.mlp."
    assert table[f"{here}experts.w13_weight"].shape == (8, 64, 128)
    shared = table[f"{here}shared_expert.gate_up_proj.weight"].placements
    assert [(each.tensor.removeprefix(here), each.source[0]) for each in shared] == [
        ("shared_expert.gate_proj.weight", (48, 96)),
        ("shared_expert.up_proj.weight", (48, 96)),
    ]
    assert table[f"{here}shared_expert_gate.weight"].shape == (1, 128)
    assert table[f"{here}gate.weight"].shape == (8, 128)


@pytest.mark.parametrize("family", MIXTURES)
def test_mindrls_own_network_has_the_tensors_of_the_folder_and_the_engine_the_same_rows_of_both(
    family: str, random_model_of: Callable[..., Path]
) -> None:
    folder = str(random_model_of(family))
    own, other = read_description(folder), read_any_description(folder)
    assert own.other is None
    assert logical_shapes(own) == dict(tensor_shapes(folder))
    assert (own.delta, own.moe, own.rotary_width, own.qk_norm) == (other.delta, other.moe, 8, True)
    tables = [
        vllm_sharding(each, RolloutLayout(tp=2), dtype="float32").table(1) for each in (own, other)
    ]
    assert tables[0] == tables[1]


def test_ranks_of_the_trainer_have_whole_experts_the_gate_and_whole_key_heads_of_one_matrix(
    random_model_of: Callable[..., Path],
) -> None:
    model = read_description(str(random_model_of("qwen3_next")))
    layout = TrainLayout(tp=2, ep=2)
    table = archon_sharding(model, layout).table(1)
    here = "model.layers.0."
    assert table[f"{here}mlp.experts.gate_up"].shape == (4, 128, 128)
    assert table[f"{here}mlp.shared_expert.gate_proj.weight"].shape == (48, 128)
    assert table[f"{here}mlp.shared_expert_gate.weight"].shape == (1, 128)
    # Two key heads of 192 rows: queries, keys, two value heads and their gates.
    part = table[f"{here}linear_attn.in_proj_qkvz.weight"]
    assert rows(part) == [("in_proj_qkvz.weight", (192, 384))]
    assert not [*archon_findings(model, layout, {"tp": "t", "ep": "e"})]


def test_the_width_of_a_dense_layer_may_be_missing_where_there_is_none(
    random_model_of: Callable[..., Path], tmp_path: Path
) -> None:
    values = json.loads((random_model_of("qwen3_5_moe_text") / "config.json").read_text("utf-8"))
    values.pop("intermediate_size", None)
    (tmp_path / "config.json").write_text(json.dumps(values), "utf-8")
    assert read_description(str(tmp_path)).moe is not None


@pytest.mark.parametrize("family", MIXTURES)
def test_parameters_of_experts_are_counted_apart(
    family: str, random_model_of: Callable[..., Path]
) -> None:
    found = parameters_of(read_any_description(str(random_model_of(family))))
    assert found.experts == (8 * 3 * 64 * 128,) * 4
    router, shared, norms = 8 * 128, 3 * 96 * 128 + 128, 2 * 128
    attention = 128 * (2 * 128 + 2 * 64 + 128) + 2 * 32
    assert found.dense[3] == router + shared + norms + attention


@pytest.mark.parametrize(
    ("family", "layers"), [("qwen3_next", frozenset({0, 1, 2})), ("qwen3_5_moe_text", frozenset())]
)
def test_only_qwen3_next_may_have_layers_without_experts(
    family: str, layers: frozenset[int]
) -> None:
    """In Qwen3.5 each layer of transformers has experts, also those that config.json excludes."""
    values = {
        "model_type": family,
        "num_hidden_layers": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
    }
    assert experts_of(values)["dense_layers"] == layers


def test_weights_of_experts_that_do_not_add_to_1_are_refused_where_transformers_makes_them(
    random_model_of: Callable[..., Path],
) -> None:
    folder = random_model_of("qwen3_5_moe_text")
    path, values = read_config(str(folder))
    tensors = tensor_shapes(str(folder))
    with pytest.raises(ModelError, match="norm_topk_prob=False is not supported; only True"):
        any_description(path, values | {"norm_topk_prob": False}, tensors)


@pytest.mark.parametrize("family", MIXTURES)
@pytest.mark.parametrize("tp", [1, 2])
def test_the_ranks_have_every_number_of_the_model(
    family: str, tp: int, random_model_of: Callable[..., Path]
) -> None:
    model = read_any_description(str(random_model_of(family)))
    sharding = vllm_sharding(model, RolloutLayout(tp=tp), dtype="bfloat16")
    held: Counter[str] = Counter()
    for rank in range(tp):
        for entry in sharding.table(rank).values():
            for each in entry.placements:
                held[each.tensor] += volume(each.source)
    for name, shape in logical_shapes(model).items():
        is_cut = not name.endswith(("norm.weight", "mlp.gate.weight", "expert_gate.weight"))
        assert held[name] == prod(shape) * (1 if is_cut else tp), name
    # Decays are float32 in an engine of any data type.
    assert sharding.held_bytes()[0] % 4 == 0


def test_a_layer_with_a_state_takes_one_block_of_the_cache_per_sequence() -> None:
    model = read_any_description(str(ROOT / "configs/models/Qwen3-Next-80B-A3B"), to_plan=True)
    sizes = cache_sizes(model, RolloutLayout(tp=2), "bfloat16")
    # Of 12 layers that attend: one head of 256.
    assert sizes.per_token == 12 * 2 * 256 * 2
    # A state: 16 of 32 heads of 128 x 128 in float32, three inputs of half of 8192 channels.
    state = 16 * 128 * 128 * 4 + 4096 * 3 * 2
    blocks = -(-state // (128 * 2 * 256 * 2))
    assert sizes.block_tokens == 128 * blocks
    # 36 layers with a state are three groups of 12.
    assert sizes.states == 36 * sizes.block_tokens * 2 * 256 * 2
    one = sizes.block_tokens * sizes.per_token
    assert [sizes.of_sequence(each) for each in (1, 1152, 1153)] == [4 * one, 4 * one, 5 * one]
    halved = cache_sizes(model, RolloutLayout(tp=2), "bfloat16", block_tokens=32)
    assert halved.block_tokens == 1056


@pytest.mark.parametrize("family", FAMILIES)
def test_without_weight_files_the_tensors_follow_from_config_json_alone(
    family: str, random_model_of: Callable[..., Path], tmp_path: Path
) -> None:
    folder = random_model_of(family)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    planned = read_any_description(str(tmp_path))
    assert logical_shapes(planned) == dict(tensor_shapes(str(folder)))


@pytest.mark.parametrize("missing", ["vocab_size", "linear_num_key_heads"])
def test_without_weight_files_a_size_that_config_json_lacks_is_named(
    missing: str, tmp_path: Path
) -> None:
    values = json.loads((ROOT / "configs/models/Qwen3-Next-80B-A3B/config.json").read_text("utf-8"))
    del values[missing]
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ModelError, match=missing):
        read_any_description(str(tmp_path), to_plan=True)


@pytest.mark.parametrize(
    ("name", "billions", "without_ends"),
    [("Qwen3-Next-80B-A3B", 79.67, 79.05), ("Qwen3.5-35B-A3B", 34.66, 33.64)],
)
def test_shipped_sizes_count_as_many_parameters_as_published_and_as_transformers_does(
    name: str, billions: float, without_ends: float
) -> None:
    """80B, 79B of them without embedding and head; and 35B."""
    folder = ROOT / "configs/models" / name
    found = parameters_of(read_any_description(str(folder), to_plan=True))
    layers = sum(found.dense) + sum(found.experts)
    total = layers + found.embedding + found.head
    assert round(total / 1e9, 2) == billions
    assert round((layers + 2048) / 1e9, 2) == without_ends
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    assert total == sum(each.numel() for each in theirs.parameters())
