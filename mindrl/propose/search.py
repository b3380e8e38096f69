"""The best candidates first, without making every plan.

A candidate is looked at up to three times: by bytes and seconds that no exact number is below, then
by the exact memory of all ranks, then with the exact plan of its reshard. The one that looks
cheapest is always looked at next, so one that comes up with its plan made is beaten by none.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from mindrl.errors import ConfigError
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.memory.plan import RankBytes
from mindrl.memory.regions import Phase, Region
from mindrl.preflight.run_shardings import RunShardings, planned_shardings, unordered_shardings
from mindrl.propose.candidates import (
    Candidate,
    Settings,
    Task,
    candidate_config,
    legal_rollout,
    legal_training,
    refusals,
)
from mindrl.propose.costs import LINK_SHARE
from mindrl.propose.fitting import (
    Fit,
    Misfit,
    Prepared,
    Sizes,
    best_fit,
    exact_sizes,
    least_sizes,
    nearest_misfit,
    prepared,
)
from mindrl.resharding.plan import Topology

MOST_PIECES = 1_000_000
"""Pieces of tensors whose reshard is planned in one search: a few seconds' work."""
_GIGA = 1e9

_BOUNDED, _MEASURED, _PLANNED = range(3)
"""How far a candidate has been looked at."""

Tell = Callable[[str], None]
"""Takes what is being done, in words."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What a reshard moves, in bytes; received by all ranks together."""

    received: int
    across_nodes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Layouts and settings that fit."""

    candidate: Candidate
    fit: Fit
    activations: Mapping[Settings, Mapping[Phase, int]]
    """Estimates for each choice of settings, of the layout alone."""
    moved: Moved | None = None
    """None where planning the reshard would take too long: it counts as the longest planned one."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """What a search has found."""

    proposals: list[Proposal]
    """The best first."""
    training: tuple[TrainLayout, ...]
    """Every one that the rules allow."""
    rollout: tuple[RolloutLayout, ...]
    fitting: int
    """Candidates that fit by their lower bounds."""
    nearest: tuple[Candidate, Misfit] | None
    """What comes nearest where nothing fits; None too where the rules let no pair pass."""


def search(task: Task, top: int, tell: Tell, *, most_pieces: int = MOST_PIECES) -> Search:
    """Find the candidates with the shortest steps, at most `top` of them.

    Raises:
        ConfigError: The rules of a run allow no layout at all.
    """
    tell("laying the model out")
    training, rollout = legal_training(task), legal_rollout(task)
    if not training or not rollout:
        raise ConfigError(_nothing_legal(task))
    sweep = _Sweep(task=task, tell=tell, pieces_left=most_pieces)
    sweep.bound(training, rollout)
    proposals = list(sweep.best(top))
    return Search(
        proposals=proposals,
        training=tuple(training),
        rollout=tuple(rollout),
        fitting=sweep.fitting,
        nearest=None if proposals else sweep.nearest(),
    )


@dataclass(kw_only=True)
class _Sweep:
    """The candidates of one search, the cheapest on top of the heap."""

    task: Task
    tell: Tell
    pieces_left: int
    longest_reshard: float = 0.0
    """Seconds, of those planned."""
    ready: dict[TrainLayout, Prepared] = field(default_factory=dict)
    heap: list[tuple[float, tuple[str, str], int, Proposal]] = field(default_factory=list)
    misses: list[tuple[Candidate, Sizes]] = field(default_factory=list)
    """Candidates that do not fit, by these sizes."""
    fitting: int = 0

    def bound(self, training: list[TrainLayout], rollout: list[RolloutLayout]) -> None:
        """Look at every candidate by its lower bounds."""
        for at, layout in enumerate(training):
            self.tell(f"layouts {at + 1} of {len(training)}")
            self.ready[layout] = prepared(self.task, layout)
            for engine in rollout:
                candidate = Candidate(training=layout, rollout=engine)
                self._judge(candidate, least_sizes(self.task, candidate), _BOUNDED)
        self.fitting = len(self.heap)

    def best(self, top: int) -> Iterator[Proposal]:
        """Yield the candidates with the shortest steps."""
        found = 0
        while self.heap and found < top:
            _, _, stage, proposal = heapq.heappop(self.heap)
            self.tell(f"{found} found; {' -> '.join(proposal.candidate.texts)}")
            if stage == _BOUNDED:
                self._measure(proposal.candidate)
            elif stage == _MEASURED:
                self._plan(proposal)
            elif not refusals(self.task, proposal.candidate, proposal.fit.settings):
                found += 1
                yield proposal

    def nearest(self) -> tuple[Candidate, Misfit] | None:
        """Return what comes nearest of all that does not fit."""
        misses = [
            (each, nearest_misfit(self.task, self.ready[each.training], each.rollout, sizes))
            for each, sizes in self.misses
        ]
        return min(misses, key=lambda miss: miss[1].excess, default=None)

    def _fit(self, candidate: Candidate, sizes: Sizes) -> Fit | None:
        return best_fit(self.task, self.ready[candidate.training], candidate.rollout, sizes)

    def _judge(
        self, candidate: Candidate, sizes: Sizes, stage: int, moved: Moved | None = None
    ) -> None:
        """Keep a candidate for another look where it fits."""
        fit = self._fit(candidate, sizes)
        if fit is None:
            self.misses.append((candidate, sizes))
            return
        activations = self.ready[candidate.training].activations
        found = Proposal(candidate=candidate, fit=fit, activations=activations, moved=moved)
        self._push(found, stage)

    def _measure(self, candidate: Candidate) -> None:
        models = unordered_shardings(candidate_config(self.task, candidate, Settings()))
        # Messages are counted with the plan of the reshard.
        none = np.zeros_like(models.most_staging)
        self._judge(candidate, exact_sizes(self.task, models, none), _MEASURED)

    def _plan(self, proposal: Proposal) -> None:
        """Plan the reshard, while there is time for it."""
        pieces = reshard_pieces(self.task, proposal.candidate)
        if pieces > self.pieces_left:
            # A lower bound would put it ahead of those whose reshard is known.
            seconds = proposal.fit.seconds
            guess = replace(seconds, reshard=max(seconds.reshard, self.longest_reshard))
            self._push(replace(proposal, fit=replace(proposal.fit, seconds=guess)), _PLANNED)
            return
        self.pieces_left -= pieces
        models, moved = planned_models(self.task, proposal.candidate)
        self.longest_reshard = max(self.longest_reshard, moved.seconds)
        sizes = self._planned_sizes(proposal.candidate, models, moved.seconds)
        self._judge(proposal.candidate, sizes, _PLANNED, moved)

    def _planned_sizes(self, candidate: Candidate, models: RunShardings, seconds: float) -> Sizes:
        """Return the bytes of a candidate; rounds are made only where messages decide."""

        def with_staging(staging: RankBytes) -> Sizes:
            regions = {**sizes.regions, Region.STAGING: staging}
            return replace(sizes, regions=regions, reshard_seconds=seconds)

        most = models.most_staging
        sizes = exact_sizes(self.task, models, most)
        without, with_most = with_staging(np.zeros_like(most)), with_staging(most)
        fit = self._fit(candidate, with_most)
        if fit is not None and fit == self._fit(candidate, without):
            return with_most
        return with_staging(models.staging)

    def _push(self, proposal: Proposal, stage: int) -> None:
        item = (proposal.fit.seconds.total, proposal.candidate.texts, stage, proposal)
        heapq.heappush(self.heap, item)


def planned_models(task: Task, candidate: Candidate) -> tuple[RunShardings, Moved]:
    """Return the models of a candidate with the plan of its reshard, and what that moves."""
    models = planned_shardings(candidate_config(task, candidate, Settings()))
    return models, moved_by(task, models.reshard.pair_bytes)


def moved_by(task: Task, pairs: RankBytes) -> Moved:
    """Sum up bytes from each rank (row) to each (column); the busiest one makes the time."""
    inside = Topology(ranks_per_node=task.ranks_per_node).shared_nodes(len(pairs))
    near, far = np.where(inside, pairs, 0), np.where(inside, 0, pairs)
    rates = (task.device.node_gbps, task.device.network_gbps)
    seconds = sum(
        np.stack([part.sum(axis=0), part.sum(axis=1)]) / (rate * _GIGA * LINK_SHARE)
        for part, rate in zip((near, far), rates, strict=True)
    )
    return Moved(
        received=int(pairs.sum()), across_nodes=int(far.sum()), seconds=float(np.max(seconds))
    )


def reshard_pieces(task: Task, candidate: Candidate) -> int:
    """Estimate the pieces of tensors that the plan of a reshard deals with."""
    model, ranks = task.model, task.devices
    pieces = model.num_hidden_layers * 10
    if model.moe:
        layers = model.num_hidden_layers - len(model.moe.dense_layers)
        pieces += layers * 3 * model.moe.num_experts // candidate.rollout.ep
    return pieces * ranks


def _nothing_legal(task: Task) -> str:
    """Say what the rules find wrong with the simplest layouts; other ones cannot help there."""
    alone = Candidate(training=TrainLayout(dp=task.devices), rollout=RolloutLayout(dp=task.devices))
    found = "; ".join(map(str, refusals(task, alone)))
    return f"no layout of {task.devices} devices is legal; with data parallelism alone: {found}"
