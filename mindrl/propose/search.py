"""Find the best candidates without planning all of them.

A candidate is evaluated up to three times: by lower bounds of bytes and seconds, then by the exact
memory of all ranks, then with the exact plan of its reshard. The cheapest one is always evaluated
next, so a fully planned one at the top is the best.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil

import numpy as np

from mindrl.errors import ConfigError
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.memory.plan import RankBytes
from mindrl.memory.schedule import Region
from mindrl.observability.units import GIB, memory_text
from mindrl.platform.device_models import DEVICE_MODELS
from mindrl.preflight.run_shardings import RunShardings, unordered_shardings
from mindrl.propose.candidates import (
    MOST_DEVICES,
    Candidate,
    Settings,
    Task,
    candidate_config,
    legal_rollout,
    legal_training,
    refusals,
)
from mindrl.propose.costs import GIGA, LINK_SHARE
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
"""Maximum pieces of tensors whose reshard is planned in one search: a few seconds of work."""

_ENDLESS_BYTES = 1 << 60

_BOUNDED, _MEASURED, _PLANNED = range(3)
"""Stages of a candidate's evaluation."""

Notify = Callable[[str], None]
"""Receives a description of the current work."""


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Bytes that a reshard moves; all ranks together."""

    received: int
    across_nodes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Layouts and settings that fit."""

    candidate: Candidate
    fit: Fit
    moved: Moved | None = None
    """None if planning the reshard would take too long; the longest planned time is assumed."""


def search(task: Task, top: int, notify: Notify, *, most_pieces: int = MOST_PIECES) -> "Search":
    """Find the candidates with the shortest steps, at most `top` of them.

    Raises:
        ConfigError: The rules of a run allow no layout at all.
    """
    notify("planning layouts of the model")
    training, rollout = legal_training(task), legal_rollout(task)
    if not training or not rollout:
        raise ConfigError(_nothing_legal(task))
    found = Search(
        task=task, notify=notify, pieces_left=most_pieces, training=training, rollout=rollout
    )
    found.bound()
    found.find(top)
    return found


@dataclass(kw_only=True)
class Search:
    """Candidates of one request in a heap, the cheapest first, and the proposals found."""

    task: Task
    notify: Notify
    pieces_left: int
    training: list[TrainLayout]
    """All layouts that the rules allow."""
    rollout: list[RolloutLayout]
    proposals: list[Proposal] = field(default_factory=list)
    """The best first."""
    fitting: int = 0
    """Number of candidates that fit by their lower bounds."""
    longest_reshard: float = 0.0
    """Seconds; of planned reshards."""
    ready: dict[TrainLayout, Prepared] = field(default_factory=dict)
    heap: list[tuple[float, tuple[str, str], int, Proposal]] = field(default_factory=list)
    misses: list[tuple[Candidate, Sizes]] = field(default_factory=list)
    """Candidates that do not fit, with their sizes."""

    def bound(self) -> None:
        """Evaluate every candidate by its lower bounds."""
        for at, layout in enumerate(self.training):
            self.notify(f"layouts {at + 1} of {len(self.training)}")
            self.ready[layout] = prepared(self.task, layout)
            for engine in self.rollout:
                candidate = Candidate(training=layout, rollout=engine)
                self._judge(candidate, least_sizes(self.task, candidate), _BOUNDED)
        self.fitting = len(self.heap)

    def find(self, top: int) -> None:
        """Move the candidates with the shortest steps into `proposals`."""
        while self.heap and len(self.proposals) < top:
            _, _, stage, proposal = heapq.heappop(self.heap)
            candidate = proposal.candidate
            self.notify(f"{len(self.proposals)} found; {' -> '.join(self.task.texts(candidate))}")
            if stage == _BOUNDED:
                models = unordered_shardings(candidate_config(self.task, candidate, Settings()))
                # The reshard plan adds the messages later.
                none = np.zeros_like(models.most_staging)
                self._judge(candidate, exact_sizes(self.task, models, none), _MEASURED)
            elif stage == _MEASURED:
                self._plan(proposal)
            elif not refusals(self.task, candidate, proposal.fit.settings):
                self.proposals.append(proposal)

    @cached_property
    def nearest(self) -> tuple[Candidate, Misfit] | None:
        """The misfit with the smallest excess; None also if no pair of layouts is legal."""
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
        """Push a candidate for the next stage if it fits."""
        fit = self._fit(candidate, sizes)
        if fit is None:
            self.misses.append((candidate, sizes))
            return
        self._push(Proposal(candidate=candidate, fit=fit, moved=moved), stage)

    def _plan(self, proposal: Proposal) -> None:
        """Plan the reshard, unless the search has planned too many pieces."""
        pieces = reshard_pieces(self.task, proposal.candidate)
        if pieces > self.pieces_left:
            # A lower bound would rank it before those whose reshard is known.
            seconds = proposal.fit.seconds
            guess = {**seconds, "reshard": max(seconds["reshard"], self.longest_reshard)}
            self._push(replace(proposal, fit=replace(proposal.fit, seconds=guess)), _PLANNED)
            return
        self.pieces_left -= pieces
        models, moved = planned_models(self.task, proposal.candidate)
        self.longest_reshard = max(self.longest_reshard, moved.seconds)
        sizes = self._planned_sizes(proposal.candidate, models, moved.seconds)
        self._judge(proposal.candidate, sizes, _PLANNED, moved)

    def _planned_sizes(self, candidate: Candidate, models: RunShardings, seconds: float) -> Sizes:
        """Return the bytes of a candidate; plans rounds only if the messages matter."""

        def with_staging(staging: RankBytes) -> Sizes:
            regions = {**sizes.plan.regions, Region.STAGING: staging}
            plan = replace(sizes.plan, regions=regions)
            return replace(sizes, plan=plan, reshard_seconds=seconds)

        most = models.most_staging
        sizes = exact_sizes(self.task, models, most)
        without, with_most = with_staging(np.zeros_like(most)), with_staging(most)
        fit = self._fit(candidate, with_most)
        if fit is not None and fit == self._fit(candidate, without):
            return with_most
        return with_staging(models.reshard.peak_staging)

    def _push(self, proposal: Proposal, stage: int) -> None:
        item = (proposal.fit.step_seconds, self.task.texts(proposal.candidate), stage, proposal)
        heapq.heappush(self.heap, item)


def planned_models(task: Task, candidate: Candidate) -> tuple[RunShardings, Moved]:
    """Return a candidate's shardings with its reshard plan, and the moved bytes."""
    models = unordered_shardings(candidate_config(task, candidate, Settings())).ordered
    return models, moved_by(task, models.reshard.pair_bytes)


def moved_by(task: Task, pairs: RankBytes) -> Moved:
    """Sum the bytes from each rank (row) to each (column); the busiest rank sets the time."""
    inside = Topology(ranks_per_node=task.ranks_per_node).shared_nodes(len(pairs))
    near, far = np.where(inside, pairs, 0), np.where(inside, 0, pairs)
    rates = (task.device.node_gbps, task.device.network_gbps)
    seconds = sum(
        np.stack([part.sum(axis=0), part.sum(axis=1)]) / (rate * GIGA * LINK_SHARE)
        for part, rate in zip((near, far), rates, strict=True)
    )
    return Moved(
        received=int(pairs.sum()), across_nodes=int(far.sum()), seconds=float(np.max(seconds))
    )


def reshard_pieces(task: Task, candidate: Candidate) -> int:
    """Estimate the number of tensor pieces in a reshard plan."""
    model, ranks = task.model, task.devices
    pieces = model.num_hidden_layers * 10
    if model.moe:
        layers = model.num_hidden_layers - len(model.moe.dense_layers)
        pieces += layers * 3 * model.moe.num_experts // candidate.rollout.ep
    return pieces * ranks


def _nothing_legal(task: Task) -> str:
    """Return the findings on the simplest layouts, which no other layout would resolve."""
    alone = Candidate(training=TrainLayout(dp=task.devices), rollout=RolloutLayout(dp=task.devices))
    found = refusals(task, alone)
    # Another layout does not help if the engine cannot build the model.
    if unbuilt := [str(each) for each in found if each.field == "actor_config.backend"]:
        return "; ".join(unbuilt)
    rest = "; ".join(map(str, found))
    return f"no layout of {task.devices} devices is legal; with data parallelism alone: {rest}"


def remedies(task: Task, found: Search, notify: Notify) -> Iterator[str]:
    """Yield how much memory is missing, and options that would fit; one line each."""
    name = f"{task.load} on {task.devices} x {task.device.name}"
    if found.nearest is None:
        yield f"{name}: no layout is valid for a run"
        return
    candidate, miss = found.nearest
    where = "the host of a node" if miss.moment == "host" else f"a device in {miss.moment}"
    training, rollout = task.texts(candidate)
    yield (
        f"{name}: no layout fits; the nearest is {training} -> {rollout}, which needs "
        f"{memory_text(miss.need_bytes)} of {where} and may use "
        f"{memory_text(miss.available_bytes)}"
    )
    yield from _more_devices(task, notify)
    for option, changed in _changes(task):
        if _fitting(changed, notify):
            yield f"it fits with {option}"
    if enough := _fitting(replace(task, host_bytes=_ENDLESS_BYTES), notify):
        yield f"it fits with --host-memory-gib {ceil(enough.fit.host_bytes / GIB)}"


def _more_devices(task: Task, notify: Notify) -> Iterator[str]:
    devices = task.devices * 2
    while devices <= MOST_DEVICES:
        more = replace(task, devices=devices)
        if devices % more.ranks_per_node == 0 and (found := _fitting(more, notify)):
            yield f"it fits with --devices {devices}: {' -> '.join(more.texts(found.candidate))}"
            return
        devices *= 2
    yield f"more devices do not help, up to {MOST_DEVICES}"


def _changes(task: Task) -> Iterator[tuple[str, Task]]:
    """Yield tasks with one option changed."""
    half = task.response_tokens // 2
    if half:
        yield f"--response-tokens {half}", replace(task, response_tokens=half)
    if task.has_critic:
        yield "--algorithm grpo", replace(task, algorithm="grpo")
    for model in DEVICE_MODELS.values():
        if model.memory_mib > task.device.memory_mib and model.kind == task.device.kind:
            yield f"--device {model.name}", replace(task, device=model)


def _fitting(task: Task, notify: Notify) -> Proposal | None:
    """Return a proposal that fits, without planning the reshard."""
    try:
        found = search(task, 1, notify, most_pieces=0)
    except ConfigError:
        return None
    return found.proposals[0] if found.proposals else None
