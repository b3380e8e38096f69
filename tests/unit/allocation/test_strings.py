"""Layouts as one word: read, refused with a finger on the character, and spelled again."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindrl.allocation.meaning import (
    layout_string,
    parse_rollout,
    parse_training,
    states_replicas,
)
from mindrl.errors import ConfigError
from mindrl.layouts.layout import RolloutLayout, TrainLayout

SIZES = st.sampled_from([1, 2, 3, 4, 8])


@st.composite
def training_layouts(draw: st.DrawFn) -> TrainLayout:
    ep, etp, expert_dp = draw(SIZES), draw(SIZES), draw(SIZES)
    ranks = ep * etp * expert_dp
    tp = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0]))
    cp = draw(st.sampled_from([size for size in (1, 2) if ranks // tp % size == 0]))
    return TrainLayout(
        tp=tp, cp=cp, dp=ranks // tp // cp, pp=draw(SIZES), vpp=draw(SIZES), ep=ep, etp=etp
    )


@st.composite
def rollout_layouts(draw: st.DrawFn) -> RolloutLayout:
    tp, dp = draw(SIZES), draw(SIZES)
    shared = [1] + [tp * part for part in range(1, dp + 1) if dp % part == 0]
    return RolloutLayout(tp=tp, pp=draw(SIZES), dp=dp, ep=draw(st.sampled_from(shared)))


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("megatron:d4p2t2", TrainLayout(dp=4, pp=2, tp=2)),
        ("megatron:t2d4", TrainLayout(dp=4, tp=2)),
        ("megatron:d8", TrainLayout(dp=8)),
        ("megatron:d2p2t4e4", TrainLayout(dp=2, pp=2, tp=4, ep=4, etp=1)),
        ("megatron:d2p4v2", TrainLayout(dp=2, pp=4, vpp=2)),
        (
            "megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)",
            TrainLayout(dp=4, pp=2, tp=2, cp=2, etp=4, ep=2),
        ),
        # 16 ranks of a stage leave two copies of each expert: d of ffn need not be said.
        ("megatron:(attn:d4p2t2c2|ffn:t4e2)", TrainLayout(dp=4, pp=2, tp=2, cp=2, etp=4, ep=2)),
        # Nor d of attn, where that of ffn is said.
        ("megatron:(attn:t2p2|ffn:d2p2t4)", TrainLayout(dp=4, pp=2, tp=2, etp=4)),
    ],
)
def test_a_training_layout_is_read(text: str, layout: TrainLayout) -> None:
    assert parse_training(text) == layout


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("vllm:d2t4", RolloutLayout(dp=2, tp=4)),
        ("vllm:d2t4e8", RolloutLayout(dp=2, tp=4, ep=8)),
        ("vllm:d1p2t2", RolloutLayout(dp=1, pp=2, tp=2)),
    ],
)
def test_a_rollout_layout_is_read(text: str, layout: RolloutLayout) -> None:
    assert parse_rollout(text) == layout


def test_d_follows_from_the_ranks_where_it_is_left_out() -> None:
    assert parse_training("megatron:p2t4", 16).dp == 2
    assert parse_training("archon:p2t4", 16) == parse_training("megatron:p2t4", 16)
    assert parse_training("fsdp:t4", 16) == TrainLayout(dp=4, tp=4)
    assert parse_training("megatron:(attn:t2|ffn:e8)", 16) == TrainLayout(dp=8, tp=2, ep=8)
    assert parse_rollout("vllm:t4e8", 16) == RolloutLayout(dp=4, tp=4, ep=8)
    assert parse_rollout("vllm:t4").dp == 1


def test_whether_d_is_stated_is_seen_behind_a_colon_and_behind_a_size() -> None:
    stated = ["megatron:d4t2", "megatron:t2d4", "megatron:(attn:t2d4|ffn:e4)", "vllm:d1"]
    assert [states_replicas(text) for text in stated] == [True] * 4
    assert [states_replicas(text) for text in ["megatron:t2", "vllm:t2", "d"]] == [False] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d4t2", "character 1: the backend is missing; write megatron:d4t2"),
        ("", "character 1: the backend is missing; write megatron:d2t2"),
        ("vllm:d4t2", "character 1: 'vllm' cannot be used on this side; write megatron:d4t2"),
        ("sglang:d4", "character 1: 'sglang' cannot be used on this side; write megatron:d4"),
        ("archon[actor]:d4", "character 7: remove the name; write archon:d4"),
        ("megatron[actor]:d4", "character 9: remove the name; write megatron:d4"),
        ("megatron.d4", "character 9: '.' is the old form; write megatron:d4"),
        ("megatron:", "character 10: megatron needs a dimension, such as d2t2"),
        (
            "megatron:d4x2",
            "character 12: 'x' is not a dimension of megatron; known: d, p, t, c, e, v",
        ),
        (
            "megatron:D4",
            "character 10: 'D' is not a dimension of megatron; known: d, p, t, c, e, v",
        ),
        (
            "megatron:d4 t2",
            "character 12: ' ' is not a dimension of megatron; known: d, p, t, c, e, v",
        ),
        ("megatron:dt2", "character 11: d needs a size from 1 to 99999, such as d2"),
        ("megatron:d4t0", "character 13: t needs a size from 1 to 99999, such as t2"),
        ("megatron:d123456", "character 11: d needs a size from 1 to 99999, such as d2"),
        ("megatron:d4t2d4", "character 14: d is given twice; remove one"),
        (
            "megatron:d4|t2",
            (
                "character 12: unexpected '|'; write megatron:d4p2t2 or "
                "megatron:(attn:d4t2|ffn:d2e4)"
            ),
        ),
        (
            "megatron:(attn:d4t2)",
            (
                "character 20: unexpected ')'; write megatron:d4p2t2 or "
                "megatron:(attn:d4t2|ffn:d2e4)"
            ),
        ),
        (
            "megatron:(attn:d4e2|ffn:e2)",
            "character 18: 'e' is not a dimension of attn; known: d, p, t, c, v",
        ),
        (
            "megatron:(attn:d4|ffn:c2)",
            "character 23: 'c' is not a dimension of ffn; known: d, p, t, e",
        ),
        (
            "megatron:(attn:d4p2|ffn:p4e2)",
            "character 25: attn and ffn share the stages; write p2",
        ),
        (
            "megatron:d2t4e3",
            "character 14: e=3 must divide the ranks of a stage=8; nearest: 2, 4",
        ),
        (
            "megatron:(attn:d4t2|ffn:t2e3)",
            "character 27: t x e=6 must divide the ranks of a stage=8; nearest: 4, 8",
        ),
        (
            "megatron:(attn:d4t2|ffn:d4e4)",
            "character 25: 8 ranks of a stage leave d2; write that",
        ),
    ],
)
def test_a_training_layout_is_refused_at_the_character_that_is_wrong(
    text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_training(text)
    assert str(caught.value) == f"{text}, {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d4t2", "character 1: the backend is missing; write vllm:d4t2"),
        ("megatron:d4", "character 1: 'megatron' cannot be used on this side; write vllm:d4"),
        ("vllm:d4c2", "character 8: 'c' is not a dimension of vllm; known: d, p, t, e"),
        (
            "vllm:(attn:d4|ffn:e2)",
            ("character 6: the rollout side takes one list of sizes; write vllm:d2t4"),
        ),
        ("vllm:d4t2e3", "character 10: e must be 1, or t=2 times a divisor of d=4: 2, 4, 8"),
        ("vllm:d2t4e2", "character 10: e must be 1, or t=4 times a divisor of d=2: 4, 8"),
    ],
)
def test_a_rollout_layout_is_refused_at_the_character_that_is_wrong(
    text: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rollout(text)
    assert str(caught.value) == f"{text}, {message}"


def test_a_layout_of_other_ranks_than_there_are_is_refused_with_the_d_that_fits() -> None:
    for text, ranks, message in (
        ("megatron:d4t2", 16, "character 10: this layout has 8 ranks, not 16; write d8"),
        ("megatron:t2d4", 3, "character 12: this layout has 8 ranks, not 3; change the sizes"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_training(text, ranks)
        assert str(caught.value) == f"{text}, {message}"
    with pytest.raises(ConfigError) as caught:
        parse_rollout("vllm:p2t3", 8)
    assert str(caught.value) == "vllm:p2t3: p x t=6 must divide the ranks=8; nearest: 4, 8"


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (TrainLayout(), "megatron:d1"),
        (TrainLayout(tp=2, dp=4, pp=2, cp=2, vpp=3, ep=4), "megatron:d4p2t2c2e4v3"),
        (
            TrainLayout(tp=2, cp=2, dp=4, pp=2, ep=2, etp=4),
            "megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)",
        ),
    ],
)
def test_a_training_layout_is_spelled_in_one_way(layout: TrainLayout, text: str) -> None:
    assert layout_string(layout) == text


@given(training_layouts())
def test_a_training_layout_that_is_spelled_and_read_is_the_same(layout: TrainLayout) -> None:
    assert parse_training(layout_string(layout)) == layout
    assert parse_training(layout_string(layout), layout.world_size) == layout


@given(rollout_layouts())
def test_a_rollout_layout_that_is_spelled_and_read_is_the_same(layout: RolloutLayout) -> None:
    assert parse_rollout(layout_string(layout)) == layout
    assert parse_rollout(layout_string(layout), layout.world_size) == layout


@given(st.text(alphabet="megatronvll:dptcev|()0123 ", max_size=30))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    for parse in (parse_training, parse_rollout):
        for prefix in ("", "megatron:", "vllm:"):
            with suppress(ConfigError):
                assert parse(prefix + text).world_size >= 1
