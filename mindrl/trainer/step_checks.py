"""What each step is judged by: warnings at once, and the end of the run where it stays bad."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from mindrl.errors import LogprobGapError, MindrlError, SkippedUpdatesError
from mindrl.observability.metrics import Metrics, nonfinite_keys

MODELS = {"update/skipped": "actor", "critic/skipped": "critic"}
MOST_SKIPPED_STEPS = 3
"""Steps in a row in which a model takes none of its updates; no later step would, either."""


@dataclass
class StepChecks:
    """Judges the metrics of one step after the other."""

    max_logprob_gap: float | None
    """In nats; None judges no gap that is a number."""
    logprob_gap_steps: int
    """Steps in a row beyond it that end the run."""
    _beyond: int = 0
    _idle: dict[str, int] = field(default_factory=dict)

    def warnings(self, step: int, metrics: Metrics) -> Iterator[str]:
        """Say what is wrong with a step, and end the run where that has gone on for too long.

        Raises:
            LogprobGapError: The gap is NaN, or was too large in this and the steps before.
            SkippedUpdatesError: A model has taken no update for some steps.
            MindrlError: A metric is not finite.
        """
        yield from self._gap(step, metrics["logprob_gap/mean"])
        for name, model in MODELS.items():
            yield from self._skipped(step, model, metrics.get(name, 0.0))
            # Without a taken update there are no other metrics of that model.
            self._idle[model] = self._idle.get(model, 0) + 1 if _is_idle(name, metrics) else 0
            if self._idle[model] == MOST_SKIPPED_STEPS:
                raise SkippedUpdatesError(
                    f"step {step}: the {model} has taken no update in {MOST_SKIPPED_STEPS} steps: "
                    "the norm of its gradient is not finite; its weights are those of before"
                )
        if broken := nonfinite_keys(metrics):
            raise MindrlError(f"step {step}: not a finite number: {', '.join(broken)}")

    def _gap(self, step: int, gap: float) -> Iterator[str]:
        limit = math.inf if self.max_logprob_gap is None else self.max_logprob_gap
        self._beyond = 0 if gap <= limit else self._beyond + 1
        if not self._beyond:
            return
        text = (
            f"step {step}: rollout and training log-probs differ by {gap:.3g} nats on average, "
            f"rl_config.max_logprob_gap={limit:g}"
        )
        if math.isnan(gap) or self._beyond == self.logprob_gap_steps:
            raise LogprobGapError(
                f"{text}, for {self._beyond} step(s) in a row: the rollout engine has other "
                "weights, another temperature or another precision than the trainer"
            )
        yield f"{text}; the run ends if that lasts for {self.logprob_gap_steps} steps in a row"

    def _skipped(self, step: int, model: str, skipped: float) -> Iterator[str]:
        if skipped:
            yield (
                f"step {step}: {skipped:.0f} update(s) of the {model} skipped: the norm of the "
                "gradient is not finite"
            )


def _is_idle(name: str, metrics: Metrics) -> bool:
    prefix = name.removesuffix("skipped")
    return [each for each in metrics if each.startswith(prefix)] == [name]
