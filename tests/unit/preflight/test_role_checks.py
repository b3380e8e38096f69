"""Findings about roles other than the actor, before a cluster is started."""

from dataclasses import replace
from pathlib import Path

import pytest
from checked_runs import (
    ACTOR,
    CPU,
    DEVICES,
    TRAIN_EP,
    TRAIN_TP,
    MakeConfig,
    model_folder,
    overrides,
    refused,
)

from mindrl.allocation.meaning import parse_backend
from mindrl.models.description import read_description
from mindrl.preflight.checks import check, checked_with_legal_values
from mindrl.preflight.memory_plan import Capacity
from mindrl.preflight.model_checks import training_findings

KL = {"rl_config.init_kl_coef": 0.1}


def test_a_reference_of_another_shape_must_fit_the_training_layout_too(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    other = model_folder(tmp_path / "other", num_attention_heads=7, num_key_value_heads=1)
    field = "rl_config.integrated_mode_config.ref_model_load_path"
    with_other = {field: str(other), "rl_config.init_kl_coef": 0.1, DEVICES: 2, TRAIN_TP: 2}
    config = run_config(model_folder(tmp_path / "model"), overrides(tmp_path) | with_other)
    assert refused(config)[0] == (
        f"{field}={other}: ref_config.tensor_model_parallel_size=2 must divide "
        "num_attention_heads=7; nearest: 1, 7"
    )


@pytest.mark.parametrize("role", ["critic", "ref", "reward", "teacher"])
def test_a_role_with_another_model_is_told_its_own_keys_for_the_actors_sizes(
    role: str, tmp_path: Path, run_config: MakeConfig
) -> None:
    head = {"labels": 1} if role in ("critic", "reward") else {}
    sizes = {"num_attention_heads": 7, "num_key_value_heads": 1, "num_hidden_layers": 3}
    other = model_folder(tmp_path / "other", **head, **sizes)
    model = model_folder(tmp_path / "model", num_hidden_layers=4)
    keys = overrides(tmp_path) | {DEVICES: 2, f"{role}_config.load": str(other)}
    keys |= {"critic": {"rl_config.adv_estimator": "gae"}, "ref": KL}.get(role, {})
    stages = {f"{ACTOR}.pipeline_model_parallel_size": 2}
    for cut, name, value, legal in (
        ({TRAIN_TP: 2}, "tensor_model_parallel_size", 2, (1,)),
        ({f"{ACTOR}.context_parallel_size": 2}, "context_parallel_size", 2, (1,)),
        (stages, "pipeline_model_parallel_size", 2, (1,)),
        (stages | {f"{ACTOR}.num_layer_list": [3, 1]}, "num_layer_list", (3, 1), ((2, 1),)),
    ):
        config = run_config(model, keys | cut)
        (finding,) = checked_with_legal_values(config, CPU, Capacity()).findings
        assert str(finding).startswith(f"{role}_config.load={other}: {role}_config.{name}=")
        assert (finding.value, finding.legal) == (value, legal)
        check(run_config(model, keys | cut | {f"{role}_config.{name}": legal[0]}), CPU)


def test_a_layout_of_its_own_lets_a_reference_of_another_shape_fit(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    other = model_folder(tmp_path / "other", num_attention_heads=7, num_key_value_heads=1)
    model = model_folder(tmp_path / "model")
    shared = {"ref_config.load": str(other), "rl_config.init_kl_coef": 0.1, DEVICES: 2, TRAIN_TP: 2}
    own = shared | {"ref_config.tensor_model_parallel_size": 1}
    check(run_config(model, overrides(tmp_path) | own), CPU)
    wrong = shared | {DEVICES: 4, TRAIN_TP: 1, "ref_config.tensor_model_parallel_size": 4}
    assert refused(run_config(model, overrides(tmp_path) | wrong)) == [
        (
            f"ref_config.load={other}: ref_config.tensor_model_parallel_size=4 must divide "
            "num_attention_heads=7; nearest: 1, 7"
        )
    ]


def test_a_dense_model_beside_a_mixture_is_told_its_own_expert_sizes(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    experts = {"model_type": "qwen3_moe", "moe_intermediate_size": 12, "num_experts": 12}
    mixture = model_folder(tmp_path / "mixture", num_experts_per_tok=2, **experts)
    dense = model_folder(tmp_path / "dense")
    keys = overrides(tmp_path) | {"ref_config.load": str(dense), "rl_config.init_kl_coef": 0.1}
    keys |= {DEVICES: 4, TRAIN_EP: 4}
    field = "ref_config.expert_model_parallel_size"
    (finding,) = checked_with_legal_values(run_config(mixture, keys), CPU, Capacity()).findings
    assert str(finding) == (f"ref_config.load={dense}: {field}=4 needs a model with experts; use 1")
    assert (finding.field, finding.legal) == (field, (1,))
    check(run_config(mixture, keys | {field: 1}), CPU)


def test_a_reference_that_is_reset_is_the_actors_model(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    other = model_folder(tmp_path / "other", num_attention_heads=7, num_key_value_heads=1)
    reset = {"rl_config.init_kl_coef": 0.1, "rl_config.ref_update_interval": 5}
    config = run_config(
        model_folder(tmp_path / "model"),
        overrides(tmp_path) | reset | {"ref_config.load": str(other)},
    )
    assert refused(config) == [
        (
            f"ref_config.load={other} must be the actor's model with "
            "rl_config.ref_update_interval, which copies the actor's weights into it"
        )
    ]


def test_what_roles_of_one_model_break_together_is_said_once(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    roles = {"rl_config.init_kl_coef": 0.1, "rl_config.adv_estimator": "gae", "critic_config.lr": 1}
    sizes = {DEVICES: 8, TRAIN_TP: 8}
    model = model_folder(tmp_path / "model")
    assert refused(run_config(model, overrides(tmp_path) | roles | sizes)) == [
        f"{TRAIN_TP}=8 must divide num_attention_heads=28; nearest: 7, 14"
    ]
    nowhere = refused(run_config(tmp_path / "nowhere", overrides(tmp_path) | roles))
    assert nowhere == [f"{ACTOR}.load: model folder {tmp_path}/nowhere does not exist"]


def test_a_critics_recomputation_is_judged_by_its_own_chunks(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    model = model_folder(tmp_path / "model", num_hidden_layers=6)
    critic = {
        DEVICES: 2,
        "rl_config.adv_estimator": "gae",
        "critic_config.pipeline_model_parallel_size": 2,
        "critic_config.recompute_granularity": "full",
        "critic_config.recompute_method": "uniform",
        "critic_config.recompute_num_layers": 2,
    }
    assert refused(run_config(model, overrides(tmp_path) | critic)) == [
        (
            "critic_config.recompute_num_layers=2 must divide the layers of a pipeline chunk=3; "
            "nearest: 1, 3"
        )
    ]
    alone = critic | {"critic_config.pipeline_model_parallel_size": 1}
    check(run_config(model, overrides(tmp_path) | alone), CPU)


def test_a_critic_reads_the_actors_tokens_and_sequences(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    model = model_folder(tmp_path / "model")
    values = model_folder(tmp_path / "values", vocab_size=100, max_position_embeddings=48)
    critic = {"rl_config.adv_estimator": "gae", "critic_config.load": str(values)}
    assert refused(run_config(model, overrides(tmp_path) | critic)) == [
        f"critic_config.load={values} has a vocabulary of 100 tokens; the actor's has 96",
        (
            f"critic_config.load={values}: megatron_training.seq_length=64 exceeds its "
            "max_position_embeddings=48"
        ),
    ]


def test_a_reference_with_another_vocabulary_is_refused_where_there_is_a_kl_term(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    model = model_folder(tmp_path / "model")
    other = model_folder(tmp_path / "other", vocab_size=100)
    field = "rl_config.integrated_mode_config.ref_model_load_path"
    with_other = overrides(tmp_path) | {field: str(other)}
    assert refused(run_config(model, with_other | {"rl_config.init_kl_coef": 0.1})) == [
        f"{field}={other} has a vocabulary of 100 tokens; the actor's has 96"
    ]
    check(run_config(model, with_other), CPU)


def test_a_reward_model_needs_a_value_head_of_one_row_and_a_critic_may_lack_it(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    model = model_folder(tmp_path / "model")
    judge = model_folder(tmp_path / "judge", labels=1)
    two = model_folder(tmp_path / "two", labels=2)
    gae = overrides(tmp_path) | {"rl_config.adv_estimator": "gae"}
    for folder in (model, judge):
        check(run_config(model, gae | {"critic_config.load": str(folder)}), CPU)
    check(run_config(model, overrides(tmp_path) | {"reward_config.load": str(judge)}), CPU)
    assert refused(run_config(model, overrides(tmp_path) | {"reward_config.load": str(model)})) == [
        (
            f"reward_config.load: {model}: no tensor score.weight; a reward model needs "
            "this head, and a causal language model lacks it"
        )
    ]
    for key, base in (("reward_config.load", overrides(tmp_path)), ("critic_config.load", gae)):
        assert refused(run_config(model, base | {key: str(two)})) == [
            (f"{key}: {two}: tensor score.weight has shape [2, 28]; config.json needs [1, 28]")
        ]


def test_a_classifier_is_no_actor(tmp_path: Path, run_config: MakeConfig) -> None:
    judge = model_folder(tmp_path / "judge", labels=1)
    assert refused(run_config(judge, overrides(tmp_path))) == [
        f"{ACTOR}.load: {judge}: no tensor lm_head.weight; config.json needs [96, 28]"
    ]


def test_a_model_that_an_engine_does_not_build_is_answered_with_the_one_that_does(
    run_config: MakeConfig,
) -> None:
    folder = Path(__file__).parents[3] / "configs/models/DeepSeek-V3"
    model, backend = read_description(str(folder), to_plan=True), f"{ACTOR}.backend"
    config = run_config(folder, {backend: "archon:d4", DEVICES: 4})
    (found,) = training_findings(config, "actor", model)
    assert str(found) == (
        f"{backend}=archon:d4: latent attention, shared experts, a bias of expert routing, "
        "expert groups need megatron"
    )
    assert (found.value, found.legal) == ("archon:d4", ("megatron:d4",))
    ours = run_config(folder, {backend: "megatron:d4", DEVICES: 4})
    assert list(training_findings(ours, "actor", model)) == []


def test_the_string_of_another_engine_has_no_letters_that_it_lacks(run_config: MakeConfig) -> None:
    folder = Path(__file__).parents[3] / "configs/models/Qwen3-Next-80B-A3B"
    model, backend = read_description(str(folder), to_plan=True), f"{ACTOR}.backend"
    sizes = {TRAIN_TP: 2, f"{ACTOR}.pipeline_model_parallel_size": 2, DEVICES: 8}
    sizes |= {f"{ACTOR}.virtual_pipeline_model_parallel_size": 2}
    config = run_config(folder, sizes | {backend: "megatron:d2p2t2v2"})
    (found,) = training_findings(config, "actor", model)
    assert str(found).startswith(f"{backend}=megatron:d2p2t2v2: gated delta nets need archon")
    assert found.legal == ("archon:d2p2t2",)
    assert parse_backend("archon:d2p2t2").layout.pp == 2


def test_experts_are_as_wide_on_a_rank_as_products_of_groups_take(run_config: MakeConfig) -> None:
    folder = Path(__file__).parents[3] / "configs/models/Qwen3-30B-A3B"
    model, backend = read_description(str(folder), to_plan=True), f"{ACTOR}.backend"
    assert model.moe is not None
    narrow = replace(model, moe=replace(model.moe, intermediate_size=12))
    asked = {backend: "archon:d2", DEVICES: 2, "megatron_training.bf16": True}
    config = run_config(folder, asked)
    assert list(training_findings(config, "actor", model)) == []
    (found,) = training_findings(config, "actor", narrow)
    assert str(found) == (
        f"{backend}=archon:d2: archon needs experts with a width per rank that is a "
        "multiple of 8, found 12"
    )
    assert found.legal == ("megatron:d2",)
    exact = run_config(folder, asked | {"megatron_training.bf16": False})
    assert list(training_findings(exact, "actor", narrow)) == []
