"""Models of families that mindrl has no network of: their sizes, and what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from geometry import check
from transformers import CONFIG_MAPPING

from mindrl.checkpoint.any_family import read_any_description
from mindrl.errors import ModelError
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.any_family import (
    _CHANGE_LOGITS,
    _DEFAULTS,
    OWN_ATTENTION,
    any_description,
)
from mindrl.models.decoder import layer_of, logical_shapes, parameters_of
from mindrl.models.description import read_description
from mindrl.models.tensor_plans import installed_plan, shared_modules
from mindrl.resharding.plan import Topology
from mindrl.rollout.vllm.legality import vllm_findings
from mindrl.rollout.vllm.sharding import vllm_sharding
from mindrl.training.archon.legality import archon_findings
from mindrl.training.archon.sharding import archon_sharding

GPT: dict[str, Any] = {
    "architectures": ["GPTLikeModel"],
    "model_type": "gpt-like",
    "n_embd": 8,
    "n_head": 2,
    "n_layer": 2,
    "n_positions": 16,
    "vocab_size": 5,
}
TENSORS = {
    "t.wte.weight": (5, 8),
    "t.h.0.up.weight": (7, 8),
    "t.h.1.up.weight": (7, 8),
    "t.h.1.up.bias": (7,),
}
FILE = Path("there/config.json")
PLANNED = GPT | {"model_type": "starcoder2"}
"""Of a family that transformers has a plan of."""
CUT: dict[str, tuple[int, ...]] = {
    "head.weight": (5, 8),
    "model.wte.weight": (5, 8),
    "model.layers.0.norm.weight": (8,),
    "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.q_proj.bias": (8,),
    "model.layers.0.self_attn.o_proj.weight": (8, 8),
    "model.layers.0.self_attn.o_proj.bias": (8,),
}


def test_sizes_have_the_names_of_transformers_and_tensors_those_of_the_files() -> None:
    model = any_description(FILE, GPT, TENSORS)
    assert (model.hidden_size, model.head_dim, model.num_key_value_heads) == (8, 4, 2)
    assert (model.intermediate_size, model.max_position_embeddings) == (32, 16)
    assert logical_shapes(model) == TENSORS
    assert model.tie_word_embeddings
    assert not any_description(FILE, GPT, TENSORS | {"head": (5, 8)}).tie_word_embeddings
    assert parameters_of(model).dense == (56, 63)
    assert [*map(layer_of, TENSORS)] == [None, 0, 1, 1]


def test_ranks_share_the_rows_of_every_tensor_rounded_up() -> None:
    model = any_description(FILE, GPT, TENSORS)
    sharding = archon_sharding(model, TrainLayout(dp=2, cp=2))
    rows = [sharding.table(rank)["t.wte.weight"].shape for rank in range(2)]
    assert rows == [(2, 8), (2, 8)]
    last = sharding.table(3)
    assert "t.wte.weight" not in last
    assert last["t.h.1.up.bias"].placements[0].source == ((6, 7),)


def test_tensor_parallelism_is_refused_of_what_transformers_has_no_plan_of() -> None:
    model = any_description(FILE, GPT, TENSORS)
    (found,) = archon_findings(model, TrainLayout(tp=2), {"tp": "tensor_size"})
    assert str(found) == (
        "tensor_size=2 needs a plan of transformers that shards GPTLikeModel as plain matrices; "
        "1 is legal"
    )


def test_ranks_share_matrices_by_transformers_plan_and_ends_by_the_vocabulary() -> None:
    """Of 5 tokens two ranks have 3 and 2; of 7 columns no two ranks have as many."""
    layer = "model.layers.0."
    model = any_description(FILE, PLANNED, CUT)
    assert not [*archon_findings(model, TrainLayout(tp=2), {"tp": "t"})]
    sharding = archon_sharding(model, TrainLayout(tp=2))
    assert [entry.shape for entry in sharding.table(1).values()] == [
        (3, 8),
        (3, 8),
        (8,),
        (4, 8),
        (4,),
        (8, 4),
        (8,),
    ]
    assert sharding.table(1)["model.wte.weight"].placements[0].source == ((3, 5), (0, 8))
    odd = any_description(FILE, PLANNED, CUT | {f"{layer}mlp.c_proj.weight": (8, 7)})
    (found,) = archon_findings(odd, TrainLayout(tp=2), {"tp": "t"})
    assert str(found).startswith(f"t=2 must divide the cut size of {layer}mlp.c_proj.weight=7")
    # A norm among heads that are cut, of which the plan says nothing, may see some of them or all.
    silent = any_description(FILE, PLANNED, CUT | {f"{layer}self_attn.norm.weight": (8,)})
    (found,) = archon_findings(silent, TrainLayout(tp=2), {"tp": "t"})
    assert str(found).startswith("t=2 needs a plan of transformers that shards GPTLikeModel")


def test_what_tensor_ranks_hold_arrives_whole_on_every_rank_of_an_engine_and_nothing_twice() -> (
    None
):
    """Of 232 numbers the first lacks 2 rows of either end, and 68 of queries and outputs."""
    model = any_description(FILE, PLANNED, CUT)
    received = {}
    for layout in (TrainLayout(tp=2), TrainLayout(dp=2, tp=2)):
        target = vllm_sharding(model, RolloutLayout(dp=layout.world_size), dtype="float32")
        plan = check(archon_sharding(model, layout), target, CUT, Topology(ranks_per_node=2), 200)
        received[layout.dp] = plan.received.tolist()
    assert received[1] == [4 * (2 * 2 * 8 + 68), 4 * (2 * 3 * 8 + 68)]
    assert min(received[2]) > max(received[1])


def test_a_value_head_takes_the_place_of_the_other_and_is_no_tensor_of_the_body() -> None:
    untied = any_description(FILE, GPT, TENSORS | {"head": (5, 8)})
    valued = any_description(FILE, GPT, TENSORS | {"score.weight": (1, 8)})
    assert untied.other is not None
    assert (untied.other.embedding, untied.other.head) == ("t.wte.weight", "head")
    expected = TENSORS | {"score.weight": (1, 8)}
    assert logical_shapes(untied, head="value") == logical_shapes(valued, head="value") == expected
    assert logical_shapes(valued) == TENSORS


DELTA: dict[str, Any] = {
    **GPT,
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 3,
    "linear_value_head_dim": 5,
    "linear_conv_kernel_dim": 4,
}


def test_every_fourth_layer_of_qwen3_5_attends_to_all_tokens_unless_its_config_lists_others() -> (
    None
):
    model = any_description(FILE, DELTA, TENSORS)
    assert model.other is not None
    assert model.other.delta is not None
    assert model.other.delta.layers == (0, 1, 2, 4, 5, 6)
    assert (model.other.delta.key_rows, model.other.delta.value_rows) == (6, 20)
    assert model.attention_layers == 2
    listed = DELTA | {"layer_types": ["full_attention"] * 7 + ["linear_attention"]}
    assert any_description(FILE, listed, TENSORS).attention_layers == 7
    often = DELTA | {"full_attention_interval": 2}
    assert any_description(FILE, often, TENSORS).attention_layers == 4


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"linear_key_head_dim": None}, "linear_key_head_dim=None must be an integer of at least"),
        ({"linear_num_value_heads": 3}, "linear_num_key_heads=2 must divide linear_num_value_"),
        ({"output_gate_type": "sigmoid"}, "output_gate_type='sigmoid' is not supported; only"),
        ({"layer_types": ["chunked"]}, "layer_types with 'chunked' is not supported"),
    ],
)
def test_gated_delta_nets_of_other_kinds_or_sizes_are_refused(
    values: dict[str, Any], error: str
) -> None:
    with pytest.raises(ModelError, match=error):
        any_description(FILE, DELTA | values, TENSORS)


def test_a_gated_delta_net_is_not_cut_over_context_parallel_ranks() -> None:
    model = any_description(FILE, DELTA, TENSORS)
    (found,) = archon_findings(model, TrainLayout(cp=2), {"cp": "context_size"})
    assert str(found).startswith("context_size=2 must be 1: a gated delta net reads the tokens of")
    assert found.legal == (1,)


def test_key_heads_of_a_gated_delta_net_are_divided_by_the_ranks_of_the_engine() -> None:
    model = any_description(FILE, DELTA | {"n_head": 8, "n_embd": 8, "vocab_size": 5}, TENSORS)
    (found,) = [
        str(each)
        for each in vllm_findings(model, RolloutLayout(tp=4), {"tp": "t"})
        if "linear" in str(each)
    ]
    assert found == "t=4 must divide linear_num_key_heads=2; nearest: 2"


def test_the_plan_of_a_text_part_is_in_the_folder_of_the_whole() -> None:
    found, made = installed_plan("qwen3_5_text"), CONFIG_MAPPING["qwen3_5_text"]
    assert found == made.base_model_tp_plan


@pytest.mark.parametrize("family", ["starcoder2", "olmo2", "qwen3", "seed_oss"])
def test_plans_are_read_as_transformers_reads_them(family: str) -> None:
    from transformers import CONFIG_MAPPING

    assert installed_plan(family) == CONFIG_MAPPING[family].base_model_tp_plan


def test_where_there_is_no_plan_none_is_read() -> None:
    assert installed_plan("stablelm") is None
    assert installed_plan("gpt-like") is None
    assert installed_plan("../gpt_neox") is None


def test_plans_of_experts_are_not_done() -> None:
    tensors = {"model.layers.0.mlp.experts.gate_up_proj": (2, 8, 8)}
    plan = installed_plan("qwen3_moe")
    assert plan is not None
    assert shared_modules(tensors, plan) is None


@pytest.mark.parametrize(
    ("values", "tensors", "error"),
    [
        ({"n_embd": None}, {}, " has no 'hidden_size'"),
        ({"final_logit_softcapping": 30.0}, {}, "logits must come unchanged from the head"),
        ({"logit_scale": 0.5}, {}, "logit_scale=0.5 is not supported"),
        ({"sliding_window": 8}, {}, "sliding_window=8 is not supported; only null"),
        ({"layer_types": ["chunked"]}, {}, "layer_types with 'chunked' is not supported"),
        (
            {"layer_types": ["linear_attention"]},
            {},
            "; of qwen3_5_text, .* also 'linear_attention'",
        ),
        ({"attn_logit_softcapping": 50.0}, {}, "attn_logit_softcapping is not supported"),
        ({"architectures": None}, {}, "architectures=None must name one class"),
        ({"architectures": ["GPTForTokenClassification"]}, {}, "num_labels=2 is not supported"),
        ({"quantization_config": {"bits": 4}}, {}, "quantized weights"),
        ({}, {"t.scale": ()}, "tensor t.scale is a single number"),
        ({}, {"t.wpe.weight": (5, 8)}, "found t.wte.weight, t.wpe.weight"),
    ],
)
def test_what_packs_or_a_plain_head_cannot_do_is_refused(
    values: dict[str, Any], tensors: dict[str, tuple[int, ...]], error: str
) -> None:
    with pytest.raises(ModelError, match=error):
        any_description(FILE, GPT | values, TENSORS | tensors)


def test_a_folder_of_a_known_family_is_described_as_ever(
    random_model_of: Callable[..., Path], tmp_path: Path
) -> None:
    folder = random_model_of("qwen3")
    assert read_any_description(str(folder)).other is None
    found = read_any_description(str(random_model_of("stablelm"))).other
    assert found is not None
    assert found.architecture == "StableLmForCausalLM"
    (tmp_path / "config.json").write_text(json.dumps(GPT), "utf-8")
    with pytest.raises(ModelError, match=r"has no \.safetensors file"):
        read_any_description(str(tmp_path))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "cohere"}, "logit_scale=0.0625, the default of its family, is not"),
        ({"model_type": "cohere", "logit_scale": 0.5}, "logit_scale=0.5 is not supported"),
        ({"model_type": "bloom", "n_positions": None}, "ALiBi, the attention bias of bloom"),
        ({"model_type": "mpt"}, "ALiBi, the attention bias of mpt"),
        ({"model_type": "falcon", "alibi": True}, "ALiBi, the attention bias of falcon"),
        ({"model_type": "falcon"}, "model_type='falcon' is not supported: its attention"),
    ],
)
def test_what_a_family_adds_by_default_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=re.escape(words)):
        any_description(FILE, GPT | values, TENSORS)
    any_description(FILE, GPT | {"model_type": "cohere", "logit_scale": 1}, TENSORS)
    any_description(FILE, GPT | {"model_type": "mpt", "attn_config": {"alibi": False}}, TENSORS)


@pytest.mark.parametrize("to_plan", [False, True])
def test_gpt_oss_is_refused_by_what_the_engines_lack(to_plan: bool, tmp_path: Path) -> None:
    config = transformers.GptOssConfig(architectures=["GptOssForCausalLM"])
    config.save_pretrained(tmp_path)
    words = (
        "model_type='gpt_oss' is not supported by any training engine; they lack attention "
        "sinks (one trained number in the softmax of each head); layers with and without an "
        "attention window in turn (layer_types); experts with biases and clamped units "
        "(swiglu_limit); biases of the router and of the output projection (attention_bias); "
        "experts in MXFP4 (quantization_config). Nearest supported family: qwen3_moe"
    )
    with pytest.raises(ModelError) as caught:
        read_description(str(tmp_path), to_plan=to_plan)
    assert str(caught.value) == f"{tmp_path}/config.json: {words}"
    with pytest.raises(ModelError) as caught:
        any_description(FILE, config.to_dict(), TENSORS)
    assert str(caught.value) == f"{FILE}: {words}"


def test_the_defaults_of_families_are_those_of_transformers() -> None:
    names = (*_CHANGE_LOGITS, "attn_logit_softcapping")
    for family, defaults in _DEFAULTS.items():
        made = CONFIG_MAPPING[family]()
        found = {name: getattr(made, name, None) for name in names}
        assert {name: each for name, each in found.items() if each not in (None, 0, 1)} == defaults


def test_families_with_attention_of_their_own_are_those_of_transformers() -> None:
    folder = Path(transformers.__file__).parent / "models"
    found = {
        file.parent.name
        for file in folder.glob("*/modeling_*.py")
        if re.search(r"_ATTENTION_CLASSES\[", text := file.read_text("utf-8"))
        and "ForCausalLM" in text
    }
    assert found == OWN_ATTENTION
