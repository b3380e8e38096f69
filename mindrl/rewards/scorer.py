"""Score responses in processes of their own, within a time limit for each response."""

import logging
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from mindrl.config.rl import RLConfig
from mindrl.errors import ConfigError, RewardError
from mindrl.observability.printable import printable
from mindrl.rewards.messages import FailureKind, Outcomes, PoolPlan, Ranges, ScoreRequest, quoted
from mindrl.rewards.resolve import FIELD
from mindrl.rewards.scores import (
    Failures,
    Scores,
    WorstScores,
    failures_of,
    functions_without_scores,
)
from mindrl.rewards.service_process import RewardService

logger = logging.getLogger(__name__)

_ANSWERED = "<think>so it is</think><answer>Answer: \\boxed{%s}</answer>"


class RewardScorer:
    """Scores batches; a context manager, used by one thread at a time.

    A response that hangs, kills its process or makes a function raise gets that function's
    worst score, is counted and logged, and costs no other anything.
    """

    def __init__(self, rl: RLConfig) -> None:
        """Take the functions and their limits; no process starts before `warm_up` or `score`."""
        self._weights = rl.verifier_weight
        self._plan = PoolPlan(
            functions=rl.verifier_function,
            timeout_seconds=rl.verifier_timeout,
            processes=rl.verifier_parallel,
        )
        self._service: RewardService | None = None
        self._logged: set[tuple[str, FailureKind]] = set()
        self._worst = WorstScores(dict(zip(rl.verifier_function, rl.verifier_weight, strict=True)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def warm_up(self) -> None:
        """Start the processes and their imports, and return at once."""
        if self._service is None:
            self._service = RewardService(self._plan)

    def score(self, responses: Sequence[str], answers: Sequence[str]) -> Scores:
        """Score each response against the right answer.

        Raises:
            ConfigError: a reward function cannot be resolved.
            RewardError: no responses, an answer too few or too many, or the service
                is lost; never for what a response holds.
        """
        if len(responses) != len(answers) or not responses:
            raise RewardError(
                f"{len(responses)} responses and {len(answers)} references; "
                "need one reference for each of at least 1 response"
            )
        request = ScoreRequest(responses=tuple(responses), answers=tuple(answers))
        outcomes, ranges = self._outcomes(request)
        components = self._worst.filled(outcomes, ranges)
        failures = failures_of(outcomes)
        self._log(failures, responses)
        return Scores(
            rewards=tuple(
                sum(weight * score for weight, score in zip(self._weights, row, strict=True))
                for row in zip(*components.values(), strict=True)
            ),
            components=components,
            ranges=ranges,
            failures=failures,
        )

    def close(self) -> None:
        """End every process that was started; a later call starts new ones."""
        if self._service is not None:
            service, self._service = self._service, None
            service.stop()

    def abort(self) -> None:
        """Kill the processes: a `score` that another thread waits for raises a RewardError."""
        service = self._service
        if service is not None:
            service.kill()

    def _outcomes(self, request: ScoreRequest) -> tuple[Outcomes, Ranges]:
        self.warm_up()
        service = self._service
        assert service is not None
        try:
            return service.score(request), service.ranges
        except BaseException:  # Ctrl-C too: a late reply must not answer the next request
            service.kill()
            self._service = None
            raise

    def _log(self, failures: Sequence[Failures], responses: Sequence[str]) -> None:
        """Log the first failure of each function and kind; where it is new, with its calls."""
        for each in failures:
            is_new = (each.function, each.kind) not in self._logged
            self._logged.add((each.function, each.kind))
            logger.warning(
                "%s failed for %d of %d responses: %s: %s; the first is response %d: %s%s",
                each.function,
                each.count,
                len(responses),
                each.kind,
                each.first.detail,
                each.response,
                quoted(responses[each.response]),
                f"\n{printable(each.first.trace)}".rstrip() if is_new else "",
            )


def try_rewards(functions: Sequence[str], timeout_seconds: float, answer: str) -> None:
    """Let each function of the user's score a response with the right answer and an empty one.

    The calls are those of a run, in a process that can be killed.

    Raises:
        ConfigError: A function returns something that is no finite number, or fails for both.
        RewardError: The process that calls them is lost.
    """
    own = tuple(function for function in functions if ":" in function)
    if not own:
        return
    responses = (_ANSWERED % answer, "")
    service = RewardService(PoolPlan(functions=own, timeout_seconds=timeout_seconds, processes=1))
    try:
        outcomes = service.score(ScoreRequest(responses=responses, answers=(answer,) * 2))
    finally:
        service.kill()
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
