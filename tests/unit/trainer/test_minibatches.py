"""How a step is cut into the mini-batches of the optimizer."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mindrl.algorithms.losses import LossInputs
from mindrl.algorithms.policy_loss import PolicyLoss
from mindrl.algorithms.token_loss import resolve_token_loss
from mindrl.batch.experience import CriticMinibatch, Experience, Minibatch, ValuedExperience
from mindrl.config.rl import RLConfig
from mindrl.trainer.minibatches import MinibatchDealer


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
        rollout_logprobs_BT=-row_BT.float(),
        group_B=torch.tensor(groups),
        finished_B=torch.ones(B, dtype=torch.bool),
        old_logprobs_BT=-row_BT.float(),
        advantages_BT=row_BT.float() * mask_BT,
        ref_logprobs_BT=-2.0 * row_BT if reference else None,
    )


def dealer(prompts: int, *, epochs: int = 1, seed: int | None = None) -> MinibatchDealer:
    """Deal by a seed; None keeps the order of the prompts."""
    rl = RLConfig(mini_batch_size=prompts, epochs=epochs, shuffle_mini_batch=seed is not None)
    return MinibatchDealer(rl, seed or 0, longest=4)


def cut(batch: Experience, of_a_run: MinibatchDealer) -> Iterator[Minibatch]:
    return of_a_run.cut(batch, of_a_run.deal(batch.group_B), Minibatch)


def rows_of(minibatches: Iterable[Minibatch]) -> list[list[int]]:
    return [minibatch.tokens_BT[:, 0].tolist() for minibatch in minibatches]


def test_rows_of_a_minibatch_carry_all_its_columns_and_keep_a_missing_reference_missing() -> None:
    (whole,) = cut(experience([0, 0, 1, 1]), dealer(2))
    part = whole.rows(slice(1, 3))
    assert isinstance(part, Minibatch)
    assert part.ref_logprobs_BT is None
    assert part.old_logprobs_BT[:, 0].tolist() == [-1.0, -2.0]
    # Weights were made over the whole update: a part holds a part of the 1.
    assert part.token_weights_BT.sum().item() == pytest.approx(
        whole.token_weights_BT[1:3].sum().item()
    )


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum"])
def test_responses_that_were_cut_are_as_if_they_were_not_there(aggregation: str) -> None:
    """Of six responses of 2, 3 and 4 tokens the second and the sixth were cut."""
    batch = experience([0, 0, 0, 1, 1, 1])
    batch = replace(batch, finished_B=torch.tensor([True, False, True, True, True, False]))
    rl = RLConfig(mini_batch_size=2, overlong_filter_enable=True, loss_aggregation=aggregation)
    (whole,) = cut(batch, MinibatchDealer(rl, 0, longest=4))
    kept = torch.tensor([0, 2, 3, 4])
    plain = replace(rl, overlong_filter_enable=False)
    (others,) = cut(batch.rows(kept), MinibatchDealer(plain, 0, longest=4))
    assert torch.equal(whole.token_weights_BT[kept], others.token_weights_BT)
    assert not whole.token_weights_BT[[1, 5]].any()
    # Their log-probs are still asked for: the mask is of what was drawn.
    assert torch.equal(whole.response_mask_BT, batch.response_mask_BT)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum"])
def test_metrics_of_an_update_are_means_over_its_tokens(aggregation: str) -> None:
    """In two micro-batches of responses of 2, 3 and 4 tokens, at most 10."""
    rl = RLConfig(mini_batch_size=2, loss_aggregation=aggregation)
    (whole,) = cut(experience([0, 0, 0, 1, 1, 1]), MinibatchDealer(rl, 0, longest=10))
    loss = PolicyLoss(tokens=resolve_token_loss(rl), kl_kind="k3", kl_coef=0.0, entropy_coef=1.0)
    sums = dict.fromkeys(("loss", "policy_loss", "entropy", "ratio"), 0.0)
    for part in (whole.rows(slice(2)), whole.rows(slice(2, 6))):
        outputs = (part.old_logprobs_BT, torch.full(part.tokens_BT.shape, 0.5))
        found = loss(LossInputs.of(outputs, part, torch.ones(part.tokens_BT.shape)))
        for name, value in (found.metrics | {"loss": found.loss}).items():
            sums[name] = sums.get(name, 0.0) + value.item()
    assert (sums["entropy"], sums["ratio"]) == pytest.approx((0.5, 1.0), rel=1e-6)
    # The loss keeps its weights: 18 tokens of at most 60.
    weight = 0.3 if aggregation == "sequence_sum" else 1.0
    policy_loss = -(whole.token_weights_BT * whole.advantages_BT).sum().item()
    assert sums["policy_loss"] == pytest.approx(policy_loss, rel=1e-6)
    assert sums["loss"] == pytest.approx(policy_loss - 0.5 * weight, rel=1e-6)
    assert (whole.weight_sum_B is None) == (aggregation != "sequence_sum")


@pytest.mark.parametrize("policy_loss", ["kl_cov", "clip_cov"])
def test_a_loss_selects_none_of_the_tokens_that_were_cut(policy_loss: str) -> None:
    """Of three responses the last was cut; all tokens are asked for."""
    batch = replace(experience([0, 0, 0]), finished_B=torch.tensor([True, True, False]))
    picks = {"kl_cov_ratio": 1.0, "clip_cov_ratio": 1.0, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0}
    rl = RLConfig(mini_batch_size=1, overlong_filter_enable=True, policy_loss=policy_loss, **picks)
    selection = resolve_token_loss(rl).selection
    (whole,) = cut(batch, MinibatchDealer(rl, 0, longest=4, selection=selection))
    assert whole.picked_BT is not None
    assert torch.equal(whole.picked_BT, whole.token_weights_BT > 0)


def test_an_update_whose_responses_were_all_cut_has_no_loss() -> None:
    batch = replace(experience([0, 0]), finished_B=torch.zeros(2, dtype=torch.bool))
    rl = RLConfig(mini_batch_size=1, overlong_filter_enable=True, loss_aggregation="sequence_sum")
    (whole,) = cut(batch, MinibatchDealer(rl, 0, longest=4))
    assert not whole.token_weights_BT.any()
    assert whole.weight_sum_B is None


def test_without_a_generator_prompts_come_in_order_in_every_epoch() -> None:
    minibatches = cut(experience([0, 0, 1, 1, 2, 2, 3, 3]), dealer(2, epochs=2))
    assert rows_of(minibatches) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


def test_sequences_of_one_prompt_stay_together_though_they_lie_apart() -> None:
    minibatches = cut(experience([0, 1, 2, 0, 1, 2]), dealer(1))
    assert rows_of(minibatches) == [[0, 3], [1, 4], [2, 5]]


def test_a_generator_deals_anew_in_each_epoch_and_the_same_for_the_same_seed() -> None:
    batch = experience([prompt for prompt in range(8) for _ in range(2)])

    def dealt(seed: int) -> list[list[int]]:
        return rows_of(cut(batch, dealer(4, epochs=2, seed=seed)))

    first = dealt(3)
    assert first == dealt(3)
    assert first != dealt(4)
    assert first[:2] != first[2:]
    # The next step goes on with the same generator: it is dealt differently too.
    of_a_run = dealer(4, seed=3)
    steps = [rows_of(cut(batch, of_a_run)) for _ in range(2)]
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
    batch = experience(groups)
    dealt = rows_of(cut(batch, dealer(prompts, epochs=epochs, seed=seed)))

    per_epoch = -(-len(set(groups)) // prompts)
    assert len(dealt) == per_epoch * epochs
    for epoch in range(epochs):
        rows = dealt[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(row for minibatch in rows for row in minibatch) == list(range(len(groups)))
        owners = [{groups[row] for row in minibatch} for minibatch in rows]
        assert sum(map(len, owners)) == len(set(groups))
        assert max(map(len, owners)) <= prompts


@pytest.mark.parametrize("token_level_loss", [True, False])
def test_the_weights_of_every_update_sum_to_1_and_are_0_outside_the_response(
    token_level_loss: bool,
) -> None:
    of_a_run = MinibatchDealer(
        RLConfig(mini_batch_size=2, token_level_loss=token_level_loss), 0, longest=4
    )
    minibatches = list(cut(experience([0, 0, 0, 1, 1, 2, 2, 2]), of_a_run))
    assert [len(minibatch) for minibatch in minibatches] == [5, 3]
    for minibatch in minibatches:
        assert minibatch.token_weights_BT.sum().item() == pytest.approx(1.0, abs=1e-6)
        assert not minibatch.token_weights_BT[~minibatch.response_mask_BT].any()
        each_B = minibatch.token_weights_BT.sum(dim=1)
        assert torch.allclose(each_B, each_B[:1]) is not token_level_loss


def test_every_column_of_a_minibatch_comes_from_the_same_row() -> None:
    batch = experience([0, 1, 2, 0, 1, 2], reference=True)
    for minibatch in cut(batch, dealer(2, seed=0)):
        row_B = minibatch.tokens_BT[:, 0]
        assert minibatch.ref_logprobs_BT is not None
        assert torch.equal(minibatch.lengths_B, row_B % 3 + 3)
        assert torch.equal(minibatch.old_logprobs_BT[:, 0], -row_B.float())
        assert torch.equal(minibatch.advantages_BT[:, 1], row_B.float())
        assert torch.equal(minibatch.ref_logprobs_BT[:, 0], -2.0 * row_B)
        assert torch.equal(minibatch.response_mask_BT.sum(1), minibatch.lengths_B - 1)


def test_the_engines_log_probs_go_to_the_workers_only_where_a_loss_corrects_for_it() -> None:
    batch, rl = experience([0, 0]), RLConfig(mini_batch_size=1)
    (plain,) = cut(batch, MinibatchDealer(rl, 0, longest=4))
    (corrected,) = cut(batch, MinibatchDealer(rl, 0, longest=4, corrects=True))
    assert plain.rollout_logprobs_BT is None
    assert torch.equal(corrected.rollout_logprobs_BT, batch.rollout_logprobs_BT[:, :4])


def valued(groups: list[int]) -> ValuedExperience:
    """Make an experience whose value and return at each token name its row."""
    plain = experience(groups)
    row_BT = plain.tokens_BT.float()
    return plain.into(ValuedExperience, old_values_BT=row_BT, returns_BT=row_BT + 0.5)


def test_critic_and_actor_are_cut_alike_where_they_share_what_was_dealt() -> None:
    batch = valued([0, 1, 2, 0, 1, 2])
    dealt_by = dealer(2, epochs=2, seed=0)
    dealt = dealt_by.deal(batch.group_B)
    actors = list(dealt_by.cut(batch, dealt, Minibatch))
    critics = list(dealt_by.cut(batch, dealt, CriticMinibatch))
    assert [len(rows) for rows in dealt] == [4, 2, 4, 2]
    for rows, actor, critic in zip(dealt, actors, critics, strict=True):
        assert actor.tokens_BT[:, 0].tolist() == critic.tokens_BT[:, 0].tolist() == rows.tolist()
        assert torch.equal(critic.old_values_BT[:, 0], rows.float())
        assert torch.equal(critic.returns_BT[:, 0], rows + 0.5)
        assert torch.equal(critic.token_weights_BT, actor.token_weights_BT)
        assert critic.token_weights_BT.sum().item() == pytest.approx(1.0, abs=1e-6)
