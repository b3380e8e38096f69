"""A trial call of the user's own reward functions, before anything else is started."""

from collections.abc import Iterator, Sequence

from mindrl.errors import ConfigError
from mindrl.rewards.host_process import HostProcess
from mindrl.rewards.messages import Outcomes, PoolPlan, ScoreRequest, quoted
from mindrl.rewards.resolve import FIELD
from mindrl.rewards.scores import failures_of, functions_without_scores

_ANSWERED = "<think>so it is</think><answer>Answer: \\boxed{%s}</answer>"


def try_rewards(functions: Sequence[str], timeout_seconds: float, reference: str) -> None:
    """Let each function of the user's score a response with the right answer and an empty one.

    The calls are those of a run, in a process that can be killed.

    Raises:
        ConfigError: A function returns something that is no finite number, or fails for both.
        RewardError: The process that calls them is lost.
    """
    own = tuple(function for function in functions if ":" in function)
    if not own:
        return
    responses = (_ANSWERED % reference, "")
    host = HostProcess(PoolPlan(functions=own, timeout_seconds=timeout_seconds, processes=1))
    try:
        outcomes = host.score(ScoreRequest(responses=responses, references=(reference,) * 2))
    finally:
        host.kill()
    if lines := [*_refusals(outcomes, responses)]:
        raise ConfigError("\n".join(lines))


def _refusals(outcomes: Outcomes, responses: Sequence[str]) -> Iterator[str]:
    failures = failures_of(outcomes)
    always = functions_without_scores(failures, len(responses))
    for each in failures:
        if each.function in always or each.kind == "value":
            yield (
                f"{FIELD}={each.function!r} fails in a trial call: {each.kind}: "
                f"{each.first.detail}; the response was {quoted(responses[each.response])}"
            )
