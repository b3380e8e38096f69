"""Rounds of many messages, against a greedy choice one message at a time."""

from collections import defaultdict
from itertools import count

import numpy as np
import pytest

from mindrl.resharding.rounds import Deliveries, assign_rounds

ROUND = 1000


def drawn(world: int, number: int, sizes: list[int]) -> Deliveries:
    """Draw messages between ranks; one in `world` is a local copy."""
    random = np.random.default_rng(world)
    source, target = random.integers(0, world, (2, number), dtype=np.int32)
    return Deliveries(source, target, random.choice(sizes, number))


def one_by_one(messages: Deliveries) -> list[int]:
    """Return the first round with room both ways: more than half a round first, an eighth last."""
    room: defaultdict[tuple[str, int, int], int] = defaultdict(lambda: ROUND)
    rows = [*zip(*(column.tolist() for column in messages), strict=True)]
    kind = {
        index: (row[2] <= ROUND // 2) + (row[2] <= ROUND // 8) for index, row in enumerate(rows)
    }
    reached = defaultdict[tuple[int, int], int](int)
    rounds = {}
    for index in sorted(kind, key=kind.__getitem__):
        sender, receiver, size = rows[index]
        last = receiver, kind[index]
        if sender != receiver:
            ways = ("out", sender), ("in", receiver)
            at = next(at for at in count() if all(room[*way, at] >= size for way in ways))
            reached[last] = max(at, reached[last])
            for way in ways:
                room[*way, at] -= size
        rounds[index] = reached[last] if sender == receiver else at
    return [rounds[index] for index in range(len(rows))]


@pytest.mark.parametrize(
    ("world", "number", "sizes"),
    [
        # More rounds than one integer has bits, for messages that need a round each.
        (3, 900, [501, 1000]),
        (3, 2500, [90, 125, 126, 400, 500, 501, 999]),
        (40, 4000, [1, 30, 125, 250, 333, 700]),
        (200, 3000, [100, 1000]),
    ],
)
def test_rounds_of_many_messages_are_those_chosen_one_by_one(
    world: int, number: int, sizes: list[int]
) -> None:
    messages = drawn(world, number, sizes)
    found = assign_rounds(messages, ROUND).tolist()
    assert found == one_by_one(messages)
    assert world > 3 or max(found) > 128


def test_a_message_of_more_than_a_round_has_a_round_to_itself() -> None:
    ranks = np.zeros(4, dtype=np.int32)
    messages = Deliveries(ranks, ranks + 1, np.array([10, 5000, 10, 400]))
    assert assign_rounds(messages, ROUND).tolist() == [1, 0, 1, 1]


def test_no_messages_have_no_rounds() -> None:
    none = np.empty(0, dtype=np.int32)
    assert assign_rounds(Deliveries(none, none, none.astype(np.int64)), ROUND).tolist() == []
