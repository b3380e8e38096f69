"""Checks of each step: warnings, and the end of the run if a problem persists."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mindrl.errors import LogprobGapError, MindrlError, NonfiniteError, SkippedUpdatesError
from mindrl.observability.metrics import Metrics, nonfinite_causes, nonfinite_keys

MODELS = {"update/skipped": "actor", "critic/skipped": "critic"}
"""Models by the metric that counts their skipped updates."""
MOST_SKIPPED_STEPS = 3
"""Consecutive steps in which a model skips all updates; no later step would differ."""
UNKNOWN_GAPS = "nonfinite/logprob_gap"
"""Metric that counts tokens for which one of the two log-probs is not finite."""


@dataclass
class StepChecks:
    """Checks the metrics of consecutive steps."""

    max_logprob_gap: float | None
    """In nats; None accepts any finite gap."""
    logprob_gap_steps: int
    """Consecutive steps above it that end the run."""
    stops: bool = field(default=False, kw_only=True)
    """Whether a non-finite number ends the run at once."""
    _beyond: int = 0
    _idle: Counter[str] = field(default_factory=Counter)

    def counts(self) -> dict[str, object]:
        """Return for how many steps problems have persisted."""
        return {"beyond": self._beyond, "idle": dict(self._idle)}

    def load_counts(self, counts: Mapping[str, Any]) -> None:
        """Restore the counts."""
        self._beyond, self._idle = counts["beyond"], Counter(counts["idle"])

    def warnings(self, step: int, metrics: Metrics) -> Iterator[str]:
        """Yield warnings about a step, and end the run if a problem has persisted for too long.

        Raises:
            LogprobGapError: The gap was too large, or not finite at some tokens, in this and the
                previous steps.
            SkippedUpdatesError: A model has skipped all updates for some steps.
            NonfiniteError: A number was not finite, and that stops the run.
            MindrlError: A metric is not finite.
        """
        yield from self._nonfinite(step, metrics)
        for name in MODELS:
            yield from self._skipped(step, name, metrics)
        yield from self._gap(step, metrics)
        if broken := nonfinite_keys(metrics):
            raise MindrlError(f"step {step}: metrics are not finite: {', '.join(broken)}")

    def _nonfinite(self, step: int, metrics: Metrics) -> Iterator[str]:
        causes = nonfinite_causes(metrics)
        if causes or any(metrics.get(name) for name in MODELS):
            text = f"step {step}: not finite: {causes or 'a gradient norm'}"
            if self.stops:
                raise NonfiniteError(f"{text}; megatron_training.on_nonfinite=stop")
            yield text

    def _gap(self, step: int, metrics: Metrics) -> Iterator[str]:
        gap, unknown = (metrics.get(name) for name in ("logprob_gap/mean", UNKNOWN_GAPS))
        if gap is None and not unknown:
            # All of its tokens were sampled in earlier steps.
            return
        limit = math.inf if self.max_logprob_gap is None else self.max_logprob_gap
        is_within = not unknown and gap is not None and gap <= limit
        self._beyond = 0 if is_within else self._beyond + 1
        if is_within:
            return
        text = f"step {step}: rollout and training log-probs "
        if gap is not None:
            text += f"differ by {gap:.3g} nats on average (rl_config.max_logprob_gap={limit:g})"
        if unknown:
            text += f"{', and ' if gap is not None else ''}are not finite at {unknown:.0f} token(s)"
        if self._beyond == self.logprob_gap_steps:
            raise LogprobGapError(
                f"{text} for {self._beyond} step(s) in a row: weights, temperature or precision of "
                "rollout engine and trainer differ"
            )
        yield f"{text}; {self.logprob_gap_steps} such steps in a row end the run"

    def _skipped(self, step: int, name: str, metrics: Metrics) -> Iterator[str]:
        """Yield skipped updates of a model, and end the run if it skips all of them.

        If a model skipped all its updates, the metrics have only `name`, the count.
        """
        model, skipped = MODELS[name], metrics.get(name, 0.0)
        if skipped:
            yield f"step {step}: {skipped:.0f} update(s) of the {model} skipped"
        prefix = name.removesuffix("skipped")
        took_none = [each for each in metrics if each.startswith(prefix)] == [name]
        self._idle[name] = self._idle[name] + 1 if took_none else 0
        if self._idle[name] == MOST_SKIPPED_STEPS:
            raise SkippedUpdatesError(
                f"step {step}: all updates of the {model} in {MOST_SKIPPED_STEPS} steps were "
                "skipped because its loss or gradient was not finite; its weights are unchanged"
            )
