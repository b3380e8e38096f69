"""Counts of an engine: its steps, preemptions for lack of KV cache, and drafted tokens."""

from collections.abc import Callable
from typing import Any


class EngineCounts:
    """Counts steps, preemptions and drafts. A preempted sequence is computed again, later."""

    def __init__(self, engine: Any, ranks: int) -> None:
        """Wrap the scheduler of a replica's engine; each of its `ranks` counts the same."""
        scheduler = engine.engine_core.engine_core.scheduler
        self._ranks, self._drafts = ranks, bool(scheduler.num_spec_tokens)
        self._preemptions = self._steps = self._drafted = self._accepted = 0
        scheduler._preempt_request = self._with_preemptions(scheduler._preempt_request)
        scheduler.make_spec_decoding_stats = self._with_drafts(scheduler.make_spec_decoding_stats)

    def count_step(self) -> None:
        """Count a step of the engine."""
        self._steps += 1

    def flush(self) -> dict[str, float]:
        """Return this rank's share of the replica's counts since the last call, by metric."""
        counts = {
            "throughput/preemptions": self._preemptions / self._ranks,
            "throughput/engine_steps": self._steps / self._ranks,
        }
        if self._drafts:
            counts |= {
                "throughput/drafted_tokens": self._drafted / self._ranks,
                "throughput/accepted_tokens": self._accepted / self._ranks,
            }
        self._preemptions = self._steps = self._drafted = self._accepted = 0
        return counts

    def _with_preemptions(self, preempt: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self._preemptions += 1
            return preempt(*arguments, **options)

        return counted

    def _with_drafts(self, make_stats: Callable[..., Any]) -> Callable[..., Any]:
        def counted(
            stats: Any, num_draft_tokens: int, num_accepted_tokens: int, *more: Any, **named: Any
        ) -> Any:
            self._drafted += num_draft_tokens
            self._accepted += num_accepted_tokens
            return make_stats(stats, num_draft_tokens, num_accepted_tokens, *more, **named)

        return counted
