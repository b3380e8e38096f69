"""Runs with a model of a family that mindrl has no network of: where they are taken."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mindrl.config.finding import Finding
from mindrl.config.run import RunConfig
from mindrl.layouts.layout import RolloutLayout
from mindrl.models.description import ModelDescription, read_description
from mindrl.preflight.adapter_checks import adapter_findings_on
from mindrl.preflight.model_checks import describe_models, model_findings
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.rollout.planning import rollout_findings
from mindrl.rollout.vllm.architectures import installed_architectures

MakeModel = Callable[..., Path]
MakeConfig = Callable[..., RunConfig]
FSDP = {"actor_config.backend": "fsdp"}


def test_it_is_planned_where_fsdp_trains_and_every_rank_of_the_engine_gets_all(
    random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    config = run_config(random_model_of("stablelm"), FSDP)
    models, unread = describe_models(config)
    assert not unread
    assert not model_findings(config, models)
    shardings = unordered_shardings(config)
    actor, rollout = shardings.training["actor"], shardings.rollout
    assert shardings.plan.rollout == RolloutLayout()
    assert actor.table(0).keys() == rollout.table(0).keys()
    assert actor.held_bytes() == rollout.held_bytes()


@pytest.mark.parametrize("engine", ["megatron", "archon"])
def test_any_other_engine_refuses_it_and_names_fsdp(
    random_model_of: MakeModel, run_config: MakeConfig, engine: str
) -> None:
    config = run_config(random_model_of("stablelm"), {"actor_config.backend": engine})
    _, (finding,) = describe_models(config)
    assert "model_type='stablelm' is not supported" in str(finding)
    assert "fsdp trains models of any family" in str(finding)


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_next", "qwen3_5_moe_text"])
def test_megatron_refuses_gated_delta_nets_with_the_reason_and_archon_takes_them(
    family: str, random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    folder = random_model_of(family)

    def findings(backend: str) -> tuple[ModelDescription, list[Finding]]:
        asked = {"actor_config.backend": backend, "generate_config.enable_prefix_caching": False}
        config = run_config(folder, asked)
        models, unread = describe_models(config)
        assert not unread
        return models["actor"], [*model_findings(config, models)]

    _, (refused, *_) = findings("megatron")
    assert "gated delta nets need archon or fsdp: megatron-core 0.16 has them only" in str(refused)
    assert refused.legal == ("archon:d1",)
    own, none = findings("archon:d1")
    assert not none
    assert own.other is None
    of_transformers, none = findings("fsdp:d1")
    assert not none
    assert of_transformers.other is not None
    assert own.delta == of_transformers.delta
    assert (own.attention_layers, of_transformers.attention_layers) == (1, 1)


@pytest.mark.parametrize("backend", ["fsdp:d1", "archon:d1"])
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_a_folder_with_a_tower_is_planned_as_that_of_its_decoder(
    family: str, backend: str, random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    asked = {"actor_config.backend": backend, "generate_config.enable_prefix_caching": False}
    planned = []
    for name in (family, f"{family}_text"):
        config = run_config(random_model_of(name), asked)
        models, unread = describe_models(config)
        assert not unread
        assert not model_findings(config, models)
        shardings = unordered_shardings(config)
        planned.append((shardings.training["actor"], shardings.rollout))
    for nested, flat in zip(*planned, strict=True):
        # Neither side has the tower, or the layer that drafts.
        assert nested.held_bytes() == flat.held_bytes()
        assert nested.table(0) == flat.table(0)


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5_moe_text"])
def test_mixtures_with_gated_delta_nets_are_planned_with_whole_experts_and_their_own_routes(
    family: str, random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    asked = FSDP | {"generate_config.enable_prefix_caching": False}
    folder = random_model_of(family)
    config = run_config(folder, asked)
    models, unread = describe_models(config)
    assert not unread
    assert not model_findings(config, models)
    shardings = unordered_shardings(config)
    # All numbers, once; the engine's vocabulary is padded from 211 to 256 tokens, in both ends.
    trained, rolled_out = shardings.training["actor"].held_bytes(), shardings.rollout.held_bytes()
    assert rolled_out == tuple(each + 2 * 45 * 128 * 4 for each in trained)
    other = run_config(folder, asked | {"actor_config.moe_aux_loss_coeff": 0.01})
    (finding,) = model_findings(other, models)
    assert "needs a model with experts that mindrl's own networks route" in str(finding)
    assert not model_findings(
        run_config(folder, asked | {"actor_config.router_replay": "R3"}), models
    )
    cut = {
        "actor_config.backend": "fsdp:d1e2",
        "rl_config.actor_resource.num_npus": 2,
        "actor_config.expert_model_parallel_size": 2,
    }
    (finding,) = model_findings(run_config(folder, asked | cut), models)
    assert "must be 1 for Qwen3" in str(finding)


def test_adapters_on_experts_with_gated_delta_nets_are_refused_without_megatron(
    random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    key = "actor_config.lora.target_modules"
    asked = {"actor_config.lora.r": 2, key: ["o_proj", "down_proj"]}
    folder = random_model_of("qwen3_5_moe_text")
    config = run_config(folder, asked | {"actor_config.backend": "archon:d1"})
    (found,) = adapter_findings_on(config, read_description(str(folder)))
    assert str(found).startswith(f"{key}=o_proj,down_proj must exclude expert layers: ")
    assert found.legal == (("o_proj",),)


def test_shared_prefixes_are_refused_of_gated_delta_nets_not_by_the_engine_but_by_check(
    random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    folder = random_model_of("qwen3_5_text")
    config = run_config(folder, FSDP)
    models, _ = describe_models(config)
    (finding,) = model_findings(config, models)
    assert str(finding).startswith(
        "generate_config.enable_prefix_caching=true must be false for Qwen3_5ForCausalLM: its "
    )
    assert finding.legal == (False,)
    off = run_config(folder, FSDP | {"generate_config.enable_prefix_caching": False})
    assert not model_findings(off, models)


def test_a_critic_of_such_a_family_has_a_value_head_in_the_place_of_the_other(
    random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    folder = random_model_of("stablelm")
    critic = {"critic_config.load": str(folder), "rl_config.adv_estimator": "gae"}
    config = run_config(folder, FSDP | critic)
    models, unread = describe_models(config)
    assert not unread
    assert not model_findings(config, models)
    shardings = unordered_shardings(config).training
    actor, critic = (shardings[role].table(0).keys() for role in ("actor", "critic"))
    assert actor ^ critic == {"lm_head.weight", "score.weight"}


def test_a_reward_model_of_such_a_family_needs_its_head(
    random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    folder = random_model_of("stablelm")
    config = run_config(folder, FSDP | {"reward_config.load": str(folder)})
    _, (finding,) = describe_models(config)
    assert str(finding).startswith("reward_config.load: ")
    assert "no tensor score.weight; a reward model needs this head" in str(finding)


@pytest.mark.parametrize(("family", "fits"), [("granite", True), ("stablelm", False)])
def test_tensor_ranks_are_taken_where_transformers_has_a_plan_and_have_all_tokens(
    family: str, fits: bool, random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    asked = {
        "actor_config.backend": "fsdp:d1t2",
        "rl_config.actor_resource.num_npus": 2,
        "actor_config.tensor_model_parallel_size": 2,
    }
    config = run_config(random_model_of(family), asked)
    models, _ = describe_models(config)
    found = [str(each) for each in model_findings(config, models)]
    assert [each.partition(" needs")[0] for each in found] == (
        [] if fits else ["actor_config.tensor_model_parallel_size=2"]
    )
    if fits:
        shares = run_config(
            random_model_of(family), asked | {"megatron_training.sequence_parallel": True}
        )
        (finding,) = model_findings(shares, models)
        assert str(finding).startswith("megatron_training.sequence_parallel=true is not ")


@pytest.mark.parametrize(
    ("name", "shape", "refused"),
    [
        ("mlp.experts.0.up_proj.weight", (8, 8), True),
        ("block_sparse_moe.input_linear.weight", (4, 16, 8), True),
        ("conv.weight", (8, 1, 4), False),
    ],
)
def test_experts_are_refused_under_whatever_name(
    name: str,
    shape: tuple[int, ...],
    refused: bool,
    random_model_of: MakeModel,
    run_config: MakeConfig,
) -> None:
    config = run_config(random_model_of("stablelm"), FSDP)
    models, _ = describe_models(config)
    other = models["actor"].other
    assert other is not None
    tensors = (*other.tensors, (f"model.layers.0.{name}", shape))
    mixture = replace(models["actor"], other=replace(other, tensors=tensors))
    found = rollout_findings(mixture, RolloutLayout(), {"model": "actor_config.load"})
    said = "actor_config.load: StableLmForCausalLM has experts"
    assert [str(each).startswith(said) for each in found] == [True] * refused


def test_what_vllm_does_not_name_is_refused(
    random_model_of: MakeModel, run_config: MakeConfig, tmp_path: Path
) -> None:
    for file in random_model_of("stablelm").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    values = json.loads((tmp_path / "config.json").read_text("utf-8"))
    named = json.dumps(values | {"architectures": ["NobodysForCausalLM"]})
    (tmp_path / "config.json").write_text(named, "utf-8")
    config = run_config(tmp_path, FSDP)
    models, _ = describe_models(config)
    found = model_findings(config, models)
    assert [*map(str, found)] == [
        "actor_config.load: the installed vLLM does not support NobodysForCausalLM"
    ]
    assert "StableLmForCausalLM" in (installed_architectures() or ())
