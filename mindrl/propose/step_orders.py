"""Simulate the throughput of each order of steps, with the pool rules of a run.

Pure. Assumes that lengths do not depend on weights, rewards take no time, and training is evenly
distributed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from random import Random
from typing import Literal

from mindrl.propose.decoding import Drawing, Rates
from mindrl.propose.fleet import Dealing, Fleet, Seen
from mindrl.trainer.source.bounds import PoolBounds

Order = Literal["in_turns", "partial", "one_step_off", "asynchronous"]
WARM = 4
"""The first 1 / WARM of the steps is not counted."""
MOST_SPLITS = 16
"""Largest number of splits of an order that are all simulated."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Work of a step."""

    groups: Sequence[Sequence[int]]
    """Lengths of the responses to each prompt, in tokens; each step samples some of them."""
    prompts: int
    prompt_tokens: int = 0
    """Tokens per prompt."""


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """An order of steps on a split of the devices."""

    order: Order
    max_staleness: int = 0
    training: int
    """Training devices."""
    rollout: int
    """Rollout devices: the same ones if `is_apart` is False."""
    is_apart: bool = False
    round_steps: int = 32
    """Engine steps between two polls for finished responses; not used in turns."""

    @property
    def dealing(self) -> Dealing:
        """How responses are distributed, and when they are polled."""
        if self.order == "in_turns":
            return "bounds"
        return "rounds" if self.order == "partial" else "groups"

    @property
    def devices(self) -> int:
        """Devices of both sides."""
        return self.training + self.rollout if self.is_apart else self.training


@dataclass(frozen=True, kw_only=True)
class Worth:
    """Simulated throughput of an arrangement."""

    useful: float
    """Time that the trained tokens would take in full batches, as a share of the devices' time."""
    idle_training: float
    idle_rollout: float
    """`idle_training` and `idle_rollout`: idle share of each side's time; equal on shared
    devices."""
    step_seconds: float
    sequences_per_second: float
    staleness: float
    """Mean over the groups that were trained on."""
    oldest: int


@dataclass
class _Run:
    """State of one simulated run."""

    load: Load
    rates: Rates
    way: Arrangement
    bounds: PoolBounds
    random: Random
    now: float = 0.0
    started: int = 0
    born: dict[int, int] = field(default_factory=dict)
    """Start step of each group in progress, the oldest first."""
    open_: dict[int, int] = field(default_factory=dict)
    """Number of its incomplete responses."""
    tokens: dict[int, int] = field(default_factory=dict)
    sequences: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Create the replicas."""
        way, rates = self.way, self.rates
        replicas = way.rollout // rates.replica_devices
        self.fleet = Fleet(rates, replicas, way.dealing, way.round_steps)
        self.trained_seconds = 0.0
        self.held: list[Drawing] = []

    def steps(self) -> Iterator[tuple[list[int], int, int]]:
        """Yield after each step the ages of its groups, their responses and their tokens."""
        for step in range(1, self.bounds.last_step + 1):
            self._begin(step, self.bounds.to_start(step, len(self.born)))
            while (taken := self._groups_of(step)) is None:
                # Nothing changes before another group is complete.
                while not self._go_on():
                    pass
            groups = [[*self.born][place] for place in taken]
            ages = [step - self.born.pop(group) for group in groups]
            drawn = sum(self.sequences.pop(group) for group in groups)
            tokens = sum(self.tokens.pop(group) for group in groups)
            if self.way.order == "partial":
                self._stop(self.now)
            elif self.way.is_apart:
                self._begin(step, self.bounds.to_start_ahead(step, len(self.born)))
            self._learn(tokens)
            yield ages, drawn, tokens

    def _learn(self, tokens: int) -> None:
        """Train, in parallel with a separate rollout; then update the weights."""
        spent = self.rates.update + tokens * self.rates.trained_token / self.way.training
        self.trained_seconds += spent * self.way.training
        end = self.now + spent
        if self.way.order == "one_step_off":
            while any(self.open_.values()):
                self._go_on()
        elif self.way.order == "asynchronous":
            while self.fleet.next_look() <= end:
                self._go_on()
            self._stop(end)
        change = self.rates.publish if self.way.is_apart else self.rates.switch
        self.now = max(self.now, end) + change

    def _begin(self, step: int, count: int) -> None:
        """Start groups, after interrupted responses."""
        drawings, self.held = self.held, []
        for _ in range(count):
            lengths = self.random.choice(self.load.groups)
            self.born[self.started], self.open_[self.started] = step, len(lengths)
            self.tokens[self.started], self.sequences[self.started] = sum(lengths), len(lengths)
            drawings += [
                Drawing(group=self.started, left=max(1, length), context=self.load.prompt_tokens)
                for length in lengths
            ]
            self.started += 1
        self.fleet.add(drawings, self.now)

    def _go_on(self) -> bool:
        """Advance until a response is seen to be complete; return whether a group is."""
        return self._note(self.fleet.go_on())

    def _stop(self, at: float) -> None:
        """Stop all replicas at a time, each after its round."""
        seen = self.fleet.stop(at)
        self._note(seen)
        self.held = seen.left

    def _note(self, seen: Seen) -> bool:
        self.now = max(self.now, seen.at)
        for drawing in seen.whole:
            self.open_[drawing.group] -= 1
        return not all(self.open_[drawing.group] for drawing in seen.whole)

    def _groups_of(self, step: int) -> list[int] | None:
        whole_G = [not self.open_[group] for group in self.born]
        return self.bounds.ready(step, [*self.born.values()], whole_G)


def worth_of(
    load: Load, rates: Rates, way: Arrangement, *, steps: int = 40, seed: int = 0
) -> Worth:
    """Simulate an arrangement; the first quarter of its steps is not counted."""
    # More steps follow the counted ones: the last steps of a run generate less and less.
    bounds = bounds_of(way, load.prompts, steps + 1 + way.max_staleness)
    run = _Run(load, rates, way, bounds, Random(seed))
    ages: list[int] = []
    oldest = drawn = tokens = 0
    since = (0.0, 0.0, 0.0)
    for step, (of_step, responses, count) in enumerate(islice(run.steps(), steps), start=1):
        oldest = max(oldest, *of_step)
        if step <= steps // WARM:
            since = run.now, run.fleet.busy_seconds, run.trained_seconds
            continue
        ages += of_step
        drawn, tokens = drawn + responses, tokens + count
    wall = run.now - since[0]
    rolled, trained = run.fleet.busy_seconds - since[1], run.trained_seconds - since[2]
    idle_rollout, idle_training = (
        1 - rolled / (wall * way.rollout),
        1 - trained / (wall * way.training),
    )
    if not way.is_apart:
        idle_rollout = idle_training = 1 - (rolled + trained) / (wall * way.training)
    return Worth(
        useful=tokens * _best_seconds(load, rates) / (way.devices * wall),
        idle_training=idle_training,
        idle_rollout=idle_rollout,
        step_seconds=wall / (steps - steps // WARM),
        sequences_per_second=drawn / wall,
        staleness=sum(ages) / len(ages),
        oldest=oldest,
    )


def bounds_of(way: Arrangement, prompts: int, steps: int) -> PoolBounds:
    """Return the pool bounds of a run with this order."""
    age = {"in_turns": 0, "one_step_off": 1}.get(way.order, way.max_staleness)
    return PoolBounds(
        per_step=prompts,
        in_flight=prompts if way.order == "one_step_off" else (1 + age) * prompts,
        max_staleness=age,
        last_step=steps,
    )


def ways(devices: int, replica_devices: int, ages: Sequence[int]) -> Iterator[Arrangement]:
    """Yield every order on shared devices, and on every split of them."""
    shared = devices - devices % replica_devices
    yield Arrangement(order="in_turns", training=shared, rollout=shared)
    for age in ages:
        yield Arrangement(order="partial", max_staleness=age, training=shared, rollout=shared)
    for rollout in range(replica_devices, devices, replica_devices):
        apart = partial(Arrangement, training=devices - rollout, rollout=rollout, is_apart=True)
        yield apart(order="in_turns")
        yield apart(order="one_step_off", max_staleness=1)
        for age in ages:
            yield apart(order="asynchronous", max_staleness=age)


def best_ways(
    load: Load,
    rates: Rates,
    found: Sequence[Arrangement],
    notify: Callable[[Arrangement], None],
    *,
    steps: int = 24,
) -> list[tuple[Arrangement, Worth]]:
    """Return each order and staleness with its best split, the most useful first.

    Of more than `MOST_SPLITS` splits only a sample is simulated, then those around the best of it.
    `notify` is called with each arrangement before its simulation.
    """
    splits: dict[tuple[Order, int, bool], list[Arrangement]] = {}
    for way in found:
        splits.setdefault((way.order, way.max_staleness, way.is_apart), []).append(way)

    def simulated(way: Arrangement) -> tuple[Arrangement, Worth]:
        notify(way)
        return way, worth_of(load, rates, way, steps=steps)

    best = (_best_split(each, simulated) for each in splits.values())
    return sorted(best, key=lambda each: -each[1].useful)


def _best_split(
    splits: Sequence[Arrangement], simulated: Callable[[Arrangement], tuple[Arrangement, Worth]]
) -> tuple[Arrangement, Worth]:
    """Return the best of evenly spaced splits, and of splits closer and closer to the best."""
    space = -(-len(splits) // MOST_SPLITS)
    tried: dict[int, tuple[Arrangement, Worth]] = {}
    places: Iterable[int] = range(space // 2, len(splits), space)
    while True:
        tried |= {place: simulated(splits[place]) for place in places if place not in tried}
        best = max(tried, key=lambda place: tried[place][1].useful)
        if space == 1:
            return tried[best]
        space = (space + 1) // 2
        places = (at for at in (best - space, best + space) if 0 <= at < len(splits))


def _best_seconds(load: Load, rates: Rates) -> float:
    """Return the device seconds per trained token in full batches."""
    lengths = [length for group in load.groups for length in group]
    mean = sum(lengths) / len(lengths)
    context = load.prompt_tokens + sum(length**2 for length in lengths) / sum(lengths) / 2
    step = rates.step(rates.at_a_time) / rates.at_a_time + rates.context_token * context
    read = rates.prompt_token * load.prompt_tokens / mean
    return (step + read) * rates.replica_devices + rates.trained_token
