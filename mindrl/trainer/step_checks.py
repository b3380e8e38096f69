"""What each step is judged by: warnings at once, and the end of the run where it stays bad."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mindrl.errors import LogprobGapError, MindrlError, NonfiniteError, SkippedUpdatesError
from mindrl.observability.metrics import Metrics, nonfinite_causes, nonfinite_keys

MODELS = {"update/skipped": "actor", "critic/skipped": "critic"}
"""By the metric that counts the updates that a model has skipped."""
MOST_SKIPPED_STEPS = 3
"""Steps in a row in which a model takes none of its updates; no later step would, either."""
UNKNOWN_GAPS = "nonfinite/logprob_gap"
"""The metric that counts tokens for which one of the two log-probs is not finite."""


@dataclass
class StepChecks:
    """Judges the metrics of one step after the other."""

    max_logprob_gap: float | None
    """In nats; None judges no gap that is a number."""
    logprob_gap_steps: int
    """Steps in a row beyond it that end the run."""
    stops: bool = field(default=False, kw_only=True)
    """A number that is not finite ends the run at once."""
    _beyond: int = 0
    _idle: Counter[str] = field(default_factory=Counter)

    def counts(self) -> dict[str, object]:
        """Return for how long something has gone on."""
        return {"beyond": self._beyond, "idle": dict(self._idle)}

    def take_counts(self, counts: Mapping[str, Any]) -> None:
        """Go on counting."""
        self._beyond, self._idle = counts["beyond"], Counter(counts["idle"])

    def warnings(self, step: int, metrics: Metrics) -> Iterator[str]:
        """Say what is wrong with a step, and end the run where that has gone on for too long.

        Raises:
            LogprobGapError: The gap was too large, or none at some tokens, in this and the steps
                before.
            SkippedUpdatesError: A model has taken no update for some steps.
            NonfiniteError: Something was not finite, and that stops the run.
            MindrlError: A metric is not finite.
        """
        yield from self._nonfinite(step, metrics)
        for name in MODELS:
            yield from self._skipped(step, name, metrics)
        yield from self._gap(step, metrics)
        if broken := nonfinite_keys(metrics):
            raise MindrlError(f"step {step}: not a finite number: {', '.join(broken)}")

    def _nonfinite(self, step: int, metrics: Metrics) -> Iterator[str]:
        causes = nonfinite_causes(metrics)
        if causes or any(metrics.get(name) for name in MODELS):
            text = f"step {step}: not finite: {causes or 'the norm of a gradient'}"
            if self.stops:
                raise NonfiniteError(f"{text}; megatron_training.on_nonfinite=stop")
            yield text

    def _gap(self, step: int, metrics: Metrics) -> Iterator[str]:
        gap, unknown = (metrics.get(name) for name in ("logprob_gap/mean", UNKNOWN_GAPS))
        if gap is None and not unknown:
            # All of its tokens were drawn in earlier steps.
            return
        limit = math.inf if self.max_logprob_gap is None else self.max_logprob_gap
        is_within = not unknown and gap is not None and gap <= limit
        self._beyond = 0 if is_within else self._beyond + 1
        if is_within:
            return
        text = f"step {step}: rollout and training log-probs "
        if gap is not None:
            text += f"differ by {gap:.3g} nats on average, rl_config.max_logprob_gap={limit:g}"
        if unknown:
            text += f"{', and ' if gap is not None else ''}are not finite at {unknown:.0f} token(s)"
        if self._beyond == self.logprob_gap_steps:
            raise LogprobGapError(
                f"{text}, for {self._beyond} step(s) in a row: the rollout engine has other "
                "weights, another temperature or another precision than the trainer"
            )
        yield f"{text}; the run ends if that lasts for {self.logprob_gap_steps} steps in a row"

    def _skipped(self, step: int, name: str, metrics: Metrics) -> Iterator[str]:
        """Tell of the updates that a model skipped, and end the run where it takes none any more.

        Of a model that took no update the metrics hold nothing but `name`, which counts them.
        """
        model, skipped = MODELS[name], metrics.get(name, 0.0)
        if skipped:
            yield f"step {step}: {skipped:.0f} update(s) of the {model} skipped"
        prefix = name.removesuffix("skipped")
        took_none = [each for each in metrics if each.startswith(prefix)] == [name]
        self._idle[name] = self._idle[name] + 1 if took_none else 0
        if self._idle[name] == MOST_SKIPPED_STEPS:
            raise SkippedUpdatesError(
                f"step {step}: the {model} has taken no update in {MOST_SKIPPED_STEPS} steps: "
                "its loss or its gradient is not finite; its weights are those of before"
            )
