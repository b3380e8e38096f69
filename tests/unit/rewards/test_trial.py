"""Reward functions that cannot serve are refused before anything else is started."""

from dataclasses import replace
from pathlib import Path

import pytest

from mindrl.batch.prompts import Prompt
from mindrl.errors import ConfigError
from mindrl.rewards.inputs import RewardInputs
from mindrl.rewards.scorer import try_rewards

PROMPT = Prompt(uid=0, token_ids=(7, 9), text="7+5", answer="12")
FIELD = "data_config.rewards.1.verifier_function"
FUNCTIONS = """
import os
import re
import time

async def waits(response, reference):
    return 1.0

def good(response, reference):
    return float(reference in response)

def late(response, reference):
    return waits(response, reference)

def batch(response, reference):
    return [1.0 for response in response]

def forgetful(response, reference):
    if reference in response:
        return 1.0

def strict(response, reference):
    return float(re.search("Answer: .(.*)", response).group(1) == reference)

def broken(response, reference):
    return response.no_such_method()

def slow(response, reference):
    time.sleep(1000)

def fatal(response, reference):
    os._exit(3)
"""


def line(text: str) -> int:
    return FUNCTIONS.splitlines().index(text) + 1


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Try all functions but the asynchronous one at once; the refusals by function."""
    file = tmp_path_factory.mktemp("rewards") / "own.py"
    file.write_text(FUNCTIONS, encoding="utf-8")
    names = ("good", "strict", "late", "batch", "forgetful", "broken", "slow", "fatal")
    with pytest.raises(ConfigError) as caught:
        try_rewards(
            FIELD, [f"{file}:{name}" for name in names], [PROMPT], RewardInputs(), seconds=1
        )
    lines = str(caught.value).replace(f"{file}:", "own.py:").splitlines()
    start = f"{FIELD}='own.py:"
    assert all(each.startswith(start) for each in lines)
    return dict(each.removeprefix(start).split("' fails in a trial call: ", 1) for each in lines)


def test_a_function_that_scores_one_of_the_two_responses_and_raises_at_the_other_may_try(
    refusals: dict[str, str],
) -> None:
    assert set(refusals) == {"late", "batch", "forgetful", "broken", "slow", "fatal"}


@pytest.mark.parametrize(
    ("name", "kind", "said", "place"),
    [
        ("late", "value", "returned <coroutine object waits at ", "def late(response, reference):"),
        ("batch", "value", "returned [1.0, 1.0, ", "def batch(response, reference):"),
        ("forgetful", "value", "returned None; need a", "def forgetful(response, reference):"),
        ("broken", "exception", "\"AttributeError: 'str'", "    return response.no_such_method()"),
        ("slow", "timeout", "no score within 1 s", "def slow(response, reference):"),
        ("fatal", "crash", "process ended: exit code 3", "def fatal(response, reference):"),
    ],
)
def test_a_refusal_says_what_happened_and_names_the_line(
    name: str, kind: str, said: str, place: str, refusals: dict[str, str]
) -> None:
    assert refusals[name].startswith(f"{kind}: {said}")
    assert f"(own.py:{line(place)})" in refusals[name]


def test_built_in_functions_need_no_trial() -> None:
    names = ["math_verify", "boxed_format"]
    try_rewards(FIELD, names, [PROMPT], RewardInputs(), seconds=1e-9)


def test_the_first_row_of_each_source_is_tried_and_a_failure_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def score(response, reference, data_source):\n"
        "    if data_source == 'sums':\n        return 1.0\n"
        "    raise NotImplementedError(data_source)\n",
        encoding="utf-8",
    )
    prompts = [replace(PROMPT, source=source) for source in ("sums", "logic", "code")]
    with pytest.raises(ConfigError, match=r"exception: 'NotImplementedError: logic'") as caught:
        try_rewards(FIELD, [f"{file}:score"], prompts, RewardInputs(), seconds=10)
    assert len(str(caught.value).splitlines()) == 1


REMARKED = """
def constant(response, reference):
    return 0.5

def unbounded(response, reference):
    return 5.0 * len(response)

def bounded(response, reference):
    return 3.0 if response else -1.0

bounded.score_range = (-1.0, 1.0)

def raising(response, reference):
    return float(response[0] == "<")

def good(response, reference):
    return float(reference in response)
"""


def test_scores_that_teach_nothing_or_leave_their_range_are_remarked(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(REMARKED, encoding="utf-8")
    names = [f"{file}:{name}" for name in ("constant", "unbounded", "bounded", "raising", "good")]
    found = try_rewards(FIELD, names, [PROMPT], RewardInputs(), seconds=10)
    told = {each.function.rpartition(":")[2]: each for each in found}
    assert [*told] == ["constant", "unbounded", "bounded", "raising"]
    assert [each.refuses for each in told.values()] == [False, False, True, True]
    first, second, third = (
        f"({file}:{REMARKED.splitlines().index(f'def {name}(response, reference):') + 1})"
        for name in ("constant", "unbounded", "bounded")
    )
    assert told["constant"].text == (
        f"scores 0.5 for both a right answer and an empty response {first}"
    )
    assert f"outside its range of 0 to 1 {second}; declare" in told["unbounded"].text
    assert told["bounded"].text == (
        f"scores 3, outside its range of -1 to 1 {third}; declare the range below the function: "
        "its_name.score_range = (-1, 3)"
    )
    assert told["raising"].text.startswith(
        "fails in a trial call: exception: 'IndexError: string index out of range'"
    )
    assert told["raising"].text.endswith("return the lowest score for a text without an answer")
    assert told["raising"].of_failure
