"""What the rollout on devices of its own needs, and what needs shared ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.role_places import places
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.preflight.derived_numbers import placement_text

MakeConfig = Callable[..., RunConfig]
INTEGRATED = "rl_config.use_integrated_worker"
DEVICES = "rl_config.rollout_resource.num_npus"
FIRST = "rl_config.rollout_resource.first"
ORDER = "rl_config.step_order"
ROLLOUT_TP = "generate_config.infer_tensor_parallel_size"
APART = {INTEGRATED: False, "rl_config.actor_resource.num_npus": 2, DEVICES: 6}


def found(run_config: MakeConfig, overrides: dict[str, Any]) -> list[str]:
    return [each.field for each in findings(run_config(Path("model"), overrides))]


def test_replicas_fill_the_devices_of_the_rollout_alone(run_config: MakeConfig) -> None:
    config = run_config(Path("model"), APART | {ROLLOUT_TP: 3})
    assert not findings(config)
    assert (config.world_size, config.devices, config.rollout_layout.replicas) == (2, 8, 2)
    assert found(run_config, APART | {ROLLOUT_TP: 4}) == [ROLLOUT_TP]


def test_without_devices_of_its_own_the_rollout_cannot_be_apart(run_config: MakeConfig) -> None:
    assert found(run_config, {INTEGRATED: False}) == [DEVICES]


@pytest.mark.parametrize("key", [DEVICES, FIRST, ORDER])
def test_keys_of_a_rollout_apart_are_refused_where_devices_are_shared(
    key: str, run_config: MakeConfig
) -> None:
    value = {DEVICES: 4, FIRST: True, ORDER: "asynchronous"}[key]
    assert found(run_config, {key: value}) == [key]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"rl_config.partial_rollout": True}, "rl_config.partial_rollout"),
        ({"rl_config.on_device_loss": "shrink"}, "rl_config.on_device_loss"),
        ({"rl_config.filter_groups_enable": True}, ""),
        ({"rl_config.filter_groups_enable": True, ORDER: "one_step_off"}, ""),
        ({"rl_config.adv_estimator": "remax"}, ""),
        ({"rl_config.adv_estimator": "remax", ORDER: "asynchronous"}, "rl_config.adv_estimator"),
        ({"rl_config.reproducible_sampling": False}, ""),
        (
            {"rl_config.reproducible_sampling": False, ORDER: "asynchronous"},
            "rl_config.reproducible_sampling",
        ),
    ],
)
def test_what_needs_shared_devices_or_turns_is_refused(
    changes: dict[str, Any], field: str, run_config: MakeConfig
) -> None:
    config = run_config(Path("model"), APART | changes)
    assert [each.field for each in findings(config)] == ([field] if field else [])


def test_training_lies_first_unless_it_is_said_otherwise(run_config: MakeConfig) -> None:
    nodes = {"rl_config.actor_resource.npus_per_node": 4, ROLLOUT_TP: 3}
    behind = run_config(Path("model"), APART | nodes).placement
    assert (behind.shares, behind.first_nodes) == ((2, 3, 3), (0, 1, 2))
    before = run_config(Path("model"), APART | nodes | {FIRST: True}).placement
    assert (before.shares, before.first_nodes) == ((3, 3, 2), (2, 0, 1))


def test_tokens_of_older_weights_are_corrected_for(run_config: MakeConfig) -> None:
    def level(**changes: Any) -> str | None:
        given = {"generate_config.dtype": "float32"} | APART
        given |= {f"rl_config.{key}": value for key, value in changes.items()}
        correction = run_config(Path("model"), given).rollout_correction
        return correction and correction.level

    assert level() is None
    assert level(step_order="one_step_off") == "token"
    assert level(step_order="asynchronous") == "token"
    assert level(step_order="asynchronous", max_staleness=0) is None


SERVERS, REMOTE = "generate_config.servers", "generate_config.servers_are_remote"
ROUTER = "vllm-router"
TWO = ["http://127.0.0.1:8000", "http://localhost:8001"]
SERVED = APART | {ROLLOUT_TP: 3, SERVERS: TWO, "generate_config.server_token_file": "token"}


def test_servers_are_the_replicas_and_no_processes_of_the_run(run_config: MakeConfig) -> None:
    config = run_config(Path("model"), SERVED)
    assert not findings(config)
    assert (config.devices, config.rollout_layout.replicas) == (2, 2)
    assert config.placement.shares == (2,)
    assert placement_text(config) == (
        "training on 2; replica 0 at http://127.0.0.1:8000; replica 1 at http://localhost:8001"
    )
    for wrong in (TWO[:1], [TWO[0], TWO[0]], [TWO[0], "http://127.0.0.1:port"]):
        assert found(run_config, SERVED | {SERVERS: wrong}) == [SERVERS], wrong
    token = "generate_config.server_token_file"
    assert found(run_config, SERVED | {token: None}) == [token]
    assert found(run_config, {SERVERS: TWO, token: "token"}) == [INTEGRATED]


def test_a_file_of_servers_has_up_to_as_many_as_there_are_replicas(run_config: MakeConfig) -> None:
    file = "generate_config.servers_file"
    listed = SERVED | {SERVERS: [], file: "servers.txt"}
    config = run_config(Path("model"), listed)
    assert not findings(config)
    assert (config.devices, config.rollout_layout.replicas) == (2, 2)
    said = "training on 2; up to 2 replica(s) at the addresses in servers.txt"
    assert placement_text(config) == said
    assert found(run_config, SERVED | {file: "servers.txt"}) == [file]
    token = "generate_config.server_token_file"
    assert found(run_config, {file: "servers.txt", token: "token"}) == [INTEGRATED]
    assert found(run_config, listed | {token: None}) == [token]
    assert not findings(run_config(Path("model"), listed | {"generate_config.router": ROUTER}))


def test_servers_of_sglang_are_named_by_the_string_of_the_rollout(run_config: MakeConfig) -> None:
    served = SERVED | {"generate_config.backend": "sglang:d2t3"}
    config = run_config(Path("model"), served)
    assert not findings(config)
    assert config.rollout_backend == "sglang"
    assert run_config(Path("model"), SERVED).rollout_backend == "vllm"
    sampling = "generate_config.sampling_config"
    assert found(run_config, served | {f"{sampling}.top_p": 0.9}) == [sampling]


def test_a_router_has_servers_of_vllm_behind_it(run_config: MakeConfig) -> None:
    router = {"generate_config.router": ROUTER}
    assert not findings(run_config(Path("model"), SERVED | router))
    for given in (APART, SERVED | {"generate_config.backend": "sglang:d2t3"}):
        assert found(run_config, given | router) == ["generate_config.router"]


@pytest.mark.parametrize("host", ["10.0.0.7", "engines.example", "0.0.0.0", "[2001:db8::1]"])
def test_a_server_on_another_machine_has_to_be_asked_for(host: str, run_config: MakeConfig) -> None:
    remote = SERVED | {SERVERS: [TWO[0], f"http://{host}:8000"]}
    assert found(run_config, remote) == [SERVERS]
    assert found(run_config, remote | {REMOTE: True}) == []


@pytest.mark.parametrize(
    "address", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", "file:///x", "http://[::1:8000"]
)
def test_what_is_no_address_of_a_server_is_refused(address: str, run_config: MakeConfig) -> None:
    assert found(run_config, SERVED | {SERVERS: [TWO[0], address]}) == [SERVERS]


ACTORS = "rl_config.actor_resource.num_npus"
CRITICS = "rl_config.critic_resource"
REFERENCES = "rl_config.reference_resource"
PPO = {"rl_config.adv_estimator": "gae", "rl_config.init_kl_coef": 0.1, "critic_config.lr": 1e-3}
HALVES = PPO | {
    ACTORS: 2,
    f"{CRITICS}.num_npus": 2,
    f"{CRITICS}.first_npu": 2,
    f"{REFERENCES}.num_npus": 4,
}


def test_each_role_fills_its_own_devices_of_one_world(run_config: MakeConfig) -> None:
    sizes = {"actor_config.tensor_model_parallel_size": 2}
    sizes |= {"critic_config.tensor_model_parallel_size": 1}
    config = run_config(Path("model"), HALVES | sizes)
    assert not findings(config)
    assert (config.world_size, config.devices, config.rollout_layout.replicas) == (4, 4, 4)
    layouts = {role: config.layout(role) for role in config.roles}
    assert [(each.tp, each.dp, each.ranks) for each in layouts.values()] == [
        (2, 1, range(2)),
        (2, 2, range(4)),
        (1, 2, range(2, 4)),
    ]
    both = ("actor", "ref")
    assert places(config) == (both, both, ("ref", "critic"), ("ref", "critic"))


def test_without_devices_of_its_own_a_role_has_the_actors(run_config: MakeConfig) -> None:
    config = run_config(Path("model"), PPO | {ACTORS: 3})
    assert {config.role_devices(role) for role in config.roles} == {range(3)}
    assert places(config) == ()
    later = {"rl_config.actor_resource.first_npu": 1, f"{CRITICS}.first_npu": 0}
    config = run_config(Path("model"), PPO | {ACTORS: 2} | later)
    assert [config.role_devices(role) for role in config.roles] == [
        range(1, 3),
        range(1, 3),
        range(2),
    ]


def test_servers_do_not_hide_an_illegal_size_of_the_rollout(run_config: MakeConfig) -> None:
    sizes = {ROLLOUT_TP: 2, "generate_config.infer_expert_parallel_size": 3}
    given = {"rl_config.actor_resource.num_npus": 2, DEVICES: 4}
    assert found(run_config, SERVED | given | sizes) == [
        "generate_config.infer_expert_parallel_size"
    ]
