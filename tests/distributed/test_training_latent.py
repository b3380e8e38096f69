"""DeepSeek on the training side: its tables, its logits and its updates, by the real Megatron.

Shapes: B sequences, T positions, V the vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from assembly import assembled, assert_moved_alike
from forked_workers import ForkedWorkers
from nightly import at_night_but, crossed
from reshard_messages import Way
from safetensors.torch import load_file
from test_reshard import PROMPTS, check_answers
from test_training_layouts import LOSS, OPTIMIZER, check_logits, minibatches, sequences
from torch import Tensor
from training_messages import Case, Course, Updated, Weights
from transformers import AutoConfig, AutoModelForCausalLM

from mindrl.batch.balance import MicroBatching
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.description import read_description
from mindrl.training.megatron.sharding import megatron_sharding

pytestmark = pytest.mark.distributed

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32,
    "beta_slow": 1,
}
"""Stretches four rotary frequencies of eight, over sequences of up to 17 tokens."""
MODELS: Mapping[str, Mapping[str, Any]] = {
    "V2 Lite": {
        "model_type": "deepseek_v2",
        "q_lora_rank": None,
        "topk_method": "greedy",
        "n_group": 1,
    },
    "V2": {
        "model_type": "deepseek_v2",
        "q_lora_rank": 48,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "V3": {
        "model_type": "deepseek_v3",
        "q_lora_rank": 48,
        "norm_topk_prob": True,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5},
    },
    "V3, whole queries": {
        "model_type": "deepseek_v3",
        "q_lora_rank": None,
        "norm_topk_prob": True,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
    },
}
LAYOUTS = [
    TrainLayout(),
    TrainLayout(tp=2),
    TrainLayout(dp=2, ep=2),
    TrainLayout(tp=2, ep=2),
    # The first stage has the layer without experts.
    TrainLayout(pp=2),
    TrainLayout(pp=2, layers_per_chunk=(1, 3)),
    TrainLayout(dp=2, etp=2),
    TrainLayout(tp=2, pp=2, dp=2, ep=2),
]
Folders = Mapping[str, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Models of 4 layers, the first without experts; 8 experts, 2 for each token."""
    made = {}
    for name, change in MODELS.items():
        made[name] = tmp_path_factory.mktemp("latent")
        save_random(change, made[name])
    return made


def save_random(change: Mapping[str, Any], folder: Path) -> None:
    torch.manual_seed(7)
    values = {
        "vocab_size": 211,
        "hidden_size": 128,
        "intermediate_size": 256,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_shared_experts": 2,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "norm_topk_prob": False,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 24,
        "v_head_dim": 20,
        "max_position_embeddings": 64,
        "initializer_range": 0.15,
        "bos_token_id": None,
        "eos_token_id": 1,
    } | change
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith("e_score_correction_bias"):
            tensor.data.normal_(std=0.1)
        elif name.endswith("norm.weight"):
            tensor.data.normal_(mean=1.0, std=0.1)
    model.save_pretrained(folder)


@pytest.mark.parametrize("ranks", at_night_but([2], [1, 2, 8]))
def test_the_table_names_what_megatron_makes_in_the_same_shapes(
    ranks: int, folders: Folders, forked_workers: ForkedWorkers
) -> None:
    layouts = [layout for layout in LAYOUTS if layout.world_size == ranks]
    cases = [
        Case(folder=str(folder), layout=layout)
        for folder, layout in crossed(folders.values(), layouts)
    ]
    assert len(layouts) == {1: 1, 2: 6, 8: 1}[ranks]
    replies = forked_workers.run("latent_probe:made", cases, ranks=ranks)
    for index, case in enumerate(cases):
        sharding = megatron_sharding(read_description(case.folder), case.layout, dtype="float32")
        for rank, reply in enumerate(replies):
            table = sharding.table(rank)
            assert reply[index] == {name: entry.shape for name, entry in table.items()}


@pytest.mark.parametrize("ranks", at_night_but([2], [1, 2, 8]))
def test_what_the_ranks_hold_is_the_file_to_the_bit(
    ranks: int, folders: Folders, forked_workers: ForkedWorkers
) -> None:
    layouts = [layout for layout in LAYOUTS if layout.world_size == ranks]
    cases = [
        Case(folder=str(folders[name]), layout=layout)
        for name, layout in crossed(("V3", "V2 Lite"), layouts)
    ]
    replies: list[list[Weights]] = forked_workers.run("training_probe:held", cases, ranks=ranks)
    for index, case in enumerate(cases):
        filed = load_file(Path(case.folder) / "model.safetensors")
        found = assembled(case.folder, case.layout, [reply[index] for reply in replies])
        assert found.keys() == filed.keys()
        for name, tensor in filed.items():
            assert torch.equal(found[name], tensor), f"{name} in {case.layout}"


@pytest.mark.parametrize("ranks", at_night_but([2], [1, 2]))
def test_logits_are_those_of_hugging_face_to_1e_4(
    ranks: int, folders: Folders, forked_workers: ForkedWorkers
) -> None:
    layouts = [layout for layout in LAYOUTS if layout.world_size == ranks and layout.pp == 1]
    cases = [
        Case(folder=str(folder), layout=layout)
        for folder, layout in crossed(folders.values(), layouts)
    ]
    batch = sequences()
    replies: list[list[Tensor]] = forked_workers.run(
        "training_probe:logits", cases, batch, ranks=ranks
    )
    for index, case in enumerate(cases):
        # Logits of size 30 in float32, four layers.
        check_logits(case, batch, [reply[index] for reply in replies], 1e-4)


@pytest.mark.parametrize("model", at_night_but(["V3"], ["V2 Lite", "V3"]))
def test_three_updates_are_those_of_one_process(
    model: str, folders: Folders, forked_workers: ForkedWorkers
) -> None:
    folder, before = str(folders[model]), load_file(folders[model] / "model.safetensors")
    course = course_of(folder)
    ((alone,),) = forked_workers.run("training_probe:updates", [Case(folder=folder)], course)
    weights = assembled(folder, TrainLayout(), [alone.weights])
    layouts = [TrainLayout(tp=2), TrainLayout(dp=2, ep=2), TrainLayout(tp=2, ep=2)]
    cases = [Case(folder=folder, layout=layout) for layout in layouts]
    replies: list[list[Updated]] = forked_workers.run(
        "training_probe:updates", cases, course, ranks=2
    )
    for index, case in enumerate(cases):
        for reply in replies:
            for ours, theirs in zip(reply[index].metrics, alone.metrics, strict=True):
                # Norms of 3 to 30 in float32. Where a rank sums the rotary key's gradient over
                # its own heads only, the first norm is 4 % less in V2 and 7 % less in V3.
                assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)
        whole = assembled(folder, case.layout, [reply[index].weights for reply in replies])
        assert_moved_alike(whole, weights, before)


@pytest.mark.nightly
def test_a_router_keeps_its_float32_bias_through_a_release_and_three_updates_in_bfloat16(
    folders: Folders, forked_workers: ForkedWorkers
) -> None:
    folder, filed = str(folders["V3"]), load_file(folders["V3"] / "model.safetensors")
    course = course_of(folder)
    case = Case(folder=folder, layout=TrainLayout(dp=2, ep=2), bf16=True)
    for held in forked_workers.run("latent_probe:biases", case, course, ranks=2):
        for layer in (1, 2, 3):
            bias = held[f"chunk0.decoder.layers.{layer}.mlp.router.expert_bias"]
            assert torch.equal(
                bias, filed[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"]
            )
            assert not torch.equal(bias, bias.bfloat16().float())


def course_of(folder: str) -> Course:
    return Course(
        minibatches=minibatches(folder),
        loss=LOSS,
        optimizer=OPTIMIZER,
        micro_batching=MicroBatching(sequences=2),
    )


@pytest.mark.nightly
def test_engines_answer_as_if_they_had_loaded_the_exported_folder(
    tmp_path: Path, forked_workers: ForkedWorkers
) -> None:
    # The engine's latent attention on CPU is compiled for 512 + 64 and nothing else.
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32}
    save_random(MODELS["V3, whole queries"] | sizes, tmp_path)
    experts, tensors = RolloutLayout(tp=2, ep=2), RolloutLayout(tp=2)
    ways = [
        Way(folder=str(tmp_path), train=train, rollout=rollout)
        for train, rollout in [
            (TrainLayout(tp=2), experts),
            (TrainLayout(dp=2, ep=2), tensors),
            (TrainLayout(pp=2), experts),
        ]
    ]
    arrived = forked_workers.run("reshard_probe:into_engines", ways, PROMPTS, ranks=2)
    check_answers(arrived, len(ways))
