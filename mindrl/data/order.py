"""Order in which a run visits the prompts of its sets."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from mindrl.config.run import RunConfig
from mindrl.data.prompts import PromptSet


@dataclass(frozen=True)
class PromptOrder:
    """Visits every prompt once per epoch, in a different order in each epoch.

    A pure function of the seed and the position: a resumed run needs only these to continue. A step
    may contain the last prompts of an epoch and the first of the next.
    """

    count: int
    """Number of prompts, at least 1."""
    seed: int
    """0 or more."""
    shuffle: bool
    """False visits them in sequence."""
    stream: int = 0
    """Random stream: sets of equal length are shuffled differently."""
    sequence: tuple[int, ...] = ()
    """All prompts in the order before shuffling; empty means the order of the file."""
    stages: int = 1
    """Number of parts of it that are shuffled separately."""

    def indices(self, place: int, count: int) -> list[int]:
        """Return the `count` prompts from `place` on; places count from 0, over all epochs."""
        places = [divmod(each, self.count) for each in range(place, place + count)]
        orders = {epoch: self._epoch(epoch) for epoch in {epoch for epoch, _ in places}}
        found = [int(orders[epoch][position]) for epoch, position in places]
        return [self.sequence[each] for each in found] if self.sequence else found

    def _epoch(self, epoch: int) -> NDArray[np.int64]:
        """Return the order of an epoch, as indices into the sequence."""
        order = np.arange(self.count)
        if not self.shuffle:
            return order
        # Trailing zeros of a seed have no effect, so `stream` is last.
        generator = np.random.default_rng([self.seed, epoch, self.stream])
        parts = np.array_split(order, self.stages)
        return np.concatenate([part[generator.permutation(len(part))] for part in parts])


@dataclass(frozen=True)
class MixedOrder:
    """Visits the prompts of several concatenated sets in proportion to their weights.

    Webster's method assigns a set to each place: up to any place, each set has had its share of the
    prompts to within about one. A pure function of the place.
    """

    orders: Sequence[PromptOrder]
    weights: Sequence[float]
    """Above 0."""

    def indices(self, place: int, count: int) -> list[int]:
        """Return the `count` prompts from `place` on; places count from 0."""
        drawn = self.drawn(place)
        chosen, before = [], list(drawn)
        for _ in range(count):
            chosen.append(self._next(drawn))
            drawn[chosen[-1]] += 1
        ends = [0, *accumulate(order.count for order in self.orders)]
        taken = [
            iter(order.indices(first, last - first))
            for order, first, last in zip(self.orders, before, drawn, strict=True)
        ]
        return [ends[which] + next(taken[which]) for which in chosen]

    def drawn(self, place: int) -> list[int]:
        """Return the number of prompts of each set before a place."""
        total, sets = sum(self.weights), len(self.weights)
        # Lower bounds of the counts; the last few are assigned one by one.
        shares = [weight / total for weight in self.weights]
        counts = [max(0, int(share * (place - sets / 2) - 1)) for share in shares]
        while sum(counts) < place:
            counts[self._next(counts)] += 1
        return counts

    def _next(self, counts: Sequence[int]) -> int:
        quotients = [
            weight / (2 * count + 1) for weight, count in zip(self.weights, counts, strict=True)
        ]
        return quotients.index(max(quotients))


def prompt_order(config: RunConfig, sets: Sequence[PromptSet]) -> PromptOrder | MixedOrder:
    """Return the order in which a run visits the prompts of its training sets."""
    orders = [_order_of(config, each, stream) for stream, each in enumerate(sets)]
    if len(orders) == 1:
        return orders[0]
    return MixedOrder(orders, [each.weight for each in config.data_config.train_sets])


def _order_of(config: RunConfig, found: PromptSet, stream: int) -> PromptOrder:
    training, data = config.megatron_training, config.data_config
    shuffle = not training.no_shuffle if data.order is None else data.order == "shuffled"
    sequence: tuple[int, ...] = ()
    if data.order == "by_column":
        sign, ranks = -1 if data.order_descending else 1, found.ranks
        sequence = tuple(sorted(range(len(ranks)), key=lambda at: sign * ranks[at]))
        shuffle = data.order_stages is not None
    return PromptOrder(
        count=len(found.prompts),
        seed=training.seed,
        shuffle=shuffle,
        stream=stream,
        sequence=sequence,
        stages=data.order_stages or 1,
    )
