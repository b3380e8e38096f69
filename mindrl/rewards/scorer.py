"""Score responses in processes of their own, within a time limit for each answer."""

import logging
import math
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from mindrl.errors import ConfigError, RewardError
from mindrl.observability.printable import printable
from mindrl.rewards.host_process import HostProcess
from mindrl.rewards.messages import FailureKind, Outcomes, PoolPlan, ScoreRequest, quoted
from mindrl.rewards.score_range import ScoreRange
from mindrl.rewards.scores import Failures, Scores, failures_of
from mindrl.rewards.worst_scores import WorstScores

logger = logging.getLogger(__name__)


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
        self._logged: set[tuple[str, FailureKind]] = set()
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
        parts = self._worst.filled(outcomes, ranges)
        failures = failures_of(outcomes)
        self._log(failures, responses)
        return Scores(
            rewards=tuple(
                sum(weight * part for weight, part in zip(self._weights, row, strict=True))
                for row in zip(*parts.values(), strict=True)
            ),
            parts=parts,
            ranges=ranges,
            failures=failures,
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
