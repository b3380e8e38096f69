"""The two halves of a run with separate rollout: each on its own devices, with its own rules."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.halves import on_its_own_devices
from mindrl.config.resources import MOST_DEVICES
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings

MakeConfig = Callable[..., RunConfig]
APART = {
    "rl_config.use_integrated_worker": False,
    "rl_config.actor_resource.num_npus": 2,
    "rl_config.rollout_resource.num_npus": 6,
    "generate_config.infer_tensor_parallel_size": 3,
}
STORED = {"rl_config.debug": "train_only", "rl_config.debug_rollouts": "rollouts"}
ROLLS_OUT = {
    "rl_config.debug": "rollout_only",
    "megatron_training.keep_rollouts": 10,
    "megatron_training.save_interval": 0,
}
JOB = {
    "spool_config.job": "train",
    "spool_config.folder": "spool",
    "megatron_training.save_interval": 1,
}
TRAINS = pytest.mark.parametrize("half", [STORED, JOB], ids=["stored", "job"])


def half_of(run_config: MakeConfig, overrides: dict[str, Any]) -> RunConfig:
    config = on_its_own_devices(run_config(Path("model"), overrides))
    assert [str(each) for each in findings(config)] == []
    return config


@TRAINS
def test_the_half_that_trains_keeps_the_devices_of_its_roles(
    half: dict[str, Any], run_config: MakeConfig
) -> None:
    spread = {
        "rl_config.adv_estimator": "gae",
        "critic_config.load": "critic",
        "rl_config.critic_resource.first_npu": 2,
    }
    config = half_of(run_config, APART | half | spread)
    assert (config.world_size, config.devices) == (4, 4)
    assert config.role_devices("actor") == range(2)
    assert config.role_devices("critic") == range(2, 4)


@TRAINS
def test_the_half_that_trains_has_no_engine(half: dict[str, Any], run_config: MakeConfig) -> None:
    servers = {
        "generate_config.servers": ["http://127.0.0.1:8000", "http://127.0.0.1:8001"],
        "generate_config.server_token_file": "token",
    }
    config = half_of(run_config, APART | half | servers)
    assert not config.generate_config.is_served
    shared = {"generate_config.infer_tensor_parallel_size": 3}
    assert half_of(run_config, shared | STORED).generate_config.infer_tensor_parallel_size == 1


def test_the_half_that_generates_trains_nothing_and_starts_at_device_0(
    run_config: MakeConfig,
) -> None:
    """Six devices share no update of 16 sequences, and the actor's offset is that of training."""
    first = {
        "rl_config.actor_resource.first_npu": 4,
        "generate_config.infer_tensor_parallel_size": 1,
    }
    config = half_of(run_config, APART | ROLLS_OUT | first)
    assert (config.world_size, config.rollout_layout.replicas) == (6, 6)
    assert config.role_devices("actor") == range(6)


ROLLOUT_JOB = {"spool_config.job": "rollout", "spool_config.folder": "spool"}
CRITIC = {"rl_config.adv_estimator": "gae", "critic_config.load": "critic"}
TRAINS_ELSEWHERE = {
    "shards of four devices": {
        **APART,
        "rl_config.actor_resource.num_npus": 4,
        "actor_config.backend": "archon:d4",
        "actor_config.archon.fsdp_size": 4,
        "rl_config.rollout_resource.num_npus": 3,
    },
    "a pipeline": {
        **APART,
        "actor_config.backend": "archon:d1p2",
        "actor_config.pipeline_model_parallel_size": 2,
        "actor_config.archon.pp_schedule": "1F1B",
    },
    "ranks without profiles": {
        **APART,
        "profiler_config.profile_ranks": [1],
        "rl_config.rollout_resource.num_npus": 1,
        "generate_config.infer_tensor_parallel_size": 1,
    },
    "an actor after its critic": {
        **CRITIC,
        "rl_config.actor_resource.first_npu": 1,
        "rl_config.critic_resource.first_npu": 0,
    },
}


@pytest.mark.parametrize("half", [ROLLS_OUT, ROLLOUT_JOB], ids=["rollout_only", "job"])
@pytest.mark.parametrize("kind", TRAINS_ELSEWHERE)
def test_rules_of_training_do_not_apply_to_the_half_that_generates(
    kind: str, half: dict[str, Any], run_config: MakeConfig
) -> None:
    whole = run_config(Path("model"), TRAINS_ELSEWHERE[kind])
    assert [str(each) for each in findings(whole)] == []
    assert half_of(run_config, TRAINS_ELSEWHERE[kind] | half).roles == ("actor",)


def test_a_rollout_on_the_devices_of_all_roles_keeps_them(run_config: MakeConfig) -> None:
    """A replica of two devices, one of the actor and one of the critic."""
    two = {
        "rl_config.critic_resource.first_npu": 1,
        "generate_config.infer_tensor_parallel_size": 2,
    }
    config = half_of(run_config, CRITIC | ROLLS_OUT | two)
    assert (config.world_size, config.rollout_layout.replicas) == (2, 1)
    assert config.role_devices("actor") == range(2)


@pytest.mark.parametrize("half", [ROLLS_OUT, ROLLOUT_JOB], ids=["rollout_only", "job"])
@pytest.mark.parametrize(
    ("key", "value", "none"),
    [("servers", ["http://127.0.0.1:8000"], ()), ("servers_file", "servers.txt", None)],
)
def test_the_half_that_generates_has_no_servers(
    half: dict[str, Any], key: str, value: object, none: object, run_config: MakeConfig
) -> None:
    key = f"generate_config.{key}"
    config = on_its_own_devices(run_config(Path("model"), APART | half | {key: value}))
    (found,) = findings(config)
    assert (found.field, found.legal) == (key, (none,))
    assert "cannot be used" in str(found)


def test_a_missing_number_of_devices_of_the_rollout_is_named(run_config: MakeConfig) -> None:
    none = APART | ROLLS_OUT | {"rl_config.rollout_resource.num_npus": None}
    config = on_its_own_devices(run_config(Path("model"), none))
    assert "rl_config.rollout_resource.num_npus" in [each.field for each in findings(config)]


@pytest.mark.parametrize(("section", "legal"), [("actor_resource", 0), ("critic_resource", None)])
def test_a_rollout_on_more_devices_than_a_run_may_have_is_refused(
    section: str, legal: int | None, run_config: MakeConfig
) -> None:
    key = f"rl_config.{section}.first_npu"
    late = {"rl_config.actor_resource.num_npus": 2, key: MOST_DEVICES - 1}
    config = on_its_own_devices(run_config(Path("model"), CRITIC | ROLLS_OUT | late))
    (found,) = findings(config)
    assert (found.field, found.legal) == (key, (legal,))
