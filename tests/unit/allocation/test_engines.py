"""The backend field of each engine, and which engines share devices."""

import pytest

from mindrl.allocation.engines import map_engines, read_engines
from mindrl.errors import ConfigError


def test_an_empty_critic_or_reference_takes_the_actors_backend() -> None:
    engines = read_engines({"critic": "", "actor": "megatron:d4t2", "ref": "fsdp:d8"})
    assert [(engine, str(each)) for engine, each in engines.items()] == [
        ("actor", "megatron:d4t2"),
        ("critic", "megatron:d4t2"),
        ("ref", "fsdp:d8"),
    ]


def test_a_run_without_a_critic_has_none() -> None:
    assert list(read_engines({"actor": "fsdp:d8", "rollout": "vllm:d8"})) == ["rollout", "actor"]


def test_a_name_that_the_field_says_already_is_dropped() -> None:
    engines = read_engines({"actor": "megatron[actor]:d4", "critic": ""})
    assert {engine: str(each) for engine, each in engines.items()} == {
        "actor": "megatron:d4",
        "critic": "megatron:d4",
    }


def test_engines_share_devices_unless_the_rollout_is_asked_to_stand_apart() -> None:
    engines = read_engines({"rollout": "vllm:d2t4", "actor": "megatron:d4t2", "ref": "fsdp:d8"})
    together = map_engines(engines)
    assert {role: placed.devices for role, placed in together.roles.items()} == {
        "rollout": range(8),
        "actor": range(8),
        "ref": range(8),
    }
    apart = map_engines(engines, rollout_apart=True)
    assert {role: placed.devices for role, placed in apart.roles.items()} == {
        "rollout": range(8),
        "actor": range(8, 16),
        "ref": range(8, 16),
    }


def test_a_rollout_that_stands_apart_may_have_fewer_devices() -> None:
    engines = read_engines({"rollout": "vllm:t4", "actor": "fsdp:d8"})
    assert map_engines(engines, rollout_apart=True).devices == 12
    with pytest.raises(ConfigError) as caught:
        map_engines(engines)
    assert str(caught.value) == (
        "rollout.backend=vllm:d1t4: this engine has 4 ranks and actor, on the same devices, has 8; "
        "write d2"
    )


@pytest.mark.parametrize("apart", [True, False])
def test_engines_may_be_only_a_rollout_or_none(apart: bool) -> None:
    rollout = read_engines({"rollout": "sglang:d4"})
    assert map_engines(rollout, rollout_apart=apart).devices == 4
    assert map_engines({}, rollout_apart=apart).devices == 0


@pytest.mark.parametrize(
    ("backends", "message"),
    [
        (
            {"actr": "fsdp:d8"},
            "actr.backend: there is no such engine; known: actor",
        ),
        (
            {"planner": "fsdp:d8"},
            (
                "planner.backend: there is no such engine; "
                "known: rollout, actor, critic, ref, reward, teacher"
            ),
        ),
        (
            {"rollout": ""},
            ("rollout.backend=, character 1: the backend is missing; write vllm:d2t2\n  \n  ^"),
        ),
        (
            {"rollout": "d4t2"},
            (
                "rollout.backend=d4t2, character 1: the backend is missing; write vllm:d4t2\n"
                "  d4t2\n"
                "  ^"
            ),
        ),
        (
            {"ref": ""},
            "ref.backend is empty and takes actor.backend; write that",
        ),
        (
            {"actor": "fsdp:d8p2"},
            (
                "actor.backend=fsdp:d8p2, character 8: 'p' is no dimension of fsdp; "
                "known: d, t, c; megatron has it\n"
                "  fsdp:d8p2\n"
                "         ^"
            ),
        ),
        (
            {"rollout": "fsdp:d8"},
            (
                "rollout.backend=fsdp:d8, character 1: fsdp does not generate; "
                "write vllm or sglang\n"
                "  fsdp:d8\n"
                "  ^"
            ),
        ),
        (
            {"actor": "vllm:d8"},
            (
                "actor.backend=vllm:d8, character 1: vllm does not train; "
                "write megatron, archon or fsdp\n"
                "  vllm:d8\n"
                "  ^"
            ),
        ),
        (
            {"actor": "fsdp[critic]:d8"},
            (
                "actor.backend=fsdp[critic]:d8, character 5: the field says actor already; "
                "leave [critic] out\n"
                "  fsdp[critic]:d8\n"
                "      ^"
            ),
        ),
    ],
)
def test_a_field_is_refused_with_its_name(backends: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_engines(backends)
    assert str(caught.value) == message
