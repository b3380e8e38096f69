"""What is read from a config.json, in the words of transformers 4 and 5, and what is refused."""

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2ForCausalLM

from mindrl.errors import ModelError
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import ModelDescription, read_description

MODELS = Path(__file__).parents[3] / "configs" / "models"
MakeModel = Callable[[bool], Path]
OTHERS = (
    "; fsdp trains models of any family "
    "(docs/how-to/train-with-archon.md#any-hugging-face-model); to add a family or your "
    "own network, see docs/how-to/add-a-model.md"
)
FAMILIES = (
    "llama, mistral, phi3, qwen2, qwen3, qwen3_moe, deepseek_v2, deepseek_v3, "
    "glm4_moe, qwen3_5_text, qwen3_5_moe_text, qwen3_next"
)
QWEN_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1",
    "use_sliding_window": False,
    "vocab_size": 152064,
}
"""Qwen2.5-7B, as published."""


def parameters(model: ModelDescription) -> int:
    return sum(prod(shape) for shape in logical_shapes(model).values())


def folder_with(tmp_path: Path, values: object) -> str:
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return str(tmp_path)


def test_qwen2_5_7b_has_7_615_616_512_parameters_and_7_query_heads_a_group(tmp_path: Path) -> None:
    model = read_description(folder_with(tmp_path, QWEN_7B))
    assert parameters(model) == 7_615_616_512
    assert model.heads_per_group == 7
    assert model.head_dim == 128
    assert model.rope_theta == 1e6
    assert model.rms_norm_eps == 1e-6
    assert not model.tie_word_embeddings


def test_the_parameters_of_transformers_5_say_the_same_as_those_of_transformers_4(
    tmp_path: Path,
) -> None:
    old = read_description(folder_with(tmp_path, QWEN_7B | {"rope_scaling": None}))
    values = {key: value for key, value in QWEN_7B.items() if key != "rope_theta"}
    values |= {"rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}}
    new = read_description(folder_with(tmp_path, values))
    assert new == old


@pytest.mark.parametrize("tied", [True, False])
def test_what_the_installed_transformers_writes_is_read(
    tied: bool, random_model: MakeModel
) -> None:
    folder = random_model(tied)
    model = read_description(str(folder))
    real = Qwen2ForCausalLM.from_pretrained(folder)
    assert model.tie_word_embeddings == tied
    assert (model.num_attention_heads, model.num_key_value_heads, model.head_dim) == (4, 2, 32)
    assert parameters(model) == sum(parameter.numel() for parameter in real.parameters())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Llama-3.1-8B", 8_030_261_248),
        # Tied: its embedding of 262,668,288 counts once.
        ("Llama-3.2-1B", 1_235_814_400),
        ("phi-4", 14_659_507_200),
        ("Qwen2.5-32B", 32_763_876_352),
        ("Qwen3-8B", 8_190_735_360),
        ("Qwen3-32B", 32_762_123_264),
        ("Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen3-235B-A22B", 235_093_634_560),
        # Without its multi-token prediction, which is neither trained nor rolled out.
        ("DeepSeek-V3", 671_026_419_200),
        ("DeepSeek-R1", 671_026_419_200),
        # The files hold 110,468,824,832: 3,616,573,568 are the layer of multi-token prediction.
        ("GLM-4.5-Air", 106_852_251_264),
    ],
)
def test_a_published_config_gives_the_published_number_of_parameters(name: str, count: int) -> None:
    assert parameters(read_description(str(MODELS / name), to_plan=True)) == count


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "Qwen3-30B-A3B",
            {"num_hidden_layers": "48"},
            "num_hidden_layers='48' must be a valid integer",
        ),
        (
            "Qwen3-30B-A3B",
            {"decoder_sparse_step": 0},
            "decoder_sparse_step=0 must be greater than or equal to 1",
        ),
        ("Qwen3-30B-A3B", {"mlp_only_layers": 3}, "mlp_only_layers=3 must be a list"),
        (
            "DeepSeek-V3",
            {"num_hidden_layers": True},
            "num_hidden_layers=True must be a valid integer",
        ),
        ("DeepSeek-V3", {"n_group": "8"}, "n_group='8' must be a valid integer"),
        (
            "DeepSeek-V3",
            {"moe_intermediate_size": "2048"},
            "moe_intermediate_size='2048' must be a valid integer",
        ),
    ],
)
@pytest.mark.parametrize("to_plan", [False, True])
def test_a_size_of_a_mixture_that_is_no_number_is_named(
    name: str, change: dict[str, Any], message: str, to_plan: bool, tmp_path: Path
) -> None:
    values = json.loads((MODELS / name / "config.json").read_text("utf-8"))
    folder = folder_with(tmp_path, values | change)
    with pytest.raises(ModelError) as caught:
        read_description(folder, to_plan=to_plan)
    assert str(caught.value) == f"{folder}/config.json: {message}"


def test_a_mixture_is_read_under_the_names_of_its_family() -> None:
    qwen = read_description(str(MODELS / "Qwen3-30B-A3B")).moe
    assert qwen is not None
    assert (qwen.num_experts, qwen.num_experts_per_tok, qwen.intermediate_size) == (128, 8, 768)
    assert (qwen.norm_topk_prob, qwen.dense_layers) == (True, frozenset())
    deepseek = read_description(str(MODELS / "DeepSeek-V3"), to_plan=True)
    assert deepseek.moe is not None
    assert deepseek.moe.num_experts == 256
    assert deepseek.moe.dense_layers == {0, 1, 2}
    assert deepseek.moe.shared_intermediate_size == 2048
    assert deepseek.moe.score_correction_bias
    assert deepseek.mla is not None
    assert (deepseek.mla.q_lora_rank, deepseek.mla.qk_head_dim) == (1536, 192)


def test_every_second_layer_and_those_in_the_list_are_dense(tmp_path: Path) -> None:
    values = json.loads((MODELS / "Qwen3-30B-A3B" / "config.json").read_text("utf-8"))
    sparse = values | {"num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [1]}
    moe = read_description(folder_with(tmp_path, sparse)).moe
    assert moe is not None
    # Layers 1, 3 and 5 are every second one; 1 is in the list.
    assert moe.dense_layers == {0, 1, 2, 4}


def test_how_deepseek_chooses_experts_and_stretches_its_embedding_is_read() -> None:
    model = read_description(str(MODELS / "DeepSeek-V3"))
    assert model.moe is not None
    assert model.mla is not None
    assert model.mla.yarn is not None
    assert (model.moe.groups, model.moe.chosen_groups, model.moe.scaling_factor) == (8, 4, 2.5)
    assert (model.mla.yarn.factor, model.mla.yarn.original_max_position_embeddings) == (40, 4096)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"topk_group": 2},
            (
                "topk_group=2 is not supported: megatron ranks expert groups by their "
                "best num_experts_per_tok // topk_group = 4, but deepseek_v3 by their "
                "best 2; archon and fsdp have no groups"
            ),
        ),
        (
            {"model_type": "deepseek_v2", "topk_method": "greedy", "scoring_func": "softmax"},
            "norm_topk_prob=True is not supported; only False",
        ),
        ({"norm_topk_prob": False}, "norm_topk_prob=False is not supported; only True"),
        ({"scoring_func": "softmax"}, "scoring_func='softmax' is not supported; only 'sigmoid'"),
        ({"topk_method": "greedy"}, "topk_method='greedy' is not supported; only 'noaux_tc'"),
        ({"topk_method": None}, "topk_method=None is not supported; only 'noaux_tc'"),
        ({"rope_interleave": False}, "rope_interleave=False is not supported; only True"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0}},
            (
                "rope scaling {'type': 'yarn', 'factor': 40, 'mscale': 1.0} is not supported; only "
                "default and DeepSeek's yarn"
            ),
        ),
    ],
)
def test_what_megatron_cannot_be_told_of_a_deepseek_is_refused_to_a_run_and_can_be_planned(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    values = json.loads((MODELS / "DeepSeek-V3" / "config.json").read_text("utf-8"))
    folder = folder_with(tmp_path, values | change)
    with pytest.raises(ModelError) as caught:
        read_description(folder)
    assert str(caught.value) == f"{folder}/config.json: {message}"
    if "rope_scaling" not in change:
        assert read_description(folder, to_plan=True).mla is not None


def test_a_config_json_may_be_named_instead_of_its_folder() -> None:
    folder = MODELS / "Qwen2.5-7B"
    assert read_description(str(folder / "config.json")) == read_description(str(folder))


def test_without_key_value_heads_each_query_head_has_its_own(tmp_path: Path) -> None:
    values = {key: value for key, value in QWEN_7B.items() if key != "num_key_value_heads"}
    model = read_description(folder_with(tmp_path, values))
    assert model.num_key_value_heads == 28
    assert model.heads_per_group == 1


def test_a_head_size_of_its_own_is_taken_rather_than_derived(tmp_path: Path) -> None:
    assert read_description(folder_with(tmp_path, QWEN_7B | {"head_dim": 64})).head_dim == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "qwen3_nex"},
            (
                f"model_type='qwen3_nex' is not supported; supported: {FAMILIES}; "
                "nearest: qwen3_next" + OTHERS
            ),
        ),
        (
            {"model_type": "bloom"},
            (f"model_type='bloom' is not supported; supported: {FAMILIES}" + OTHERS),
        ),
        (
            {"model_type": None},
            (f"model_type=None is not supported; supported: {FAMILIES}" + OTHERS),
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types with 'sliding_attention' is not supported; only full_attention",
        ),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported; only 'silu'"),
        (
            {"quantization_config": {"quant_method": "awq"}},
            "quantized weights (quantization_config) are not supported",
        ),
        ({"num_attention_heads": "28"}, "num_attention_heads='28' must be a valid integer"),
        ({"hidden_size": 3.5}, "hidden_size=3.5 must be a valid integer"),
        ({"vocab_size": 0}, "vocab_size=0 must be greater than or equal to 1"),
        (
            {"num_key_value_heads": 3},
            "num_key_value_heads=3 must divide num_attention_heads=28",
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            (
                "rope scaling {'type': 'yarn', 'factor': 4.0} is not supported; "
                "only default, linear, llama3"
            ),
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e6}},
            ("rope scaling {'rope_type': 'linear', 'rope_theta': 1000000.0} has no 'factor'"),
        ),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_by_what_makes_it_so(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = folder_with(tmp_path, QWEN_7B | change)
    with pytest.raises(ModelError) as caught:
        read_description(folder)
    assert str(caught.value) == f"{folder}/config.json: {message}"


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "rms_norm_eps",
        "rope_theta",
        "vocab_size",
    ],
)
def test_a_size_that_is_missing_is_named(key: str, tmp_path: Path) -> None:
    values = {name: value for name, value in QWEN_7B.items() if name != key}
    folder = folder_with(tmp_path, values)
    with pytest.raises(ModelError) as caught:
        read_description(folder)
    assert str(caught.value) == f"{folder}/config.json has no '{key}'"


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_description(f"{tmp_path}/nowhere")
    assert str(caught.value) == f"model folder {tmp_path}/nowhere does not exist"


def test_a_folder_without_config_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_description(str(tmp_path))
    assert str(caught.value) == f"model folder {tmp_path} has no config.json"


@pytest.mark.parametrize("content", [b'{"hidden_size": 3584', b"\xff\xfe\x00", b""])
def test_a_config_json_that_is_no_json_is_refused_with_its_path(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"cannot read .*config\.json: "):
        read_description(str(tmp_path))


def test_a_config_json_that_holds_a_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json must contain a JSON object"):
        read_description(folder_with(tmp_path, [QWEN_7B]))


@pytest.mark.parametrize(
    ("change", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 4096),
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "llama", "sliding_window": 0}, None),
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": False}, None),
        ({"model_type": "qwen2", "sliding_window": 512, "use_sliding_window": True}, 512),
    ],
)
def test_a_window_is_that_of_config_json_or_of_its_family(
    change: dict[str, Any], window: int | None, tmp_path: Path
) -> None:
    plain = {key: value for key, value in QWEN_7B.items() if "window" not in key}
    model = read_description(folder_with(tmp_path, plain | change))
    assert model.sliding_window == window


def test_an_adapter_is_told_how_it_becomes_a_model(tmp_path: Path) -> None:
    adapter = {"base_model_name_or_path": "Qwen/Qwen2.5-7B", "r": 8, "lora_alpha": 16}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    with pytest.raises(ModelError) as caught:
        read_description(str(tmp_path))
    assert str(caught.value).startswith(
        f"model folder {tmp_path} contains an adapter of Qwen/Qwen2.5-7B, not a model: "
        "continue training it with actor_config.load=Qwen/Qwen2.5-7B "
        f"actor_config.lora.load={tmp_path} actor_config.lora.r=8 "
        "actor_config.lora.alpha=16, or merge it with peft, "
    )
