"""How sequences lie in a pack, on one rank and on several context-parallel ones.

Shapes: B sequences, T positions, S tokens of the pack on a rank, N of them predict a token,
P tokens of the pack over all context-parallel ranks.
"""

from dataclasses import replace
from itertools import pairwise
from math import lcm

import pytest
import torch
from forked_workers import ForkedWorkers
from hypothesis import given, settings
from hypothesis import strategies as st
from packs_messages import PackFacts, Rules
from torch import Tensor

from mindrl.batch.sequences import Sequences

pytestmark = pytest.mark.distributed

GARBAGE = 7
"""Behind the end of each row of a batch; no token of a sequence is as small."""


def batch(lengths: list[int], prompt: int = 2) -> Sequences:
    """Make sequences whose tokens are 10, 11, 12 ..., then 30, 31 ..., then 50 ...

    All tokens behind the prompt are the response.
    """
    T = max(lengths)
    lengths_B = torch.tensor(lengths)
    inside_BT = torch.arange(T) < lengths_B[:, None]
    tokens_BT = torch.arange(T) + 10 + 20 * torch.arange(len(lengths))[:, None]
    return Sequences(
        tokens_BT=tokens_BT.where(inside_BT, GARBAGE),
        lengths_B=lengths_B,
        response_mask_BT=inside_BT & (torch.arange(T) >= prompt),
    )


def packs(workers: ForkedWorkers, sequences: Sequences, rules: Rules) -> list[PackFacts]:
    (found,) = workers.run("packs_probe:packs", sequences, rules)
    return found  # type: ignore[no-any-return]


def test_a_pack_of_3_and_5_tokens_written_out(forked_workers: ForkedWorkers) -> None:
    (pack,) = packs(forked_workers, batch([3, 5]), Rules())
    assert pack.tokens_S.tolist() == [10, 11, 12, 30, 31, 32, 33, 34]
    assert pack.positions_S.tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert pack.starts == (0, 3, 8)
    assert pack.longest == 5
    assert pack.for_megatron == ("thd", [0, 3, 8], [0, 3, 8], 5, 5)
    assert pack.gathered is pack.natural is None
    # Tokens 1, 4, 5 and 6 of the pack stand before a response token.
    assert pack.predicting_N.tolist() == [1, 4, 5, 6]
    assert pack.targets_N.tolist() == [12, 32, 33, 34]
    assert pack.places_N.tolist() == [2, 7, 8, 9]
    assert pack.spread_BT.tolist() == [[0, 0, 1, 0, 0], [0, 0, 2, 3, 4]]


def test_a_pack_of_two_answers_to_one_prompt_written_out(forked_workers: ForkedWorkers) -> None:
    sequences = batch([5, 4, 3])
    # The prompt of the first two is 10, 11.
    sequences.tokens_BT[1, :2] = sequences.tokens_BT[0, :2]
    (pack,) = packs(forked_workers, sequences, Rules(shares_prompts=True))
    assert pack.tokens_S.tolist() == [10, 11, 12, 13, 14, 32, 33, 50, 51, 52]
    assert pack.positions_S.tolist() == [0, 1, 2, 3, 4, 2, 3, 0, 1, 2]
    assert pack.starts == (0, 2, 5, 7, 10)
    # Megatron takes angles from the positions.
    assert pack.for_megatron == ("thd", [0, 10], [0, 10], 10, 10)
    # Token 1 predicts the first token of both answers.
    assert pack.predicting_N.tolist() == [1, 2, 3, 5, 8, 1]
    assert pack.targets_N.tolist() == [12, 13, 14, 33, 52, 32]
    assert pack.places_N.tolist() == [2, 3, 4, 8, 12, 7]


@settings(max_examples=15, deadline=None)
@given(
    answers=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=4),
    prompt=st.integers(1, 5),
    cp=st.sampled_from([1, 2, 3]),
)
def test_with_shared_prompts_each_response_token_is_predicted_once_by_the_token_before_it(
    forked_workers: ForkedWorkers, answers: list[list[int]], prompt: int, cp: int
) -> None:
    sequences = batch([prompt + answer for group in answers for answer in group], prompt)
    row = 0
    for group in answers:
        sequences.tokens_BT[row : row + len(group), :prompt] = sequences.tokens_BT[
            row, :prompt
        ].clone()
        row += len(group)
    rules = Rules(cp=cp, tokens_multiple=cp, shares_prompts=True)
    ranks = packs(forked_workers, sequences, rules)
    check_predictions(ranks, sequences)
    if cp == 1:
        assert len(ranks[0].tokens_S) == sum(prompt + sum(group) for group in answers)


def test_a_pack_of_two_turns_written_out(forked_workers: ForkedWorkers) -> None:
    sequences = batch([5, 6])
    # The second prompt is the first one, two tokens of its response, and 34.
    sequences.tokens_BT[1, :4] = sequences.tokens_BT[0, :4]
    sequences.response_mask_BT[1, :5] = False
    sequences = replace(sequences, tree_B=torch.tensor([0, 0]))
    (pack,) = packs(forked_workers, sequences, Rules(shares_prompts=True))
    assert pack.tokens_S.tolist() == [10, 11, 12, 13, 14, 34, 35]
    assert pack.positions_S.tolist() == [0, 1, 2, 3, 4, 4, 5]
    assert pack.starts == (0, 4, 5, 7)
    # Nothing predicts 34, which is a token of the prompt.
    assert pack.predicting_N.tolist() == [1, 2, 3, 5]
    assert pack.targets_N.tolist() == [12, 13, 14, 35]
    assert pack.places_N.tolist() == [2, 3, 4, 11]


turns = st.tuples(st.integers(1, 30), st.integers(0, 30), st.integers(0, 20))


@settings(max_examples=15, deadline=None)
@given(
    conversations=st.lists(st.lists(turns, min_size=1, max_size=4), min_size=1, max_size=3),
    prompt=st.integers(1, 20),
    cp=st.sampled_from([1, 2]),
)
def test_each_response_token_of_turns_is_predicted_once_by_the_token_before_it(
    forked_workers: ForkedWorkers,
    conversations: list[list[tuple[int, int, int]]],
    prompt: int,
    cp: int,
) -> None:
    generator = torch.Generator().manual_seed(prompt)
    texts = list[tuple[list[int], list[int]]]()
    for conversation in conversations:
        asked = [*range(10, 10 + prompt)]
        for length, kept, then in conversation:
            # Few different tokens, so that responses begin alike.
            drawn = torch.randint(50, 52, (length + then,), generator=generator).tolist()
            texts.append((asked, drawn[:length]))
            asked = asked + drawn[:length][:kept] + drawn[length:]
    lengths = [len(asked) + len(answer) for asked, answer in texts]
    sequences = batch(lengths)
    for row, (asked, answer) in enumerate(texts):
        sequences.tokens_BT[row, : lengths[row]] = torch.tensor(asked + answer)
        sequences.response_mask_BT[row, : len(asked)] = False
        sequences.response_mask_BT[row, len(asked) : lengths[row]] = True
    sequences = replace(sequences, tree_B=torch.zeros(len(texts), dtype=torch.int64))
    rules = Rules(cp=cp, tokens_multiple=cp, shares_prompts=True)
    check_predictions(packs(forked_workers, sequences, rules), sequences)


def test_where_padding_stays_each_slot_is_as_long_as_the_longest(
    forked_workers: ForkedWorkers,
) -> None:
    (pack,) = packs(forked_workers, batch([3, 5]), Rules(removes_padding=False, tokens_multiple=2))
    # Five tokens, and one more so that tensor-parallel ranks can halve each slot.
    assert pack.tokens_S.tolist() == [10, 11, 12, 0, 0, 0, 30, 31, 32, 33, 34, 0]
    assert pack.positions_S.tolist() == [0, 1, 2, 3, 4, 5] * 2
    assert pack.starts == (0, 6, 12)
    assert pack.predicting_N.tolist() == [1, 7, 8, 9]
    assert pack.targets_N.tolist() == [12, 32, 33, 34]
    assert pack.spread_BT.tolist() == [[0, 0, 1, 0, 0], [0, 0, 2, 3, 4]]


def test_two_context_parallel_ranks_have_the_outer_and_the_inner_pieces_of_each_slot(
    forked_workers: ForkedWorkers,
) -> None:
    outer, inner = packs(forked_workers, batch([8, 3]), Rules(cp=2, tokens_multiple=2))
    # Slots of 8 and 4: of four pieces the first and the last, the second and the third.
    assert outer.tokens_S.tolist() == [10, 11, 16, 17, 30, 0]
    assert inner.tokens_S.tolist() == [12, 13, 14, 15, 31, 32]
    assert outer.positions_S.tolist() == [0, 1, 6, 7, 0, 3]
    assert inner.positions_S.tolist() == [2, 3, 4, 5, 1, 2]
    # A token predicts the next one, which may lie on the other rank.
    assert outer.targets_N.tolist() == [12, 17]
    assert inner.targets_N.tolist() == [13, 14, 15, 16, 32]
    assert outer.gathered is not None
    assert outer.gathered.tolist() == [0, 1, 6, 7, 8, 11, 2, 3, 4, 5, 9, 10]
    assert outer.starts == inner.starts == (0, 8, 12)


def test_a_batch_that_asks_for_nothing_predicts_nothing(forked_workers: ForkedWorkers) -> None:
    for pack in packs(forked_workers, batch([4, 3], prompt=9), Rules(cp=2, tokens_multiple=4)):
        # Slots of 4 and 4, two tokens of each on each rank.
        assert len(pack.tokens_S) == 4
        assert len(pack.predicting_N) == len(pack.targets_N) == len(pack.places_N) == 0
        assert pack.spread_BT.shape == (2, 4)
        assert not pack.spread_BT.any()


rules_of_layouts = st.builds(
    lambda cp, tp, removes_padding: Rules(
        cp=cp, tokens_multiple=cp * tp, removes_padding=removes_padding
    ),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
)


# One zygote serves all examples; each forks a process of its own, which takes a tenth of a second.
@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 13), min_size=1, max_size=6),
    prompt=st.integers(1, 5),
    rules=rules_of_layouts,
)
def test_any_pack_holds_every_token_once_in_its_slot_and_predicts_every_response_token_once(
    forked_workers: ForkedWorkers, lengths: list[int], prompt: int, rules: Rules
) -> None:
    sequences = batch(lengths, prompt)
    ranks = packs(forked_workers, sequences, rules)
    starts = ranks[0].starts
    check_slots(starts, lengths, rules)
    for pack in ranks:
        slots = [stop - start for start, stop in pairwise(starts)]
        assert pack.starts == starts
        assert pack.cumulative == list(starts)
        assert pack.longest == max(slots)
        assert len(pack.tokens_S) * rules.cp == starts[-1]

    order = natural(ranks[0], starts[-1])
    laid_P = torch.cat([pack.tokens_S for pack in ranks])[order]
    positions_P = torch.cat([pack.positions_S for pack in ranks])[order]
    for row, (start, stop) in enumerate(pairwise(starts)):
        own = sequences.tokens_BT[row, : lengths[row]].tolist()
        assert laid_P[start:stop].tolist() == own + [0] * (stop - start - lengths[row])
        assert positions_P[start:stop].tolist() == list(range(stop - start))
    check_predictions(ranks, sequences)


def natural(pack: PackFacts, total: int) -> Tensor:
    """Return the order that lays the tokens of all ranks behind each other."""
    if pack.gathered is None or pack.natural is None:
        return torch.arange(total)
    assert torch.equal(pack.gathered[pack.natural], torch.arange(total))
    assert torch.equal(pack.natural[pack.gathered], torch.arange(total))
    return pack.natural


def check_slots(starts: tuple[int, ...], lengths: list[int], rules: Rules) -> None:
    """Assert that slots can be cut as the layout asks and are no longer than that needs."""
    slots = [stop - start for start, stop in pairwise(starts)]
    pieces = 1 if rules.cp == 1 else 2 * rules.cp
    whole = lcm(pieces, rules.tokens_multiple)
    assert starts[0] == 0
    assert len(slots) == len(lengths)
    assert sum(slots) % rules.tokens_multiple == 0
    assert all(slot % pieces == 0 for slot in slots)
    if rules.removes_padding:
        extra = [slot - length for slot, length in zip(slots, lengths, strict=True)]
        assert all(0 <= tokens < pieces for tokens in extra[:-1])
        # Only the last one makes the sum even.
        assert 0 <= extra[-1] < pieces + whole
    else:
        assert set(slots) == {-(-max(lengths) // whole) * whole}


def check_predictions(ranks: list[PackFacts], sequences: Sequences) -> None:
    """Assert that each response token is predicted on one rank, by the token before it."""
    flat = sequences.tokens_BT.flatten()
    places = torch.cat([pack.places_N for pack in ranks])
    asked = torch.nonzero(sequences.response_mask_BT.flatten())[:, 0]
    assert torch.equal(places.sort().values, asked)
    for pack in ranks:
        assert torch.equal(pack.targets_N, flat[pack.places_N])
        assert torch.equal(pack.tokens_S[pack.predicting_N], flat[pack.places_N - 1])
        column_N = pack.places_N % sequences.tokens_BT.size(1)
        assert torch.equal(pack.positions_S[pack.predicting_N], column_N - 1)
        counted = torch.arange(1.0, 1.0 + len(pack.places_N))
        assert torch.equal(pack.spread_BT.flatten()[pack.places_N], counted)
        assert pack.spread_BT.count_nonzero() == len(pack.places_N)
