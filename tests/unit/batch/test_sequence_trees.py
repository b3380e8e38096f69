"""Which tokens of which sequences stand once: samples of a prompt, and turns of conversations."""

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrl.batch.sequence_trees import SequenceTree, Slot, sequence_trees, slots_of
from mindrl.batch.sequences import Sequences

ASKED = "What is the sum?"
"""A prompt of 16 letters."""


def rows_of(texts: Sequence[tuple[str, str]], trees: Sequence[int] | None = None) -> Sequences:
    """Return prompts and answers with a token for each letter; by default all are of one tree."""
    rows = [prompt + answer for prompt, answer in texts]
    width = max(map(len, rows))
    first_B = torch.tensor([len(prompt) for prompt, _ in texts])
    lengths_B, position_T = torch.tensor([*map(len, rows)]), torch.arange(width)
    return Sequences(
        tokens_BT=torch.tensor([[*map(ord, row.ljust(width, "\0"))] for row in rows]),
        lengths_B=lengths_B,
        response_mask_BT=(position_T >= first_B[:, None]) & (position_T < lengths_B[:, None]),
        tree_B=torch.tensor([0] * len(rows) if trees is None else trees),
    )


def test_the_next_prompt_of_a_conversation_has_the_tokens_of_the_turn_before() -> None:
    answer, next_prompt = "It is five, I think.", f"{ASKED}It is five, I think. And then of it?"
    batch = rows_of([(ASKED, answer), (next_prompt, "Six."), (next_prompt + "Six.", "Ten.")])
    expected = [Slot(0, 0, 36), Slot(1, 36, 56, 0), Slot(2, 56, 60, 1)]
    assert slots_of(batch, shares_prompts=True) == expected
    # A later turn takes the tokens of an earlier one in any order of the batch.
    turned = batch.rows(torch.tensor([2, 1, 0]))
    expected = [Slot(2, 0, 36), Slot(1, 36, 56, 0), Slot(0, 56, 60, 1)]
    assert slots_of(turned, shares_prompts=True) == expected


def test_a_prompt_that_leaves_out_a_thought_forks_before_it() -> None:
    texts = [
        (ASKED, "<think>Two and three</think>Five."),
        (f"{ASKED}Five.And with one more, or two?", "<think>So five</think>Six."),
        (ASKED, "<think>No idea</think>Five."),
        (f"{ASKED}Five.And with one more, or two?Six.Really, is it that much?", "Yes."),
    ]
    assert slots_of(rows_of(texts), shares_prompts=True) == [
        Slot(0, 0, 16),
        Slot(0, 16, 49, 0),
        Slot(2, 16, 43, 0),
        Slot(1, 16, 47, 0),
        Slot(1, 47, 73, 3),
        Slot(3, 47, 79, 3),
    ]
    (tree,) = sequence_trees(rows_of(texts), shares_prompts=True)
    assert tree == SequenceTree((0, 2, 1, 3), (0, 16, 16, 47))
    lengths = [49, 73, 43, 79]
    assert tree.tokens(lengths) == 49 + 27 + 57 + 32
    # A half whose first sequence knows nothing yet.
    assert tree.halves() == [SequenceTree((0, 2), (0, 16)), SequenceTree((1, 3), (0, 47))]


def test_a_prompt_may_fork_inside_a_response_of_any_sample() -> None:
    thought = "Let me add up these numbers: two and three"
    texts = [(ASKED, "Five, it is."), (ASKED, thought + " make five."), (ASKED + thought, "!")]
    assert slots_of(rows_of(texts), shares_prompts=True) == [
        Slot(0, 0, 16),
        Slot(0, 16, 28, 0),
        Slot(1, 16, 58, 0),
        Slot(1, 58, 69, 2),
        Slot(2, 58, 59, 2),
    ]


def test_a_few_equal_letters_after_a_fork_are_not_worth_a_slot() -> None:
    texts = [(ASKED, "No."), (f"{ASKED}Sum: 1? No!", "2"), (f"{ASKED}Sum: 1? Try!", "3")]
    first, *rest = slots_of(rows_of(texts), shares_prompts=True)
    assert first == Slot(0, 0, 16)
    assert rest == [Slot(0, 16, 19, 0), Slot(1, 16, 28, 0), Slot(2, 16, 29, 0)]


def test_other_trees_share_nothing_and_without_trees_only_equal_prompts_are_shared() -> None:
    texts = [(ASKED, "Five."), (f"{ASKED}Five. And then?", "Six."), (ASKED, "Four.")]
    apart = rows_of(texts, [0, 1, 0])
    shared = [Slot(0, 0, 16), Slot(0, 16, 21, 0), Slot(2, 16, 21, 0), Slot(1, 0, 35)]
    assert slots_of(apart, shares_prompts=True) == shared
    of_prompts = Sequences(
        tokens_BT=apart.tokens_BT,
        lengths_B=apart.lengths_B,
        response_mask_BT=apart.response_mask_BT,
    )
    assert slots_of(of_prompts, shares_prompts=True) == shared
    alone = [Slot(row, 0, length) for row, length in enumerate(apart.lengths_B.tolist())]
    assert slots_of(apart, shares_prompts=False) == alone


words = st.text("ab", min_size=1, max_size=24)
turns = st.lists(st.tuples(words, st.integers(0, 24), words), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    prompt=words,
    conversations=st.lists(turns, min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_slots_of_any_conversations_hold_each_sequence_and_its_requested_tokens_alone(
    prompt: str, conversations: list[list[tuple[str, int, str]]], order: object
) -> None:
    texts = []
    for conversation in conversations:
        asked = prompt
        for answer, kept, then in conversation:
            texts.append((asked, answer))
            asked += answer[:kept] + then
    order.shuffle(texts)  # type: ignore[attr-defined]
    batch = rows_of(texts)
    slots = slots_of(batch, shares_prompts=True)
    ends = {slot.row: at for at, slot in enumerate(slots)}
    for row, (asked, answer) in enumerate(texts):
        at: int | None = ends[row]
        found, owned = list[int](), 0
        while at is not None:
            slot = slots[at]
            assert slot.length > 0
            assert slot.parent is None or slots[slot.parent].stop == slot.first
            found = batch.tokens_BT[slot.row, slot.first : slot.stop].tolist() + found
            owned += slot.length if slot.row == row else 0
            at = slot.parent
        assert found == [*map(ord, asked + answer)]
        assert owned >= len(answer)
    trees = sequence_trees(batch, shares_prompts=True)
    lengths = batch.lengths_B.tolist()
    tokens = sum(tree.tokens(lengths) for tree in trees)
    assert tokens == sum(slot.length for slot in slots)
