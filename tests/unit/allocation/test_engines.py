"""The backend field of each engine."""

import pytest

from mindrl.allocation.into_config import read_engines
from mindrl.errors import ConfigError


def test_an_empty_critic_or_reference_takes_the_actors_backend() -> None:
    engines = read_engines({"critic": "", "actor": "megatron:d4t2", "ref": "fsdp:d8"})
    assert [(engine, str(each)) for engine, each in engines.items()] == [
        ("actor", "megatron:d4t2"),
        ("critic", "megatron:d4t2"),
        ("ref", "fsdp:d8"),
    ]


def test_an_empty_teacher_takes_the_actors_backend_too() -> None:
    engines = read_engines({"actor": "megatron:d4t2", "teacher": ""})
    assert str(engines["teacher"]) == "megatron:d4t2"


def test_a_run_without_a_critic_has_none() -> None:
    assert list(read_engines({"actor": "fsdp:d8", "rollout": "vllm:d8"})) == ["rollout", "actor"]


def test_a_name_that_the_field_says_already_is_dropped() -> None:
    engines = read_engines({"actor": "megatron[actor]:d4", "critic": ""})
    assert {engine: str(each) for engine, each in engines.items()} == {
        "actor": "megatron:d4",
        "critic": "megatron:d4",
    }


@pytest.mark.parametrize(
    ("backends", "message"),
    [
        (
            {"actr": "fsdp:d8"},
            "actr.backend: unknown engine; known: actor",
        ),
        (
            {"planner": "fsdp:d8"},
            (
                "planner.backend: unknown engine; known: rollout, actor, critic, ref, "
                "reward, teacher"
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
            "ref.backend is empty; move actor.backend there",
        ),
        (
            {"actor": "fsdp:d8p2"},
            (
                "actor.backend=fsdp:d8p2, character 8: 'p' is not a dimension of fsdp; "
                "known: d, t, c; megatron has it\n  fsdp:d8p2\n         ^"
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
                "actor.backend=fsdp[critic]:d8, character 5: the field already names "
                "actor; remove [critic]\n  fsdp[critic]:d8\n      ^"
            ),
        ),
    ],
)
def test_a_field_is_refused_with_its_name(backends: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_engines(backends)
    assert str(caught.value) == message
