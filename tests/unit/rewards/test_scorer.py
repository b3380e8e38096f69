"""Scores of batches in which some answers attack the process that scores them."""

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from scorers import scorer_of

from mindrl.config.rl import RLConfig
from mindrl.errors import ConfigError, RewardError
from mindrl.rewards.functions import math_verify
from mindrl.rewards.inputs import RewardInputs
from mindrl.rewards.scorer import RewardScorer
from mindrl.rewards.scores import Scores

TIMEOUT_SECONDS = 1.5
LOWEST = -1.0
"""Declared in hostile_reward.py; no answer that scores is so bad."""
KINDS = ("timeouts", "crashes", "errors")
TOWER = "Easy: \\boxed{9^{9^{9^{9}}}}"


OBEY = f"{Path(__file__).with_name('hostile_reward.py')}:obey"


@pytest.fixture(scope="module")
def scorer() -> Iterator[RewardScorer]:
    with scorer_of([OBEY, "math_verify"], [1.0, 0.5], TIMEOUT_SECONDS, processes=2) as scorer:
        yield scorer


def obeyed(scorer: RewardScorer, answers: int, harms: dict[int, str]) -> Scores:
    """Score answers 0, 1, 2, ... as 0.0, 1.0, 2.0, ... but for those that do harm."""
    responses = [harms.get(index, "fine") for index in range(answers)]
    return scorer.score(responses, [str(index) for index in range(answers)])


def counts(scores: Scores) -> tuple[int, int, int]:
    """Return how many scores were late, took their process along, or were none."""
    found = scores.metrics()
    timeouts, crashes, errors = (found[f"reward/{name}"] for name in KINDS)
    return int(timeouts), int(crashes), int(errors)


def unharmed(answers: int, harms: dict[int, str]) -> tuple[float, ...]:
    return tuple(LOWEST if index in harms else float(index) for index in range(answers))


def test_100_scores_come_in_order_and_as_the_functions_give_them(scorer: RewardScorer) -> None:
    responses = [f"so \\boxed{{{n}}}" for n in range(100)]
    references = [str(n - n % 2) for n in range(100)]
    scores = scorer.score(responses, references)
    expected = tuple(map(math_verify, responses, references))
    assert sum(expected) == 50.0
    assert scores.components == {OBEY: tuple(map(float, references)), "math_verify": expected}
    assert scores.rewards == tuple(
        float(reference) + 0.5 * part for reference, part in zip(references, expected, strict=True)
    )
    assert counts(scores) == (0, 0, 0)


def test_metrics_of_rewards_1_and_2_are_mean_1_5_and_std_0_5(scorer: RewardScorer) -> None:
    scores = scorer.score(["fine", "fine"], ["1", "2"])
    assert scores.metrics() == {
        "reward/mean": 1.5,
        "reward/std": 0.5,
        "reward/obey": 1.5,
        "reward/math_verify": 0.0,
        "reward/timeouts": 0.0,
        "reward/crashes": 0.0,
        "reward/errors": 0.0,
    }


@pytest.mark.nightly
def test_three_hanging_answers_of_96_cost_only_themselves_and_bounded_time(
    scorer: RewardScorer,
) -> None:
    harms = {7: "hang", 40: "hang in C", 90: "hang deaf"}
    started = time.monotonic()
    scores = obeyed(scorer, 96, harms)
    elapsed = time.monotonic() - started
    assert scores.components[OBEY] == unharmed(96, harms)
    assert counts(scores) == (3, 0, 0)
    # Each hangs once in its chunk and once alone; 5 s for new workers on a busy machine.
    assert elapsed < 6 * TIMEOUT_SECONDS + 5.0


def test_answers_that_kill_their_process_cost_only_themselves(scorer: RewardScorer) -> None:
    harms = {3: "exit 3", 20: "exit 0", 21: "segfault", 63: "killed"}
    scores = obeyed(scorer, 64, harms)
    assert scores.components[OBEY] == unharmed(64, harms)
    assert counts(scores) == (0, 4, 0)


def test_eight_bad_results_are_eight_errors_of_the_lowest_score(scorer: RewardScorer) -> None:
    kinds = ["raise", "None", "nan", "inf", "text", "decimal", "sys.exit", "allocate 8 GiB"]
    harms = dict(enumerate(kinds, start=1))
    scores = obeyed(scorer, 10, harms)
    assert scores.components[OBEY] == unharmed(10, harms)
    assert counts(scores) == (0, 0, 8)


@pytest.mark.nightly
def test_a_number_that_takes_for_ever_scores_as_a_wrong_number_does() -> None:
    responses = ["Answer: 12", "Answer: 11", "Answer: 10!!!!!!"]
    with scorer_of(["acc_for_dapo"], [1.0], TIMEOUT_SECONDS, processes=1) as dapo:
        scores = dapo.score(responses, ["12"] * 3)
    assert (scores.rewards, scores.failed("timeout")) == ((1.0, -1.0, -1.0), 1)
    # One of three answers is right, whatever the ends of the range.
    assert sum(scores.shares("acc_for_dapo")) == pytest.approx(len(scores.rewards) / 3)


def test_printing_100_mb_neither_shows_nor_costs(
    scorer: RewardScorer, capfd: pytest.CaptureFixture[str]
) -> None:
    scores = obeyed(scorer, 2, {0: "print 100 MB"})
    assert scores.components[OBEY] == (1.0, 1.0)
    assert capfd.readouterr() == ("", "")


def test_what_a_function_prints_is_kept_up_to_8_mib(tmp_path: Path) -> None:
    file, log = tmp_path / "own.py", tmp_path / "rewards.log"
    file.write_text(
        "def talk(r, a):\n    print('rated', r, '\\ud800')\n    print(a * 1000)\n    return 1.0\n"
    )
    rl = RLConfig(mini_batch_size=1, verifier_function=(f"{file}:talk",), verifier_weight=(1.0,))
    with RewardScorer(rl, inputs=RewardInputs(prints=log)) as scorer:
        assert scorer.score(["one"], ["x"]).rewards == (1.0,)
        told = f"rated one \\ud800\n{'x' * 1000}\n"
        deadline = time.monotonic() + 20.0
        while log.read_text() != told and time.monotonic() < deadline:
            time.sleep(0.05)
        assert log.read_text() == told
        assert scorer.score(["many"] * 3, ["y" * 4096] * 3).rewards == (1.0,) * 3
        while log.stat().st_size < 8 << 20 and time.monotonic() < deadline:
            time.sleep(0.05)
    end = "\n[more is dropped]\n"
    assert log.stat().st_size == (8 << 20) + len(end)
    assert log.read_text().endswith(f"y{end}")


def test_the_first_failure_of_each_kind_is_logged_with_the_calls_and_their_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = OBEY.removesuffix(":obey")
    code = Path(source).read_text("utf-8").splitlines()
    with (
        scorer_of([OBEY], [1.0], TIMEOUT_SECONDS, 1) as fresh,
        caplog.at_level(logging.WARNING, logger="mindrl.rewards.scorer"),
    ):
        obeyed(fresh, 4, {1: "raise", 2: "exit 3", 3: "raise"})
        obeyed(fresh, 4, {0: "raise", 1: "None"})
    raised, crashed, again, none = (record.getMessage() for record in caplog.records)

    first, *calls = raised.splitlines()
    where = f"{source}:{code.index('    raise ValueError(text)') + 1}"
    assert first.startswith(f"{OBEY} failed for 2 of 4 responses: exception: 'ValueError: long")
    assert first.endswith(f" ({where}); the first is response 1: 'raise'")
    assert [line.strip() for line in calls if "File" not in line and "^" not in line] == [
        "return HARMS[response]() if response in HARMS else float(reference)",
        '"raise": lambda: fail("long " * 1000),',
        "raise ValueError(text)",
    ]
    # Without a call to blame, the function itself.
    obey = f"{source}:{code.index('def obey(response: str, reference: str) -> object:') + 1}"
    assert crashed == (
        f"{OBEY} failed for 1 of 4 responses: crash: process ended: exit code 3 ({obey}); "
        "the first is response 2: 'exit 3'"
    )
    assert again.startswith(f"{OBEY} failed for 1 of 4 responses: exception: 'ValueError: long")
    assert "\n" not in again
    assert f"value: returned None; need a finite number ({obey})" in none
    assert all(len(record.getMessage()) < 3000 for record in caplog.records)


def test_foreign_text_cannot_command_a_terminal_from_the_log(
    scorer: RewardScorer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="mindrl.rewards.scorer"):
        scorer.score(["\n\x1b[31m" + "x" * 10_000] * 20, ["no number"] * 20)
    (line,) = (record.getMessage() for record in caplog.records)
    assert "failed for 20 of 20 responses" in line
    assert line.replace("\n", "").isprintable()


def test_hostile_text_gives_the_same_scores_twice(scorer: RewardScorer) -> None:
    responses = [
        TOWER,
        "\\boxed{9**9**9**9}",
        "so \\boxed{" + "(" * 20_000 + "72" + ")" * 20_000 + "}",
        "so \\boxed{72",
        "so \\boxed{{{72}",
        "\ud800 lone surrogate \\boxed{72}",
        "\x00 \\boxed{72}",
        "so \\boxed{72}",
    ]
    first, second = (scorer.score(responses, ["72"] * len(responses)) for _ in range(2))
    assert first.rewards == second.rewards
    assert first.components == second.components
    assert first.components["math_verify"] == (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
    # On a busy machine the second text too takes all of its time: it is wrong either way.
    assert counts(first) in ((1, 0, 0), (2, 0, 0))


def test_one_reference_too_few_or_no_responses_are_refused(scorer: RewardScorer) -> None:
    with pytest.raises(RewardError, match="2 responses and 1 references"):
        scorer.score(["a", "b"], ["72"])
    with pytest.raises(RewardError, match="0 responses and 0 references"):
        scorer.score([], [])


def test_slow_answers_within_the_limit_all_score(tmp_path: Path) -> None:
    file = tmp_path / "slow.py"
    file.write_text("import time\ndef slow(r, a):\n    time.sleep(1.2)\n    return 1.0\n")
    with scorer_of([f"{file}:slow"], [1.0], timeout_seconds=2.0, processes=1) as scorer:
        scores = scorer.score(["a"] * 5, ["72"] * 5)  # a chunk of 2 would take 2.4 s
    assert (scores.rewards, scores.failed("timeout")) == ((1.0,) * 5, 0)


def test_an_unknown_function_is_refused_at_the_first_score() -> None:
    with (
        scorer_of(["math_verfy"], [1.0], 1.0, 1) as scorer,
        pytest.raises(ConfigError, match="did you mean 'math_verify'"),
    ):
        scorer.score(["a"], ["72"])


def test_a_function_whose_import_ends_the_host_is_an_error_and_no_hang(tmp_path: Path) -> None:
    file = tmp_path / "fatal.py"
    file.write_text("import os\nos._exit(5)\n")
    with (
        scorer_of([f"{file}:score"], [1.0], 1.0, 1) as scorer,
        pytest.raises(RewardError, match="exit code 5"),
    ):
        scorer.score(["a"], ["72"])


def test_processes_that_were_aborted_are_started_anew_by_the_next_score() -> None:
    with scorer_of(["math_verify"], [1.0], TIMEOUT_SECONDS, processes=1) as scorer:
        scorer.score(["\\boxed{1}"], ["1"])
        scorer.abort()
        assert scorer.score(["\\boxed{1}"], ["1"]).rewards == (1.0,)


def test_each_source_is_rated_by_functions_and_weights_of_its_own() -> None:
    rl = RLConfig(mini_batch_size=1, verifier_function=("math_verify",), verifier_weight=(1.0,))
    weights = {
        "": {"math_verify": 1.0},
        "form": {"boxed_format": 0.5},
        "both": {"boxed_format": 1.0, "math_verify": 2.0},
    }
    right, wrong = "so \\boxed{1}", "so \\boxed{2}"
    with RewardScorer(rl, weights) as scorer:
        scores = scorer.score(
            [wrong, right, wrong, wrong], ["1"] * 4, ["form", "both", "other", "both"]
        )
    assert scores.rewards == (0.5, 3.0, 0.0, 1.0)
    assert scores.components == {
        "boxed_format": (1.0, 1.0, None, 1.0),
        "math_verify": (None, 1.0, 0.0, 0.0),
    }
    assert scores.parts(0) == {"boxed_format": 1.0}
    # Of each source its first function; what has none of its own is judged as ever.
    assert scores.shares("math_verify") == [1.0, 1.0, 0.0, 1.0]
    found = scores.metrics()
    assert {name: value for name, value in found.items() if name.startswith("data/both")} == {
        "data/both/share": 0.5,
        "data/both/reward": 2.0,
        "data/both/accuracy": 1.0,
    }
    assert (found["reward/math_verify"], found["reward/mean"]) == (1 / 3, 1.125)


def test_a_function_that_fails_for_all_rows_of_its_source_has_no_score_at_all() -> None:
    rl = RLConfig(mini_batch_size=1, verifier_function=("math_verify",), verifier_weight=(1.0,))
    with RewardScorer(rl, {"": {"math_verify": 1.0}, "own": {OBEY: 1.0}}) as scorer:
        scores = scorer.score(["\\boxed{1}", "raise"], ["1", "no number"], ["", "own"])
    assert scores.rewards[0] == 1.0
    [hopeless] = scores.without_any_score()
    assert (hopeless.function, hopeless.response) == (OBEY, 1)


def test_parts_of_a_batch_have_the_scores_and_the_failures_that_they_have_alone() -> None:
    rl = RLConfig(mini_batch_size=1, verifier_function=("math_verify",), verifier_weight=(1.0,))
    weights = {"": {"math_verify": 1.0}, "own": {OBEY: 1.0, "math_verify": 0.5}}
    responses = ["\\boxed{1}", "raise", "fine", "\\boxed{7}", "raise"]
    answers, sources = ["1", "8", "9", "7", "4"], ["", "own", "own", "", "own"]
    with RewardScorer(rl, weights) as scorer:
        parts = scorer.score_parts([1, 2, 2], responses, answers, sources)
        starts = (0, 1, 3)
        alone = [
            scorer.score(responses[at : at + n], answers[at : at + n], sources[at : at + n])
            for at, n in zip(starts, (1, 2, 2), strict=True)
        ]
        whole = scorer.score(responses, answers, sources)
    assert parts == alone
    assert replace(Scores.joined(parts), left_out_of={}) == whole
    assert [(each.function, each.response) for each in parts[2].failures] == [(OBEY, 1)]


def test_batches_of_different_sources_are_joined_and_cut_with_what_was_asked_of_whom() -> None:
    weights = {"": {OBEY: 1.0}, "form": {"boxed_format": 1.0}}
    rl = RLConfig(mini_batch_size=1, verifier_function=(OBEY,), verifier_weight=(1.0,))
    with RewardScorer(rl, weights) as scorer:
        first = scorer.score(["so \\boxed{1}"] * 2, ["1"] * 2, ["form"] * 2)
        second = scorer.score(["fine"], ["1"], ["sums"])
    both = Scores.joined([first, second])
    assert both.components == {
        "boxed_format": (1.0, 1.0, None),
        OBEY: (None, None, 1.0),
    }
    assert both.sources == ("form", "form", "sums")
    kept = both.rows([1, 2])
    assert (kept.sources, kept.rewards) == (("form", "sums"), (1.0, 1.0))
    assert kept.scored_counts == {"boxed_format": 2, OBEY: 1}
