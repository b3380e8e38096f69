"""The text and fields of a finding."""

import pytest

from mindrl.config.finding import (
    Finding,
    Value,
    divisors_near,
    must_divide,
    nearest_first,
    once,
    spelled,
)

BATCH = "megatron_training.global_batch_size"


def test_a_finding_is_its_sentence_and_knows_its_parts() -> None:
    (finding,) = must_divide("rl_config.mini_batch_size", 12, BATCH, 32)
    assert str(finding) == f"rl_config.mini_batch_size=12 must divide {BATCH}=32; nearest: 8, 16"
    assert (finding.field, finding.value) == ("rl_config.mini_batch_size", 12)
    assert finding.need == f"must divide {BATCH}=32; nearest: 8, 16"
    assert finding.legal == (16, 8, 4, 2, 1, 32)
    assert finding.doc == "docs/reference/config.md#rl_config"
    assert list(must_divide("rl_config.mini_batch_size", 8, BATCH, 32)) == []


@pytest.mark.parametrize(
    ("text", "value", "need"),
    [
        ("a.b=8 must be 9", 8, "must be 9"),
        ("a.b=true: needs false", True, "needs false"),
        ("a.b is missing: c needs it", None, "is missing: c needs it"),
        ("a.b=1,2 must be 3 numbers", (1, 2), "must be 3 numbers"),
        ("a.b=1e-06 is low", 1e-6, "is low"),
        ("a.b: no such folder", "x", "no such folder"),
        ("x=y: a.b=8 must be 9", 8, "x=y: a.b=8 must be 9"),
    ],
)
def test_the_need_is_the_sentence_without_field_and_value(
    text: str, value: Value, need: str
) -> None:
    assert Finding(text, "a.b", value).need == need


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((True, "true"), (None, "null"), (4, "4"), ("auto", "auto"), ((2, 1), "2,1")),
        *((1.0, "1"), (1e-6, "1e-06"), (0.0001234567, "0.0001234567"), (1e7 + 1, "10000001.0")),
    ],
)
def test_values_are_spelled_as_the_command_line_takes_them(value: Value, text: str) -> None:
    assert spelled(value) == text


@pytest.mark.parametrize(
    ("field", "anchor"),
    [
        ("actor_config.load", "actor_config"),
        ("rl_config.actor_resource.num_npus", "rl_configactor_resource"),
        ("critic_config", "critic_config"),
    ],
)
def test_a_finding_leads_to_the_section_of_its_field(field: str, anchor: str) -> None:
    assert Finding("", field).doc == f"docs/reference/config.md#{anchor}"


def test_a_page_of_its_own_goes_before_the_section() -> None:
    assert Finding("", "a.b", page="docs/how-to/plan-a-run.md").doc == "docs/how-to/plan-a-run.md"


def test_what_is_said_twice_is_kept_once_in_its_first_place() -> None:
    first, second = Finding("one", "a"), Finding("two", "b")
    assert once([first, second, Finding("one", "a")]) == [first, second]


def test_the_nearest_comes_first_and_of_two_the_larger() -> None:
    assert divisors_near(28, 8) == (7, 4, 14, 2, 1, 28)
    assert nearest_first([4, 8, 2], 6) == (8, 4, 2)
