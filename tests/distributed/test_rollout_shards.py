"""An engine that is filled from its own shards answers as one that loaded the folder itself.

To the bit: greedy tokens and their log-probs, on one rank and on two, with experts cut and with
experts shared out; then with other weights, then after a sleep.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_workers import ForkedWorkers
from nightly import at_night_but, chosen_names, few_unless_night
from shards_messages import Case, Filled, Shapes
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from mindrl.checkpoint.any_family import read_any_description
from mindrl.layouts.layout import RolloutLayout
from mindrl.models.decoder import DType
from mindrl.rollout.vllm.cache import cache_sizes

pytestmark = pytest.mark.distributed

MakeModel = Callable[..., Path]
PROMPTS = ((5, 9, 40), tuple(range(20, 41)), (7, 7, 7, 7), (200, 3), (5, 9, 40))


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A model and how an engine cuts it."""

    family: str
    tied: bool = False
    tp: int = 1
    experts_shared: bool = False
    dtype: DType = "float32"


# An engine with experts comes first in its process: only the first one makes all groups.
ENGINES: Mapping[str, Engine] = {
    "qwen3_moe": Engine(family="qwen3_moe"),
    "qwen3_moe in bfloat16": Engine(family="qwen3_moe", dtype="bfloat16"),
    "qwen2 tied": Engine(family="qwen2", tied=True),
    "qwen2 untied": Engine(family="qwen2"),
    "qwen3 untied": Engine(family="qwen3"),
    "deepseek_v2": Engine(family="deepseek_v2"),
    "deepseek_v3": Engine(family="deepseek_v3"),
    "glm4_moe": Engine(family="glm4_moe"),
    "qwen3_next": Engine(family="qwen3_next"),
    "qwen3_5_moe_text": Engine(family="qwen3_5_moe_text"),
    "llama tied": Engine(family="llama", tied=True),
    "mistral": Engine(family="mistral"),
    "phi3": Engine(family="phi3"),
    "qwen3_linear": Engine(family="qwen3_linear"),
    "qwen3_5_text": Engine(family="qwen3_5_text"),
    "qwen3_moe TP2": Engine(family="qwen3_moe", tp=2),
    "qwen3_moe TP2 EP2": Engine(family="qwen3_moe", tp=2, experts_shared=True),
    "glm4_moe TP2": Engine(family="glm4_moe", tp=2),
    "glm4_moe TP2 EP2": Engine(family="glm4_moe", tp=2, experts_shared=True),
    "qwen3_next TP2": Engine(family="qwen3_next", tp=2),
    "qwen3_5_moe_text TP2": Engine(family="qwen3_5_moe_text", tp=2),
    "qwen3_5_moe_text TP2 EP2": Engine(family="qwen3_5_moe_text", tp=2, experts_shared=True),
    "qwen2 tied TP2": Engine(family="qwen2", tied=True, tp=2),
    "qwen2 untied TP2": Engine(family="qwen2", tp=2),
    "qwen3 tied TP2": Engine(family="qwen3", tied=True, tp=2),
    "llama TP2": Engine(family="llama", tp=2),
    "phi3 TP2": Engine(family="phi3", tp=2),
    "qwen3_5_text TP2": Engine(family="qwen3_5_text", tp=2),
}
EVERY_CHANGE = ("qwen3_moe TP2 EP2",)
# Engines whose caches are compared with the plan: with states of gated delta nets, and without.
MEASURED = ("qwen2", "qwen3_5", "qwen3_next", *EVERY_CHANGE)
# Families whose positions or files differ from those of Qwen.
LIKE_TRANSFORMERS = (
    *("llama tied", "mistral", "phi3", "qwen3_linear", "qwen3_5_text", "glm4_moe"),
    *("qwen3_next", "qwen3_5_moe_text", "qwen3_next TP2", "qwen3_5_moe_text TP2 EP2"),
    *("llama TP2", "phi3 TP2", "qwen3_5_text TP2", "glm4_moe TP2 EP2"),
)
HALVES = [
    ("qwen3_moe", (8, 128, 128), (8, 128, 64)),
    ("qwen3_moe TP2", (8, 64, 128), (8, 128, 32)),
    ("qwen3_moe TP2 EP2", (4, 128, 128), (4, 128, 64)),
]
"""Of an engine: the shapes of the two matrices of all its experts."""
ONLY_SHAPES: Mapping[str, Engine] = {
    "deepseek_v2 TP2": Engine(family="deepseek_v2", tp=2),
    "deepseek_v2 TP2 EP2": Engine(family="deepseek_v2", tp=2, experts_shared=True),
    "deepseek_v3 TP2": Engine(family="deepseek_v3", tp=2),
    "deepseek_v3 TP2 EP2": Engine(family="deepseek_v3", tp=2, experts_shared=True),
}


@pytest.fixture(scope="module")
def folders(
    random_model_of: MakeModel, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Engine], tuple[str, str]]:
    """Return the folders of two sets of weights of an engine's model."""
    made: dict[tuple[str, bool], tuple[str, str]] = {}

    def make(engine: Engine) -> tuple[str, str]:
        key = (engine.family, engine.tied)
        if key not in made:
            first, later = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("later")
            if engine.family.startswith("deepseek"):
                save(random_deepseek(engine.family), first)
            else:
                first = random_model_of(engine.family, tied=engine.tied)
            save(changed(first), later)
            made[key] = str(first), str(later)
        return made[key]

    return make


def random_deepseek(family: str) -> PreTrainedModel:
    """Make a model of 3 layers, the first without experts; V3 with a latent query."""
    torch.manual_seed(7)
    config = AutoConfig.for_model(
        family,
        vocab_size=211,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_shared_experts=2,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        norm_topk_prob=True,
        q_lora_rank=48 if family == "deepseek_v3" else None,
        # The engine's attention on CPU is compiled for 512 + 64 and nothing else.
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        max_position_embeddings=128,
        topk_method="noaux_tc" if family == "deepseek_v3" else "group_limited_greedy",
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=1,
    )
    model = AutoModelForCausalLM.from_config(config)
    for name, bias in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            bias.normal_(std=0.1)
    return model


def changed(folder: Path) -> PreTrainedModel:
    """Return the same model with other weights, as after an update."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * parameter.std() * torch.randn_like(parameter))
    return model


def save(model: PreTrainedModel, folder: Path) -> None:
    """Write a folder that names its sizes as published ones do; transformers 5 does not."""
    model.save_pretrained(folder)
    path = folder / "config.json"
    values = json.loads(path.read_text("utf-8"))
    for name in ("num_experts", "topk_method"):
        if hasattr(model.config, name):
            values[name] = getattr(model.config, name)
    path.write_text(json.dumps(values), "utf-8")


def cases(
    engines: Mapping[str, Engine], folders: Callable[[Engine], tuple[str, str]], tp: int
) -> dict[str, Case]:
    found = {}
    for name, engine in engines.items():
        if engine.tp == tp:
            first, later = folders(engine)
            found[name] = Case(
                folder=first,
                later_folder=later,
                tensor_parallel_size=tp,
                expert_parallel=engine.experts_shared,
                dtype=engine.dtype,
            )
    return found


def by_name(names: Sequence[str], ranks: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    """Sort what the ranks returned by the cases: what each rank saw of each."""
    return {name: [rank[index] for rank in ranks] for index, name in enumerate(names)}


@pytest.fixture(scope="module")
def filled(
    request: pytest.FixtureRequest,
    forked_workers: ForkedWorkers,
    folders: Callable[[Engine], tuple[str, str]],
) -> dict[str, list[Filled]]:
    """What each rank saw of each engine asked for; those of one size share their processes."""
    chosen_here = chosen_names(request)
    engines = {name: engine for name, engine in ENGINES.items() if name in chosen_here}
    seen: dict[str, list[Filled]] = {}
    for tp in (1, 2):
        if not (chosen := cases(engines, folders, tp)):
            continue
        each = forked_workers.run(
            "shards_probe:fill_engines", list(chosen.values()), PROMPTS, ranks=tp
        )
        seen |= by_name(list(chosen), each)
    return seen


@pytest.mark.parametrize("name", at_night_but(EVERY_CHANGE, ENGINES))
def test_filled_from_shards_it_answers_to_the_bit_as_an_engine_that_loaded_the_folder(
    filled: dict[str, list[Filled]], name: str
) -> None:
    for rank in filled[name]:
        assert rank.answers["filled"] == rank.answers["ordinary"]
        assert {len(tokens) for tokens, _ in rank.answers["filled"]} == {12}
        assert all(logprob < 0.0 for _, each in rank.answers["filled"] for logprob in each)


@pytest.mark.parametrize("name", at_night_but([], LIKE_TRANSFORMERS))
def test_its_logprobs_are_those_of_transformers_to_1e_4(
    filled: dict[str, list[Filled]], folders: Callable[[Engine], tuple[str, str]], name: str
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folders(ENGINES[name])[0], dtype=torch.float32)
    for prompt, (tokens, logprobs) in zip(PROMPTS, filled[name][0].answers["filled"], strict=True):
        with torch.no_grad():
            logits_TV = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
        expected_T = logits_TV.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        # Logits of size 30 in float32, four layers, up to 33 positions.
        assert logprobs == pytest.approx(expected_T.tolist(), abs=1e-4)


@pytest.mark.parametrize("name", at_night_but(EVERY_CHANGE, ENGINES))
def test_a_second_load_replaces_every_weight_whatever_the_order_in_which_shards_arrive(
    filled: dict[str, list[Filled]], name: str
) -> None:
    for rank in filled[name]:
        assert rank.answers["filled later"] == rank.answers["ordinary later"]
        assert rank.answers["filled later"] != rank.answers["filled"]


@pytest.mark.parametrize("name", at_night_but(EVERY_CHANGE, ENGINES))
def test_after_a_sleep_a_third_load_answers_as_the_first_did(
    filled: dict[str, list[Filled]], name: str
) -> None:
    for rank in filled[name]:
        assert rank.memory["asleep"].parameters == 0
        assert rank.answers["filled after a sleep"] == rank.answers["ordinary"]


def test_both_ranks_of_a_replica_give_the_same_answers(filled: dict[str, list[Filled]]) -> None:
    for name, ranks in filled.items():
        assert len(ranks) == ENGINES[name].tp
        assert all(rank.answers == ranks[0].answers for rank in ranks)


@pytest.mark.parametrize("family", at_night_but(["qwen3_5"], ["qwen3_5", "qwen3_5_moe"]))
def test_the_engine_of_a_folder_with_a_tower_has_the_decoder_alone_and_answers_as_its_engine(
    family: str, forked_workers: ForkedWorkers, random_model_of: MakeModel
) -> None:
    nested, flat = (str(random_model_of(name)) for name in (family, f"{family}_text"))
    case, other = Case(folder=nested, later_folder=flat), "ordinary later"
    found: Filled
    ((found,),) = forked_workers.run("shards_probe:fill_engines", [case], PROMPTS, [other])
    for moment in ("filled", "filled later", "filled after a sleep"):
        assert found.answers[moment] == found.answers[other]
    assert found.shapes.expected == found.shapes.table
    assert "lm_head.weight" in found.shapes.expected
    assert not [name for name in found.shapes.expected if "visual" in name]


@pytest.mark.parametrize("name", at_night_but(EVERY_CHANGE, ENGINES))
def test_a_load_leaves_no_second_copy_of_a_weight_and_moves_no_parameter(
    filled: dict[str, list[Filled]], name: str
) -> None:
    for rank in filled[name]:
        loaded, ordinary = rank.memory["loaded"], rank.memory["ordinary"]
        assert loaded.parameters == ordinary.parameters
        assert loaded.packed_layers == ordinary.packed_layers
        # Flags and counters; the smallest weight that is packed, a router of 8 x 128, has 2048.
        assert loaded.tensors < ordinary.tensors + 1024
        assert rank.addresses_kept


@pytest.mark.parametrize("name", at_night_but(EVERY_CHANGE, ENGINES))
def test_the_engine_expects_exactly_what_the_rollout_table_holds(
    filled: dict[str, list[Filled]], name: str
) -> None:
    for rank in filled[name]:
        assert rank.shapes.expected == rank.shapes.table
        # 211 tokens, padded to 256.
        rows = 256 // ENGINES[name].tp
        assert rank.shapes.expected["model.embed_tokens.weight"] == (rows, 128)
        assert ("lm_head.weight" in rank.shapes.expected) != ENGINES[name].tied


@pytest.mark.parametrize(
    "name",
    at_night_but(EVERY_CHANGE, [name for name in ENGINES if name.startswith(MEASURED)]),
)
def test_the_longest_sequence_takes_the_bytes_that_the_plan_says(
    filled: dict[str, list[Filled]], folders: Callable[[Engine], tuple[str, str]], name: str
) -> None:
    engine = ENGINES[name]
    model = read_any_description(folders(engine)[0])
    sizes = cache_sizes(model, RolloutLayout(tp=engine.tp), engine.dtype)
    for rank in filled[name]:
        # Of 64 tokens, which are a part of a block.
        assert rank.sequence_bytes == sizes.of_sequence(64)
        assert rank.smallest_cache_bytes == sizes.smallest(64)
        assert rank.cache_bytes % (sizes.per_token * sizes.block_tokens) == 0


@pytest.mark.parametrize(
    ("name", "w13", "w2"),
    at_night_but(HALVES[2:], HALVES),
)
def test_two_ranks_halve_each_of_8_experts_or_have_4_whole_ones_each(
    filled: dict[str, list[Filled]], name: str, w13: tuple[int, ...], w2: tuple[int, ...]
) -> None:
    for rank in filled[name]:
        assert rank.shapes.expected["model.layers.0.mlp.experts.w13_weight"] == w13
        assert rank.shapes.expected["model.layers.0.mlp.experts.w2_weight"] == w2


def test_deepseek_on_two_ranks_expects_exactly_what_the_rollout_table_holds(
    forked_workers: ForkedWorkers, folders: Callable[[Engine], tuple[str, str]]
) -> None:
    short = ("deepseek_v2 TP2", "deepseek_v3 TP2 EP2")
    names = few_unless_night(short, ONLY_SHAPES)
    chosen = cases({name: ONLY_SHAPES[name] for name in names}, folders, 2)
    each = forked_workers.run("shards_probe:shapes_of", list(chosen.values()), ranks=2)
    seen: dict[str, list[Shapes]] = by_name(list(chosen), each)
    for ranks in seen.values():
        assert all(rank.expected == rank.table for rank in ranks)
        # Without a name in /dev/shm, so nothing is left when the processes end in any way.
        assert ranks[0].queues
        assert all(name.endswith(" (deleted)") for rank in ranks for name in rank.queues)
    # The bias of the router's choice is whole on both ranks, under shared and under cut experts.
    bias = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert {rank.expected[bias] for rank in seen["deepseek_v3 TP2 EP2"]} == {(8,)}
    assert bias not in seen["deepseek_v2 TP2"][0].expected


@pytest.fixture(scope="module")
def misused(
    forked_workers: ForkedWorkers, folders: Callable[[Engine], tuple[str, str]]
) -> tuple[float, list[str]]:
    """What the embedding held when a load opened it after another, and what was said."""
    case = cases(ENGINES, folders, 1)["qwen2 tied"]
    (seen,) = forked_workers.run("shards_probe:misuse", case)
    largest, said = seen
    return largest, said


def test_padding_is_zero_whatever_the_embedding_held_before(
    misused: tuple[float, list[str]],
) -> None:
    assert misused[0] == 0.0


def test_a_tensor_closed_twice_or_opened_again_or_left_out_is_named(
    misused: tuple[float, list[str]],
) -> None:
    _, said = misused
    assert said[:2] == [
        "model.embed_tokens.weight is not open",
        "model.embed_tokens.weight is opened after its close",
    ]
    # 4 layers of 7 tensors and the last norm.
    assert said[2].startswith("29 tensors were not loaded: model.layers.0.input_layernorm.weight, ")
