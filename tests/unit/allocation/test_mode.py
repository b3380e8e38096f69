"""The old key `allocation_mode`, in both of its generations."""

import pytest

from mindrl.allocation.into_config import deprecation
from mindrl.allocation.meaning import parse_mode
from mindrl.layouts.layout import RolloutLayout, TrainLayout


def test_the_oldest_form_has_four_devices_to_generate_and_four_to_train() -> None:
    mode = parse_mode("sglang.d2t2p1+d1t4p1")
    assert mode.backends["rollout"].layout == RolloutLayout(dp=2, tp=2, pp=1)
    assert mode.backends["actor"].layout == TrainLayout(dp=1, tp=4, pp=1)
    assert [each.backend for each in mode] == ["sglang", "megatron"]


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            "sglang.d2t2p1+d1t4p1",
            "write generate_config.backend=sglang:d2t2, actor_config.backend=megatron:d1t4",
        ),
        (
            "sglang:d4t2+fsdp:d8",
            "write generate_config.backend=sglang:d4t2, actor_config.backend=fsdp:d8",
        ),
        (
            "vllm[rollout]:d8|megatron[actor]:(attn:d4t2|ffn:t2)|fsdp[ref]:d8",
            (
                "write generate_config.backend=vllm:d8, "
                "actor_config.backend=megatron:(attn:d4t2|ffn:d4t2), ref_config.backend=fsdp:d8"
            ),
        ),
    ],
)
def test_the_note_names_the_fields_that_say_the_same(text: str, note: str) -> None:
    said = deprecation({"rl_config": {"allocation_mode": text}})
    assert said == f"rl_config.allocation_mode is deprecated; {note}"


def test_a_stroke_binds_tighter_than_a_plus() -> None:
    mode = parse_mode("sglang[r]:d2+fsdp[a]:d4|fsdp[c]:d4+vllm[t]:d1")
    assert [[each.role for each in group] for group in mode.groups] == [["r"], ["a", "c"], ["t"]]
    assert [{each.world_size for each in group} for group in mode.groups] == [{2}, {4}, {1}]


def test_the_stroke_between_attn_and_ffn_joins_no_engines() -> None:
    mode = parse_mode("megatron[a]:(attn:d4t2|ffn:e4)|archon[b]:(attn:d2t4|ffn:t2)")
    assert [str(each) for each in mode] == [
        "megatron[a]:d4t2e4",
        "archon[b]:(attn:d2t4|ffn:d4t2)",
    ]


def test_spaces_may_stand_around_the_signs_that_join_engines() -> None:
    assert str(parse_mode("sglang:d4 + fsdp:d4")) == "sglang:d4+fsdp:d4"
    assert str(parse_mode("vllm:d4 | fsdp:d4")) == "vllm:d4|fsdp:d4"


def test_a_name_may_stand_in_the_oldest_form_too() -> None:
    mode = parse_mode("sglang[rollout].d4+megatron[actor].d2|fsdp[ref].d2")
    assert str(mode) == "sglang[rollout]:d4+megatron[actor]:d2|fsdp[ref]:d2"
