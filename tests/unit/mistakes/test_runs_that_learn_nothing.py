"""What a run says, once and at once, of steps that teach nothing: the whole line."""

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
            "warning: step 2 has nothing to learn from: the responses to each prompt have equal "
            "rewards, 0.000 on average; other prompts, more rl_config.n_samples_per_prompt or a "
            "reward that tells responses apart may help; the summary counts such steps"
        ),
    ),
    "a gradient of 0": (
        {"update/grad_norm": 0.0, "advantage/zero_fraction": 0.25},
        (
            "warning: step 2 changed nothing: the gradient is 0, although rewards differ; "
            "something leaves all tokens out, such as rl_config.overlong_filter_enable or "
            "rl_config.rollout_correction; the summary counts such steps"
        ),
    ),
    "responses that are all cut": (
        {"rollout/cut_fraction": 1.0},
        (
            "warning: step 2 has no response that ended by itself: all were cut at 64 tokens; "
            "raise generate_config.sampling_config.max_tokens, or look in the samples for how the "
            "model would end"
        ),
    ),
    "rewards that are waited for": (
        {"seconds/reward": 8.0},
        (
            "warning: step 2 waited for its rewards for 8.0 of 10.0 s: they rate 100 tokens a "
            "second; more rl_config.verifier_parallel, or rl_config.blocking=false, may help"
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
    assert stream.getvalue().count("has nothing to learn from") == 1
    assert resumed.summary.steps_without_signal == 2


def test_a_reward_that_fails_now_and_then_is_told_of_with_its_line(tmp_path: Path) -> None:
    stream = io.StringIO()
    run_log = opened(tmp_path, stream)
    for step in (1, 2):
        run_log.reward_failures(step, [FAILED])
    assert stream.getvalue() == (
        'warning: step 1: own.py:score gave 2 response(s) no score: exception: "KeyError: '
        "'answer'\" (own.py:3); more in driver.log, the summary counts them all\n"
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
