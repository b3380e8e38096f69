"""Runs with a model of a family that mindrl has no network of: where they are taken."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mindrl.config.run import RunConfig
from mindrl.layouts.layout import RolloutLayout
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
    assert "where fsdp trains every role" in str(finding)


def test_a_critic_of_such_a_family_is_refused(
    random_model_of: MakeModel, run_config: MakeConfig
) -> None:
    folder = str(random_model_of("stablelm"))
    critic = {"critic_config.load": folder, "rl_config.adv_estimator": "gae"}
    config = run_config(Path(folder), FSDP | critic)
    _, (finding,) = describe_models(config)
    assert str(finding).startswith("critic_config.load: ")


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
    assert [*map(str, found)] == ["actor_config.load: the vLLM here has no NobodysForCausalLM"]
    assert "StableLmForCausalLM" in (installed_architectures() or ())
