"""Search several training engines separately, and rank their proposals together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mindrl.propose.candidates import Task
from mindrl.propose.figures import figures_of, task_figures
from mindrl.propose.search import Proposal, Search


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One engine and its search, with at least one proposal."""

    task: Task
    found: Search


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A proposal ranked among those of all engines."""

    judged: Judged
    at: int
    """Index among the proposals of its engine."""
    rank: int | None = None
    """Rank among all, from 1; None if it is listed only as the best of its engine."""

    @property
    def proposal(self) -> Proposal:
        """The ranked proposal."""
        return self.judged.found.proposals[self.at]


def ranked(judged: Sequence[Judged], top: int) -> list[Ranked]:
    """Return the best `top` of all, then the best of each engine that has none among them."""
    every = [
        Ranked(judged=each, at=at) for each in judged for at in range(len(each.found.proposals))
    ]
    every.sort(key=_cost)
    first = [replace(each, rank=rank) for rank, each in enumerate(every[:top], start=1)]
    there = {each.judged.task.engine for each in first}
    return first + [each for each in every if each.at == 0 and each.judged.task.engine not in there]


def _cost(each: Ranked) -> tuple[float, tuple[str, str]]:
    proposal = each.proposal
    return proposal.fit.step_seconds, each.judged.task.texts(proposal.candidate)


def compared_figures(
    judged: Sequence[Judged], refused: Mapping[str, str], rows: Sequence[Ranked]
) -> dict[str, Any]:
    """Return the figures of all searches; for a refused engine only the reason."""
    of = {each.task.engine: figures_of(each.task, each.found, rows[0].proposal) for each in judged}
    counts = ("training_layouts", "rollout_layouts", "fitting")
    engines = {
        engine: {**{name: each[name] for name in counts}, "refused": None}
        for engine, each in of.items()
    }
    proposals = [
        {
            "rank": each.rank,
            "engine": each.judged.task.engine,
            **of[each.judged.task.engine]["proposals"][each.at],
        }
        for each in rows
    ]
    none = dict.fromkeys(counts)
    return {
        **task_figures(judged[0].task),
        "engines": engines | {each: {**none, "refused": why} for each, why in refused.items()},
        "proposals": proposals,
    }
