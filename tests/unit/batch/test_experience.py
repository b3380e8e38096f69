"""How a step is cut: rows, micro-batches, shards, and the mini-batches of the optimizer."""

from collections.abc import Iterator
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrl.algorithms.token_weights import sequence_mean_weights, token_mean_weights
from mindrl.batch.experience import (
    Experience,
    Minibatch,
    MinibatchPlan,
    Sequences,
    ValuedExperience,
)

LENGTHS = (3, 6, 4, 2)


def sequences() -> Sequences:
    """Make rows of 3, 6, 4 and 2 tokens; token t of row b is 10 b + t."""
    B, T = len(LENGTHS), max(LENGTHS)
    lengths_B = torch.tensor(LENGTHS)
    inside_BT = torch.arange(T) < lengths_B[:, None]
    tokens_BT = (10 * torch.arange(B)[:, None] + torch.arange(T)) * inside_BT
    return Sequences(
        tokens_BT=tokens_BT,
        lengths_B=lengths_B,
        response_mask_BT=inside_BT & (torch.arange(T) >= 1),
    )


def experience(groups: list[int], *, reference: bool = False) -> Experience:
    """Make one sequence per entry; its first token, advantage and log-prob name its row."""
    B, T = len(groups), 5
    lengths_B = torch.arange(B) % 3 + 3
    mask_BT = (torch.arange(T) >= 1) & (torch.arange(T) < lengths_B[:, None])
    row_BT = torch.arange(B)[:, None].expand(B, T).contiguous()
    return Experience(
        tokens_BT=row_BT,
        lengths_B=lengths_B,
        response_mask_BT=mask_BT,
        group_B=torch.tensor(groups),
        old_logprobs_BT=-row_BT.float(),
        advantages_BT=row_BT.float() * mask_BT,
        ref_logprobs_BT=-2.0 * row_BT if reference else None,
    )


def plan(
    prompts: int, *, epochs: int = 1, generator: torch.Generator | None = None
) -> MinibatchPlan:
    return MinibatchPlan(
        prompts_per_update=prompts,
        epochs=epochs,
        token_weights=token_mean_weights,
        generator=generator,
    )


def rows_of(minibatches: Iterator[Minibatch]) -> list[list[int]]:
    return [minibatch.tokens_BT[:, 0].tolist() for minibatch in minibatches]


def test_rows_come_in_the_order_asked_for_cut_to_the_longest_of_them() -> None:
    part = sequences().rows(torch.tensor([2, 0]))
    assert part.tokens_BT.tolist() == [[20, 21, 22, 23], [0, 1, 2, 0]]
    assert part.lengths_B.tolist() == [4, 3]
    assert part.response_mask_BT.int().tolist() == [[0, 1, 1, 1], [0, 1, 1, 0]]
    assert part.tokens_BT.is_contiguous()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_shards_are_equal_in_number_and_joined_they_are_the_whole(count: int) -> None:
    shards = [sequences().shard(index, count) for index in range(count)]
    assert {len(shard) for shard in shards} == {4 // count}
    first_tokens = torch.cat([shard.tokens_BT[:, 0] for shard in shards])
    assert first_tokens.tolist() == [0, 10, 20, 30]
    assert [shard.tokens_BT.size(1) for shard in shards] == {
        1: [6],
        2: [6, 4],
        4: [3, 6, 4, 2],
    }[count]


def test_a_shard_count_that_does_not_divide_the_batch_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="divides over its replicas"):
        sequences().shard(0, 3)


def test_rows_of_a_minibatch_carry_all_its_columns_and_keep_a_missing_reference_missing() -> None:
    (whole,) = experience([0, 0, 1, 1]).minibatches(plan(2))
    part = whole.rows(slice(1, 3))
    assert isinstance(part, Minibatch)
    assert part.ref_logprobs_BT is None
    assert part.old_logprobs_BT[:, 0].tolist() == [-1.0, -2.0]
    # Weights were made over the whole update: a part holds a part of the 1.
    assert part.token_weights_BT.sum().item() == pytest.approx(
        whole.token_weights_BT[1:3].sum().item()
    )


def test_without_a_generator_prompts_come_in_order_in_every_epoch() -> None:
    minibatches = experience([0, 0, 1, 1, 2, 2, 3, 3]).minibatches(plan(2, epochs=2))
    assert rows_of(minibatches) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


def test_sequences_of_one_prompt_stay_together_though_they_lie_apart() -> None:
    minibatches = experience([0, 1, 2, 0, 1, 2]).minibatches(plan(1))
    assert rows_of(minibatches) == [[0, 3], [1, 4], [2, 5]]


def test_a_generator_deals_anew_in_each_epoch_and_the_same_for_the_same_seed() -> None:
    batch = experience([prompt for prompt in range(8) for _ in range(2)])

    def dealt(seed: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        return rows_of(batch.minibatches(plan(4, epochs=2, generator=generator)))

    first = dealt(3)
    assert first == dealt(3)
    assert first != dealt(4)
    assert first[:2] != first[2:]
    # The next step goes on with the same generator: it is dealt differently too.
    generator = torch.Generator().manual_seed(3)
    steps = [rows_of(batch.minibatches(plan(4, generator=generator))) for _ in range(2)]
    assert steps[0] != steps[1]


@settings(deadline=None)
@given(
    groups=st.lists(st.integers(0, 5), min_size=1, max_size=16),
    prompts=st.integers(1, 6),
    epochs=st.integers(1, 3),
    seed=st.none() | st.integers(0, 99),
)
def test_each_epoch_covers_each_row_once_and_never_cuts_a_group(
    groups: list[int], prompts: int, epochs: int, seed: int | None
) -> None:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    batch = experience(groups)
    dealt = rows_of(batch.minibatches(plan(prompts, epochs=epochs, generator=generator)))

    per_epoch = -(-len(set(groups)) // prompts)
    assert len(dealt) == per_epoch * epochs
    for epoch in range(epochs):
        rows = dealt[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(row for minibatch in rows for row in minibatch) == list(range(len(groups)))
        owners = [{groups[row] for row in minibatch} for minibatch in rows]
        assert sum(map(len, owners)) == len(set(groups))
        assert max(map(len, owners)) <= prompts


@pytest.mark.parametrize("weights", [token_mean_weights, sequence_mean_weights])
def test_the_weights_of_every_update_sum_to_1_and_are_0_outside_the_response(
    weights: object,
) -> None:
    assert callable(weights)
    dealt = MinibatchPlan(prompts_per_update=2, epochs=1, token_weights=weights, generator=None)
    minibatches = list(experience([0, 0, 0, 1, 1, 2, 2, 2]).minibatches(dealt))
    assert [len(minibatch) for minibatch in minibatches] == [5, 3]
    for minibatch in minibatches:
        assert minibatch.token_weights_BT.sum().item() == pytest.approx(1.0, abs=1e-6)
        assert not minibatch.token_weights_BT[~minibatch.response_mask_BT].any()


def test_every_column_of_a_minibatch_comes_from_the_same_row() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = experience([0, 1, 2, 0, 1, 2], reference=True)
    for minibatch in batch.minibatches(plan(2, generator=generator)):
        row_B = minibatch.tokens_BT[:, 0]
        assert minibatch.ref_logprobs_BT is not None
        assert torch.equal(minibatch.lengths_B, row_B % 3 + 3)
        assert torch.equal(minibatch.old_logprobs_BT[:, 0], -row_B.float())
        assert torch.equal(minibatch.advantages_BT[:, 1], row_B.float())
        assert torch.equal(minibatch.ref_logprobs_BT[:, 0], -2.0 * row_B)
        assert torch.equal(minibatch.response_mask_BT.sum(1), minibatch.lengths_B - 1)


def valued(groups: list[int]) -> ValuedExperience:
    """Make an experience whose value and return at each token name its row."""
    plain = experience(groups)
    row_BT = plain.tokens_BT.float()
    columns = {field.name: getattr(plain, field.name) for field in fields(plain)}
    return ValuedExperience(**columns, old_values_BT=row_BT, returns_BT=row_BT + 0.5)


def test_critic_and_actor_are_cut_alike_where_they_share_what_was_dealt() -> None:
    batch = valued([0, 1, 2, 0, 1, 2])
    dealt_by = plan(2, epochs=2, generator=torch.Generator().manual_seed(0))
    dealt = dealt_by.deal(batch.group_B)
    actors = list(batch.minibatches(dealt_by, dealt))
    critics = list(batch.critic_minibatches(dealt_by, dealt))
    assert [len(rows) for rows in dealt] == [4, 2, 4, 2]
    for rows, actor, critic in zip(dealt, actors, critics, strict=True):
        assert actor.tokens_BT[:, 0].tolist() == critic.tokens_BT[:, 0].tolist() == rows.tolist()
        assert torch.equal(critic.old_values_BT[:, 0], rows.float())
        assert torch.equal(critic.returns_BT[:, 0], rows + 0.5)
        assert torch.equal(critic.token_weights_BT, actor.token_weights_BT)
        assert critic.token_weights_BT.sum().item() == pytest.approx(1.0, abs=1e-6)
