"""The notes of a run about steps without a learning signal: each whole line, shown once."""

import io
from pathlib import Path

import pytest

from mindrl.observability.console import StepConsole
from mindrl.rewards.functions import ScoreRange
from mindrl.rewards.scores import Failure, Failures, Scores
from mindrl.trainer.run_log import RunFolder, RunLog, RunSummary

STEP = {
    "rollout/response_tokens": 800.0,
    "rollout/response_length_max": 64.0,
    "reward/mean": 0.0,
    "seconds/step": 10.0,
}
LINES: dict[str, tuple[dict[str, float], str]] = {
    "rewards that are all equal": (
        {"advantage/zero_fraction": 1.0},
        (
            "warning: step 2 did not change the policy: the responses to each prompt have equal "
            "rewards, 0.000 on average. Use other prompts, a more discriminating reward or a "
            "larger rl_config.n_samples_per_prompt; the summary counts such steps"
        ),
    ),
    "a gradient of 0": (
        {"update/grad_norm": 0.0, "advantage/zero_fraction": 0.25},
        (
            "warning: step 2 did not change the policy: the gradient is 0, although rewards "
            "differ. Check whether rl_config.overlong_filter_enable or "
            "rl_config.rollout_correction excludes all tokens; the summary counts such steps"
        ),
    ),
    "responses that are all cut": (
        {"rollout/cut_fraction": 1.0},
        (
            "warning: step 2 has no complete response: all were cut off at 64 tokens. Increase "
            "generate_config.sampling_config.max_tokens, or look in the samples for the end token "
            "that the model uses"
        ),
    ),
    "rewards that are waited for": (
        {"seconds/reward": 8.0},
        (
            "warning: step 2 waited for its rewards for 8.0 of 10.0 s: they score 100 tokens a "
            "second. Increase rl_config.verifier_parallel, or set rl_config.blocking=false"
        ),
    ),
}
FAILED = Failures(
    function="own.py:score",
    count=2,
    first=Failure(kind="exception", detail="\"KeyError: 'answer'\" (own.py:3)"),
    response=1,
)


def opened(folder: Path, stream: io.StringIO) -> RunLog:
    summary = RunSummary(exports={"actor": folder / "model"})
    return RunLog(RunFolder(folder), summary, StepConsole(9, stream), [])


@pytest.mark.parametrize(
    ("metrics", "line"), [pytest.param(*each, id=name) for name, each in LINES.items()]
)
def test_it_is_told_of(metrics: dict[str, float], line: str, tmp_path: Path) -> None:
    stream = io.StringIO()
    run_log = opened(tmp_path, stream)
    run_log.step(1, STEP, [])
    for step in (2, 3):
        run_log.step(step, STEP | metrics, [])
    told = [each for each in stream.getvalue().splitlines() if not each.startswith("step ")]
    assert told == [line]


def test_a_run_that_goes_on_does_not_repeat_itself(tmp_path: Path) -> None:
    stream = io.StringIO()
    before = opened(tmp_path, stream)
    before.step(2, STEP | {"advantage/zero_fraction": 1.0}, [])
    resumed = opened(tmp_path, stream)
    resumed.summary.load_counts(before.summary.counts())
    resumed.step(3, STEP | {"advantage/zero_fraction": 1.0}, [])
    assert stream.getvalue().count("did not change the policy") == 1
    assert resumed.summary.steps_without_signal == 2


def test_a_reward_that_fails_now_and_then_is_told_of_with_its_line(tmp_path: Path) -> None:
    stream = io.StringIO()
    run_log = opened(tmp_path, stream)
    for step in (1, 2):
        run_log.reward_failures(step, [FAILED])
    assert stream.getvalue() == (
        'warning: step 1: own.py:score did not score 2 response(s): exception: "KeyError: '
        "'answer'\" (own.py:3); details are in driver.log, and the summary counts all\n"
    )


@pytest.mark.parametrize(
    ("count", "policy", "words"),
    [
        (4, "stop_if_all_fail", "no score for any of 4 responses; the first: exception"),
        (2, "stop_if_all_fail", None),
        (2, "stop", "no score for 2 of 4 responses; the first: exception"),
        (4, "worst", None),
    ],
)
def test_a_reward_that_fails_ends_the_run_by_its_policy(
    count: int, policy: str, words: str | None
) -> None:
    failed = Failures(function="own.py:score", count=count, first=FAILED.first, response=0)
    scores = Scores(
        rewards=(0.0,) * 4,
        components={"own.py:score": (0.0,) * 4},
        ranges={"own.py:score": ScoreRange()},
        failures=(failed,),
    )
    line = (
        f"rl_config.verifier_function='own.py:score': {words}: \"KeyError: 'answer'\" (own.py:3); "
        f"rl_config.on_reward_failure={policy}"
    )
    assert scores.fatal(policy) == ([line] if words else [])
