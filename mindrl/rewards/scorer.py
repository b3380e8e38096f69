"""Score responses in processes of their own, within a time limit for each answer."""

import logging
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from mindrl.errors import ConfigError, RewardError
from mindrl.rewards.host_process import HostProcess
from mindrl.rewards.messages import Failure, Outcomes, PoolPlan, ScoreRequest, quoted
from mindrl.rewards.score_range import ScoreRange
from mindrl.rewards.worst_scores import WorstScores

FAILURES_LOGGED = 16
"""In one call; the counts cover the rest."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Rewards of a batch of responses, in the order of the responses."""

    rewards: tuple[float, ...]
    """Weighted sum over the functions."""
    parts: Mapping[str, tuple[float, ...]]
    """Unweighted scores by function; the worst one where an answer failed."""
    ranges: Mapping[str, ScoreRange]
    """Of the functions."""
    timeouts: int
    """Scores that were not there within the time limit."""
    crashes: int
    """Scores whose process died."""
    errors: int
    """Scores whose function raised, or returned no finite number."""

    def accuracy(self, function: str) -> float:
        """Return where the scores of a function lie in its range, on average: 0 to 1."""
        return statistics.fmean(map(self.ranges[function].share, self.parts[function]))

    def metrics(self) -> dict[str, float]:
        """Return mean and population standard deviation, the mean of each part, and the counts."""
        parts = {f"reward/{name}": statistics.fmean(part) for name, part in self.parts.items()}
        return {
            "reward/mean": statistics.fmean(self.rewards),
            "reward/std": statistics.pstdev(self.rewards),
            **parts,
            "reward/timeouts": float(self.timeouts),
            "reward/crashes": float(self.crashes),
            "reward/errors": float(self.errors),
        }


class RewardScorer:
    """Scores batches; a context manager, used by one thread at a time.

    An answer that hangs, kills its process or makes a function raise gets that function's
    worst score, is counted and logged, and costs no other answer anything.
    """

    def __init__(
        self,
        functions: Sequence[str],
        weights: Sequence[float],
        timeout_seconds: float,
        processes: int,
    ) -> None:
        """Check the plan; no process starts before `warm_up` or the first `score`.

        Raises:
            ConfigError: functions repeat or are none, weights do not fit them, or a
                limit is not positive.
        """
        _check(functions, weights, timeout_seconds, processes)
        self._weights = tuple(weights)
        self._plan = PoolPlan(
            functions=tuple(functions), timeout_seconds=timeout_seconds, processes=processes
        )
        self._host: HostProcess | None = None
        self._worst = WorstScores(dict(zip(functions, weights, strict=True)))

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
        if self._host is None:
            self._host = HostProcess(self._plan)

    def score(self, responses: Sequence[str], references: Sequence[str]) -> Scores:
        """Score each response against its reference.

        Raises:
            ConfigError: a reward function cannot be resolved.
            RewardError: no responses, a reference too few or too many, or the host
                process is lost; never for what an answer holds.
        """
        if len(responses) != len(references) or not responses:
            raise RewardError(
                f"{len(responses)} responses and {len(references)} references; "
                "need one reference for each of at least 1 response"
            )
        request = ScoreRequest(responses=tuple(responses), references=tuple(references))
        outcomes, ranges = self._outcomes(request)
        _log_failures(outcomes, request)
        parts = self._worst.filled(outcomes, ranges)
        kinds = [each.kind for each in _failures(outcomes)]
        return Scores(
            rewards=tuple(
                sum(weight * part for weight, part in zip(self._weights, row, strict=True))
                for row in zip(*parts.values(), strict=True)
            ),
            parts=parts,
            ranges=ranges,
            timeouts=kinds.count("timeout"),
            crashes=kinds.count("crash"),
            errors=kinds.count("error"),
        )

    def close(self) -> None:
        """End every process that was started; a later call starts new ones."""
        if self._host is not None:
            host, self._host = self._host, None
            host.stop()

    def abort(self) -> None:
        """Kill the processes: a `score` that another thread waits for raises a RewardError."""
        host = self._host
        if host is not None:
            host.kill()

    def _outcomes(self, request: ScoreRequest) -> tuple[Outcomes, Mapping[str, ScoreRange]]:
        self.warm_up()
        host = self._host
        assert host is not None
        try:
            return host.score(request), host.ranges
        except BaseException:  # Ctrl-C too: a late reply must not answer the next request
            host.kill()
            self._host = None
            raise


def _check(
    functions: Sequence[str], weights: Sequence[float], timeout_seconds: float, processes: int
) -> None:
    if not functions or len(set(functions)) != len(functions):
        raise ConfigError(
            f"rl_config.verifier_function={list(functions)}: need at least 1, each named once"
        )
    if len(weights) != len(functions) or not all(map(math.isfinite, weights)):
        raise ConfigError(
            f"rl_config.verifier_weight={list(weights)}: need {len(functions)} finite numbers, "
            "one for each rl_config.verifier_function"
        )
    if not 0 < timeout_seconds < math.inf:
        raise ConfigError(f"rl_config.verifier_timeout={timeout_seconds}: need seconds above 0")
    if processes < 1:
        raise ConfigError(f"rl_config.verifier_parallel={processes}: need at least 1 process")


def _failures(outcomes: Outcomes) -> Iterator[Failure]:
    for column in outcomes.values():
        for outcome in column:
            if isinstance(outcome, Failure):
                yield outcome


def _log_failures(outcomes: Outcomes, request: ScoreRequest) -> None:
    failures = [
        (function, index, outcome)
        for function, column in outcomes.items()
        for index, outcome in enumerate(column)
        if isinstance(outcome, Failure)
    ]
    for function, index, failure in failures[:FAILURES_LOGGED]:
        logger.warning(
            "%s failed for answer %d: %s: %s; response %s",
            function,
            index,
            failure.kind,
            failure.detail,
            quoted(request.responses[index]),
        )
    if len(failures) > FAILURES_LOGGED:
        logger.warning("%d more answers failed", len(failures) - FAILURES_LOGGED)
