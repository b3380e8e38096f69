"""Strings that AReaL documents, as they are written there, and what they mean here."""

from typing import Any

import pytest
import yaml

from mindrl.allocation.grammar import AllocationError
from mindrl.allocation.into_config import read_engines
from mindrl.allocation.meaning import parse_backend, parse_mode
from mindrl.config.backends import BACKENDS
from mindrl.layouts.layout import RolloutLayout, TrainLayout

EACH_ENGINE = """
rollout:
  backend: "sglang:d4t2"
actor:
  backend: "fsdp:d8"
critic:
  backend: ""
ref:
  backend: ""
"""
SIXTEEN_DEVICES = """
rollout:
  backend: "sglang:d2t4"
actor:
  backend: "fsdp:d4t2"
"""
MIXTURE = """
actor:
  backend: "megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)"
"""


def fields(text: str) -> dict[str, str]:
    sections: dict[str, Any] = yaml.safe_load(text)
    return {engine: section["backend"] for engine, section in sections.items()}


@pytest.mark.parametrize(
    ("text", "devices", "layout"),
    [
        ("fsdp:d8", 8, TrainLayout(dp=8)),
        ("sglang:d2t4", 8, RolloutLayout(dp=2, tp=4)),
        ("megatron:d2p2t4", 16, TrainLayout(dp=2, pp=2, tp=4)),
        ("megatron:d2p2t4e4", 16, TrainLayout(dp=2, pp=2, tp=4, ep=4)),
        ("fsdp:d4t2", 8, TrainLayout(dp=4, tp=2)),
        ("sglang:d4t2", 8, RolloutLayout(dp=4, tp=2)),
        ("sglang:d4t4", 16, RolloutLayout(dp=4, tp=4)),
        ("megatron:d4p2t2", 16, TrainLayout(dp=4, pp=2, tp=2)),
        ("vllm:d2t4", 8, RolloutLayout(dp=2, tp=4)),
        ("sglang:d2t2p2", 8, RolloutLayout(dp=2, tp=2, pp=2)),
        ("archon:d4p2t2", 16, TrainLayout(dp=4, pp=2, tp=2)),
        (
            "megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)",
            32,
            TrainLayout(dp=4, pp=2, tp=2, cp=2, etp=4, ep=2),
        ),
        (
            "archon:(attn:d1p4t2c2|ffn:d1p4t1e4)",
            16,
            TrainLayout(dp=1, pp=4, tp=2, cp=2, ep=4),
        ),
    ],
)
def test_a_backend_string_has_the_documented_number_of_devices(
    text: str, devices: int, layout: TrainLayout | RolloutLayout
) -> None:
    allocation = parse_backend(text)
    assert (allocation.world_size, allocation.layout) == (devices, layout)
    assert allocation.backend == text.partition(":")[0]


def test_each_engine_has_a_field_and_an_empty_one_takes_that_of_the_actor() -> None:
    engines = read_engines(fields(EACH_ENGINE))
    assert {engine: str(each) for engine, each in engines.items()} == {
        "rollout": "sglang:d4t2",
        "actor": "fsdp:d8",
        "critic": "fsdp:d8",
        "ref": "fsdp:d8",
    }


def test_sixteen_devices_are_eight_for_the_rollout_and_eight_for_the_training() -> None:
    engines = read_engines(fields(SIXTEEN_DEVICES))
    assert {engine: each.world_size for engine, each in engines.items()} == {
        "rollout": 8,
        "actor": 8,
    }


def test_attention_and_experts_of_one_engine_cover_the_same_32_devices() -> None:
    layout = read_engines(fields(MIXTURE))["actor"].layout
    assert isinstance(layout, TrainLayout)
    assert (layout.dp, layout.pp, layout.tp, layout.cp, layout.world_size) == (4, 2, 2, 2, 32)
    assert dict(layout.experts_order.digits) == {"dp": 2, "pp": 2, "etp": 4, "ep": 2}
    assert layout.experts_order.world_size == 32


@pytest.mark.parametrize(
    ("backend", "dimensions"),
    [
        ("sglang", "dtp"),
        ("vllm", "dtp"),
        ("fsdp", "dtc"),
        ("megatron", "dtpce"),
        ("archon", "dtpce"),
    ],
)
def test_a_backend_takes_the_documented_dimensions_and_refuses_the_others(
    backend: str, dimensions: str
) -> None:
    ours = {"vllm": "e", "megatron": "v"}.get(backend, "")
    assert set(BACKENDS[backend].letters) == {*dimensions, *ours}
    for letter in "dtpcev":
        text = f"{backend}:d2{letter}2" if letter != "d" else f"{backend}:d2"
        if letter in BACKENDS[backend].letters:
            assert str(parse_backend(text)) == text
        else:
            with pytest.raises(
                AllocationError, match=(f"'{letter}' is not a dimension of {backend}")
            ):
                parse_backend(text)


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_a_size_of_1_is_legal_for_every_backend(backend: str) -> None:
    for size in (1, 4):
        assert str(parse_backend(f"{backend}:d{size}p1t1c1e1v1")) == f"{backend}:d{size}"
    assert str(parse_backend(f"{backend}:d1p1t4")) == f"{backend}:d1t4"
    with pytest.raises(AllocationError, match="'x' is not a dimension"):
        parse_backend(f"{backend}:d4x1")


def test_a_size_of_1_is_legal_on_each_side_of_a_mode_and_of_a_hybrid_string() -> None:
    assert str(parse_mode("fsdp:d2p1t2 + sglang:d1p2t2")) == "fsdp:d2t2+sglang:d1p2t2"
    assert str(parse_backend("archon:(attn:d8e1v1|ffn:c1e4)")) == "archon:d8e4"


def test_expert_parallelism_adds_no_devices() -> None:
    assert parse_backend("megatron:d2p2t4e4").world_size == 2 * 2 * 4


@pytest.mark.parametrize(
    ("text", "canonical", "groups"),
    [
        (
            "sglang.d2t2p1+d1t4p1",
            "sglang:d2t2+megatron:d1t4",
            [{"rollout": 4}, {"actor": 4}],
        ),
        (
            "sglang:d4t2+fsdp:d8",
            "sglang:d4t2+fsdp:d8",
            [{"rollout": 8}, {"actor": 8}],
        ),
        (
            "sglang[rollout]:d2+fsdp[actor]:d4|fsdp[critic]:d4",
            "sglang[rollout]:d2+fsdp[actor]:d4|fsdp[critic]:d4",
            [{"rollout": 2}, {"actor": 4, "critic": 4}],
        ),
        (
            "vllm:d4t2|megatron:d2p2t2",
            "vllm:d4t2|megatron:d2p2t2",
            [{"rollout": 8, "actor": 8}],
        ),
    ],
)
def test_an_allocation_mode_says_which_engines_share_how_many_devices(
    text: str, canonical: str, groups: list[dict[str, int]]
) -> None:
    mode = parse_mode(text)
    assert str(mode) == canonical
    assert [{each.role: each.world_size for each in group} for group in mode.groups] == groups


def test_bare_dimensions_are_refused_with_the_backend_that_is_missing() -> None:
    with pytest.raises(AllocationError) as caught:
        parse_backend("d4t2")
    assert str(caught.value) == (
        "d4t2, character 1: the backend is missing; write megatron:d4t2\n  d4t2\n  ^"
    )
