"""Strings that cannot be read: the character at fault, and what to write in its place."""

import pickle
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindrl.allocation.grammar import AllocationError
from mindrl.allocation.meaning import parse_backend, parse_mode

# A busy machine may take longer than the 200 ms that an example has by default.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
WHOLE = "write megatron:d4p2t2 or megatron:(attn:d4t2|ffn:d2e4)"
KNOWN = "known: d, p, t, c, e, v"
JOINED = "'+' joins engines; write one engine here, and the others in their own backend keys"

WORDS = [
    "megatron",
    "vllm",
    "fsdp",
    "attn:",
    "ffn:",
    "(",
    ")",
    "[",
    "]",
    "a",
    *":.|+ ",
    "d4",
    "x2",
    "t",
]

BACKEND_ERRORS = [
    # The backend.
    ("", 1, "the backend is missing; write megatron:d2t2"),
    (":d4", 1, "the backend is missing; write megatron:d4"),
    ("t2", 1, "the backend is missing; write megatron:t2"),
    ("dt2", 1, "the backend is missing; write megatron:d2t2"),
    ("8", 1, "the backend is missing; write megatron:d2t2"),
    ("[actor]:d4", 1, "the backend is missing; write megatron[actor]:d4"),
    ("(attn:d4|ffn:e2)", 1, "the backend is missing; write megatron:(attn:d4|ffn:e2)"),
    (" fsdp:d8", 1, "remove the space"),
    ("megatron", 9, "megatron needs its sizes; write megatron:d2t2"),
    ("megatrn:d4", 1, "'megatrn' is not a backend; write megatron:d4"),
    ("SGLang:d4t2", 1, "'SGLang' is not a backend; write sglang:d4t2"),
    (
        "deepspeed:d4",
        1,
        "'deepspeed' is not a backend; known: megatron, archon, fsdp, vllm, sglang",
    ),
    (
        "deepspeed:zero3",
        1,
        "'deepspeed' is not a backend; known: megatron, archon, fsdp, vllm, sglang",
    ),
    ("d4X2", 1, "the backend is missing; write megatron:d2t2"),
    ("mega-tron:d4", 5, f"unexpected '-'; {WHOLE}"),
    ("sglang.d4t2", 7, "'.' is the old form; write sglang:d4t2"),
    ("fsdp::d8", 6, "unexpected ':'; write fsdp:d4t2"),
    ("d4:t2", 1, "the backend is missing; write megatron:d2t2"),
    ("fsdp[vllm]:d4X", 14, "'X' is not a dimension of fsdp; known: d, t, c"),
    ("ffn:attn:d4", 5, "attn and ffn need brackets; write megatron:(attn:d4t2|ffn:d2e4)"),
    # The sizes.
    ("fsdp:", 6, "fsdp needs a dimension, such as d2t2"),
    ("fsdp:8", 6, "'8' is not a dimension of fsdp; known: d, t, c"),
    ("fsdp:d", 7, "d needs a size from 1 to 99999, such as d2"),
    ("fsdp:d0", 7, "d needs a size from 1 to 99999, such as d2"),
    ("fsdp:d08", 7, "d needs a size from 1 to 99999, such as d8"),
    ("fsdp:d-8", 7, "d needs a size from 1 to 99999, such as d2"),
    ("fsdp:d2.5", 8, "unexpected '.'; write fsdp:d4t2"),
    ("megatron:d100000", 11, "d needs a size from 1 to 99999, such as d2"),
    ("megatron:d4T2", 12, f"'T' is not a dimension of megatron; {KNOWN}"),
    ("megatron:d4,t2", 12, f"',' is not a dimension of megatron; {KNOWN}"),
    ("megatron:d4 t2", 12, f"' ' is not a dimension of megatron; {KNOWN}"),
    ("megatron:d4x2", 12, f"'x' is not a dimension of megatron; {KNOWN}"),
    ("megatron:tp4", 11, "t needs a size from 1 to 99999, such as t2"),
    ("megatron:d4t2d4", 14, "d is given twice; remove one"),
    ("archon:d4p2v2", 12, "'v' is not a dimension of archon; known: d, p, t, c, e"),
    ("fsdp:d4p2", 8, "'p' is not a dimension of fsdp; known: d, t, c; megatron has it"),
    ("fsdp:d4e2", 8, "'e' is not a dimension of fsdp; known: d, t, c; megatron has it"),
    ("vllm:d4c2", 8, "'c' is not a dimension of vllm; known: d, p, t, e"),
    ("sglang:d4t4e4", 12, "'e' is not a dimension of sglang; known: d, p, t"),
    ("vllm:d4t2e3", 10, "e must be 1, or t=2 times a divisor of d=4: 2, 4, 8"),
    ("megatron:d2t4e3", 14, "e=3 must divide the ranks of a stage=8; nearest: 2, 4"),
    # More than one engine.
    ("sglang:d4+fsdp:d4", 10, JOINED),
    ("sglang:d4 + fsdp:d4", 11, JOINED),
    ("vllm:d4|fsdp:d4", 8, "unexpected '|'; write vllm:d2t4"),
    # The name.
    ("fsdp[]:d8", 6, "a name is missing, as in [actor]"),
    ("fsdp[1]:d8", 6, "a name is missing, as in [actor]"),
    ("fsdp[actor:d8", 11, "']' is missing after the name, as in [actor]"),
    ("fsdp[actor]d8", 12, "':' is missing after the name, as in [actor]:d4t2"),
    # Experts with sizes of their own.
    ("megatron:()", 11, "'attn:' is missing, as in (attn:d4t2|ffn:d2e4)"),
    ("megatron:(d4|e2)", 11, "'attn:' is missing, as in (attn:d4t2|ffn:d2e4)"),
    ("megatron:(attn:d4|e2)", 19, "'ffn:' is missing, as in (attn:d4t2|ffn:d2e4)"),
    ("megatron:(attn:d4)", 18, f"unexpected ')'; {WHOLE}"),
    ("megatron:(attn:d4|ffn:e2", 25, f"the end is missing; {WHOLE}"),
    ("megatron:(attn:d4|ffn:e2)t2", 26, f"unexpected 't'; {WHOLE}"),
    ("megatron:(attn:|ffn:e2)", 16, "attn needs a dimension, such as d2t2"),
    ("megatron:(attn:d4|ffn:)", 23, "ffn needs a dimension, such as d2t2"),
    (
        "megatron:attn:d4|ffn:e2",
        10,
        "attn and ffn need brackets; write megatron:(attn:d4t2|ffn:d2e4)",
    ),
    (
        "vllm:attn:d4|ffn:e2",
        6,
        "attn and ffn need brackets; write megatron:(attn:d4t2|ffn:d2e4)",
    ),
    (
        "archon:(attn:d4v|ffn:e2)",
        17,
        "v needs a size from 1 to 99999, such as v2",
    ),
    (
        "fsdp:(attn:d4|ffn:t2)",
        6,
        "fsdp takes one list of sizes; write megatron:(attn:d4|ffn:t2)",
    ),
    ("sglang:(attn:d4|ffn:t2)", 8, "the rollout side takes one list of sizes; write sglang:d2t4"),
    (
        "megatron:(attn:d4e2|ffn:e2)",
        18,
        "'e' is not a dimension of attn; known: d, p, t, c, v",
    ),
    ("archon:(attn:d4v2|ffn:e2)", 16, "'v' is not a dimension of attn; known: d, p, t, c"),
    ("megatron:(attn:d4|ffn:c2)", 23, "'c' is not a dimension of ffn; known: d, p, t, e"),
    ("megatron:(attn:d4T2|ffn:e2)", 18, "'T' is not a dimension of attn; known: d, p, t, c, v"),
    ("megatron:(attn:d4|ffn:E2)", 23, "'E' is not a dimension of ffn; known: d, p, t, e"),
    ("megatron:(attn:d4p2|ffn:p4e2)", 25, "attn and ffn share the stages; write p2"),
    (
        "megatron:(attn:d4t2|ffn:d4e4)",
        25,
        "8 ranks of a stage leave d2; write that",
    ),
    (
        "megatron:(attn:d4t2|ffn:t2e3)",
        27,
        "t x e=6 must divide the ranks of a stage=8; nearest: 4, 8",
    ),
]

MODE_ERRORS = [
    ("d4t2", 1, "the backend is missing; write fsdp:d4t2"),
    ("sglang:d4+d4t2", 11, "the backend is missing; write fsdp:d4t2"),
    ("sglang:d4+d4p2", 11, "the backend is missing; write megatron:d4p2"),
    ("sglang:d4+d4e2", 11, "the backend is missing; write megatron:d4e2"),
    ("sglang.d4+[actor]:d4", 11, "the backend is missing; write fsdp[actor]:d4"),
    ("sglang:d4+", 11, "the backend is missing; write fsdp:d2t2"),
    ("+fsdp:d4", 1, "the backend is missing; write fsdp:d2t2"),
    ("sglang:d4|", 11, "the backend is missing; write fsdp:d2t2"),
    ("sglang:d4++fsdp:d4", 11, "the backend is missing; write fsdp:d2t2"),
    ("sglang:d4+fsdp", 15, "fsdp needs its sizes; write fsdp:d2t2"),
    ("sglang:d4+fsd:d4", 11, "'fsd' is not a backend; write sglang:d4+fsdp:d4"),
    ("sglang.d4+d4x2", 13, f"'x' is not a dimension of megatron; {KNOWN}"),
    ("sglang.d4+d4X2", 11, "the backend is missing; write fsdp:d2t2"),
    ("sglang:d4&fsdp:d4", 10, "'&' is not a dimension of sglang; known: d, p, t"),
    (
        "sglang:d4t2+fsdp:d8p2",
        20,
        ("'p' is not a dimension of fsdp; known: d, t, c; megatron has it"),
    ),
    ("fsdp:d4+fsdp:d4", 9, "two engines are 'actor'; name them, as in fsdp[critic]:d4"),
    ("sglang[a]:d4+fsdp[a]:d4", 19, "two engines are 'a'; change one"),
    (
        "sglang[r]:d4+fsdp:d4+fsdp[c]:d4",
        14,
        "three or more engines need names, as in fsdp[critic]:d4",
    ),
    (
        "fsdp[a]:d8|fsdp[c]:d4",
        12,
        "this engine has 4 ranks and a, on the same devices, has 8; write d8",
    ),
    (
        "vllm:d4t2|megatron:d4p3",
        11,
        (
            "this engine has 12 ranks and rollout, on the same devices, has 8; "
            "3 ranks of a replica do not divide 8; change the sizes"
        ),
    ),
    (
        "vllm:d8|megatron:(attn:d2t2|ffn:t2)",
        9,
        (
            "this engine has 4 ranks and rollout, on the same devices, has 8; write d4 "
            "after attn and no d after ffn"
        ),
    ),
]


def shown(text: str, character: int, what: str) -> str:
    return f"{text}, character {character}: {what}\n  {text}\n  {'^':>{character}}"


def test_there_are_more_than_40_malformed_strings() -> None:
    assert len({text for text, _, _ in BACKEND_ERRORS}) == len(BACKEND_ERRORS) == 69
    assert len({text for text, _, _ in MODE_ERRORS}) == len(MODE_ERRORS) == 21


@pytest.mark.parametrize(("text", "character", "what"), BACKEND_ERRORS)
def test_a_backend_string_is_refused_with_a_caret_under_its_fault(
    text: str, character: int, what: str
) -> None:
    with pytest.raises(AllocationError) as caught:
        parse_backend(text)
    assert str(caught.value) == shown(text, character, what)


@pytest.mark.parametrize(("text", "character", "what"), MODE_ERRORS)
def test_an_allocation_mode_is_refused_with_a_caret_under_its_fault(
    text: str, character: int, what: str
) -> None:
    with pytest.raises(AllocationError) as caught:
        parse_mode(text)
    assert str(caught.value) == shown(text, character, what)


@pytest.mark.parametrize("what", sorted({what for _, _, what in BACKEND_ERRORS + MODE_ERRORS}))
def test_what_an_error_says_to_write_can_be_read(what: str) -> None:
    proposed = re.findall(r"(?:write|or) (\S+:\S+)", what)
    for text in proposed:
        assert all(each.world_size >= 1 for each in parse_mode(text))


def test_the_caret_stands_under_the_fault() -> None:
    with pytest.raises(AllocationError) as caught:
        parse_backend("megatron:(attn:d4p2|ffn:p4e2)")
    assert str(caught.value).splitlines() == [
        "megatron:(attn:d4p2|ffn:p4e2), character 25: attn and ffn share the stages; write p2",
        "  megatron:(attn:d4p2|ffn:p4e2)",
        "                          ^",
    ]


def test_a_control_character_cannot_move_the_caret() -> None:
    with pytest.raises(AllocationError) as caught:
        parse_backend("fsdp:d4\r\n")
    assert str(caught.value).endswith("\n  fsdp:d4??\n         ^")


def test_a_size_of_5000_digits_is_refused_as_any_other() -> None:
    with pytest.raises(AllocationError, match="d needs a size from 1 to 99999, such as d2"):
        parse_backend("fsdp:d" + "9" * 5000)


def test_an_error_survives_the_way_between_processes() -> None:
    with pytest.raises(AllocationError) as caught:
        parse_backend("fsdp:d0")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def refusal(parse: Callable[[str], object], text: str) -> AllocationError | None:
    try:
        parse(text)
    except AllocationError as error:
        return error
    return None


@pytest.mark.parametrize("parse", [parse_backend, parse_mode])
@UNHURRIED
@given(
    text=st.text(alphabet="megatronvlsfdp:.dptcev|()[]+0123 \n", max_size=30)
    | st.lists(st.sampled_from(WORDS), max_size=9).map("".join),
    prefix=st.sampled_from(["", "megatron:", "archon:(attn:", "sglang.d2+", "fsdp[a]:d2|"]),
)
def test_any_text_is_read_or_refused_at_one_of_its_characters(
    parse: Callable[[str], object], text: str, prefix: str
) -> None:
    error = refusal(parse, prefix + text)
    assert error is None or (0 <= error.at <= len(prefix + text) and error.what)


@UNHURRIED
@given(st.text(max_size=12))
def test_any_unicode_is_refused_with_a_caret(text: str) -> None:
    error = refusal(parse_backend, text)
    assert error is None or str(error).endswith(f"\n  {' ' * error.at}^")
