"""The built-in rewards, called directly."""

import time
from pathlib import Path

import pytest

from mindrl.rewards.functions import (
    RewardFunction,
    acc_for_dapo,
    base_acc,
    boxed_format,
    last_boxed,
    math_verify,
    math_verify_reward,
)


@pytest.mark.parametrize(
    ("boxed", "reference"),
    [
        ("72", "72"),
        ("72.0", "72"),
        ("72.", "72"),
        (r"\$72", "72"),
        (r"72\text{ dollars}", "72"),
        ("1,234", "1234"),
        ("1234", "1,234"),
        ("7+5", "12"),
        ("x = 5", "5"),
        (r"\frac{1}{2}", "0.5"),
        ("1/2", r"\frac{1}{2}"),
        (r"\dfrac34", "0.75"),
        (r"50\%", "50"),
        ("50%", "0.5"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"\{1, 2\}", r"\{2, 1\}"),
        (r"\text{Monday}", r"\text{Monday}"),
        ("72", "48 + 24 = <<48+24=72>>72 clips.\n#### 72"),
        ("1234", "#### 1,234"),
        ("72", r"$\boxed{72}$"),
    ],
)
def test_an_equal_answer_scores_1(boxed: str, reference: str) -> None:
    assert math_verify(rf"So it is $\boxed{{{boxed}}}$.", reference) == 1.0


@pytest.mark.parametrize(
    ("boxed", "reference"),
    [
        ("71", "72"),
        ("-72", "72"),
        ("71, 72", "72"),
        ("72 or 73", "72"),
        ("72 = 73", "72"),
        ("7", "48 + 24 = 7\n#### 72"),
        (r"\frac{1}{3}", "0.5"),
        ("x^2", "x^3"),
        ("[0, 1)", "[0, 1]"),
        (r"\text{Monday}", r"\text{Tuesday}"),
        ("", "72"),
        ("", ""),
        (" ", "#### "),
    ],
)
def test_an_unequal_or_empty_answer_scores_0(boxed: str, reference: str) -> None:
    assert math_verify(rf"So it is $\boxed{{{boxed}}}$.", reference) == 0.0


def test_only_the_last_of_two_boxes_counts() -> None:
    assert math_verify(r"\boxed{71} no, \boxed{72}", "72") == 1.0
    assert math_verify(r"\boxed{72} no, \boxed{71}", "72") == 0.0


@pytest.mark.parametrize(
    "response",
    ["72", "#### 72", r"\boxed 72", r"\boxed{72", r"\boxed{72} or \boxed{7{2}", "boxed{72}", ""],
)
def test_an_answer_without_a_closed_box_at_the_end_scores_0(response: str) -> None:
    assert math_verify(response, "72") == 0.0


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {5}", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (r"\boxed{a}} }", "a"),
        (r"\boxed{" + "1" * 4096 + "}", "1" * 4096),
        (r"\boxed{" + "1" * 4097 + "}", None),
        (r"\boxed{a{b}", None),
    ],
)
def test_the_box_ends_at_its_own_brace_within_4096_characters(text: str, boxed: str | None) -> None:
    assert last_boxed(text) == boxed


@pytest.mark.parametrize(
    "nested", ["(" * 20_000 + "1" + ")" * 20_000, "{" * 20_000, "9" * 1_000_000]
)
def test_a_huge_box_scores_0_within_a_second(nested: str) -> None:
    started = time.monotonic()
    assert math_verify(rf"so \boxed{{{nested}}}", "1") == 0.0
    assert time.monotonic() - started < 1.0  # reading a million characters takes about 0.1 s


@pytest.mark.parametrize("wrap", ["{}", r"\text{{{}}}", "${}$", "{}%"])
def test_python_in_a_box_is_not_run(wrap: str, tmp_path: Path) -> None:
    victim = tmp_path / "touched"
    attack = wrap.format(f"__import__('os').system('touch {victim}')")
    assert math_verify(rf"so \boxed{{{attack}}}", "72") == 0.0
    assert not victim.exists()


@pytest.mark.parametrize(
    "response",
    [
        r"7+5=12, so \boxed{12}",
        r"7+5=12, so $\boxed{12}$.",
        "7+5=12, so\n\\[\n\\boxed{\\frac{24}{2}}\n\\]\n",
        r"7+5=12, so **\boxed{12}**.",
    ],
)
def test_work_and_then_one_box_scores_1_for_format(response: str) -> None:
    assert boxed_format(response, "12") == 1.0


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{12}",
        r" $\boxed{12}$",
        r"7+5=12, so \boxed{12} as promised",
        r"7+5=\boxed{12}, so \boxed{12}",
        r"7+5=12, so \boxed{}",
        r"7+5=12, so \boxed{12",
        "7+5=12",
        "",
    ],
)
def test_no_work_or_no_single_box_at_the_end_scores_0_for_format(response: str) -> None:
    assert boxed_format(response, "12") == 0.0


TAGGED = r"<think>7+5</think> so <answer>It is \boxed{12}.</answer>"


def test_a_right_box_among_tags_in_order_scores_1_in_both_ways() -> None:
    assert base_acc(TAGGED, "12") == math_verify_reward(TAGGED, "12") == 1.0
    assert base_acc(TAGGED, "13") == math_verify_reward(TAGGED, "13") == 0.0


@pytest.mark.parametrize(
    "response",
    [
        r"\boxed{12}",
        f" {TAGGED}",
        f"{TAGGED} ",
        r"<think>7+5</think><answer>12</answer>",
        r"<think>\boxed{12}</think><answer>12</answer>",
        r"<think>7+5<answer>\boxed{12}</answer>",
        r"<think>7+5</think>\boxed{12}</answer>",
        r"<think>7+5<answer></think>\boxed{12}</answer>",
        r"<answer>\boxed{12}</answer><think></think>",
        "<think></think><answer></answer>",
        "",
    ],
)
def test_tags_that_are_missing_or_out_of_order_score_0(response: str) -> None:
    assert base_acc(response, "12") == math_verify_reward(response, "12") == 0.0


def test_a_second_tag_or_box_costs_the_score_of_base_acc_only() -> None:
    for response in (
        r"<think>\boxed{11}?</think><answer>\boxed{12}</answer>",
        r"<think></think></think><answer>\boxed{12}</answer>",
        r"<think></think><answer></answer><answer>\boxed{12}</answer>",
    ):
        assert (base_acc(response, "12"), math_verify_reward(response, "12")) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("response", "score"),
    [
        ("so it is\nAnswer: 12", 1.0),
        ("ANSWER : $12$.\n", 1.0),
        (r"Answer: \boxed{12}", 1.0),
        ("Answer: 11, no\nAnswer: 12", 1.0),
        ("Answer: 12\nAnswer: 11", -1.0),
        ("12", -1.0),
        ("Answer:", -1.0),
        ("", -1.0),
        ("Answer: 12" + " " * 300, -1.0),
        ("Answer: 12" + " " * 290, 1.0),
    ],
)
def test_the_line_behind_the_last_answer_scores_1_or_minus_1(response: str, score: float) -> None:
    assert acc_for_dapo(response, "12") == score


@pytest.mark.parametrize("function", [base_acc, math_verify_reward, acc_for_dapo])
def test_a_million_characters_of_tags_take_less_than_a_second(function: RewardFunction) -> None:
    started = time.monotonic()
    for repeated in (
        "<think>",
        "</think><answer>",
        "</answer>",
        "answer:",
        "Answer : ",
        r"\boxed{",
    ):
        response = "<think>" + repeated * (1_000_000 // len(repeated)) + "</answer>"
        assert function(response, "12") < 1.0
    # Six responses; looking for a word in one takes a few milliseconds.
    assert time.monotonic() - started < 6.0
