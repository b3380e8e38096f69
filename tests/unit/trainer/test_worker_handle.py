"""How whole batches are dealt to replicas and joined again; the workers are recorded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checked_runs import DEVICES, TRAIN_TP, MakeConfig, model_folder, overrides
from recording_groups import SAMPLING, RecordingGroup, dealing_actor

from mindrl.batch.experience import CriticMinibatch
from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Responses
from mindrl.batch.sequences import Sequences
from mindrl.config.layout_keys import Role
from mindrl.launch.parts import worker_handle
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.preflight.run_shardings import unordered_shardings
from mindrl.trainer.engines import ColocatedEngines
from mindrl.trainer.worker_handle import WorkerHandle


def prompt(uid: int) -> Prompt:
    return Prompt(uid=uid, token_ids=(5, uid), text="", answer="")


def test_both_ranks_of_a_replica_get_the_same_share_and_replicas_get_halves() -> None:
    group = RecordingGroup()
    actor = dealing_actor(group, train=1, rollout=2)

    rollouts = actor.generate_sequences([prompt(1), prompt(2)], SAMPLING, step=1)

    (shares,) = group.given
    # The same objects, which travel once for both.
    assert shares[0] is shares[1]
    assert shares[2] is shares[3]
    # One rank of a replica answers for it.
    assert group.asked == [(0, 2)]
    assert [list(shares[rank][0]) for rank in (0, 2)] == [[(5, 1)] * 3, [(5, 2)] * 3]
    assert rollouts.group_B.tolist() == [0, 0, 0, 1, 1, 1]


class Echo(RecordingGroup):
    """Ranks that answer with the last token of the prompt."""

    def answers(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        assert method == "generate_sequences"
        each = [[[token_ids[-1]] for token_ids in prompts] for prompts, _, _ in arguments]
        return [Responses.of(ids, [[-1.0]] * len(ids), [True] * len(ids)) for ids in each]


def test_responses_of_prompts_that_were_dealt_in_turn_are_in_the_order_of_the_prompts() -> None:
    actor = dealing_actor(Echo(), train=1, rollout=2)
    rollouts = actor.generate_sequences([*map(prompt, range(4))], SAMPLING, step=1)
    assert rollouts.tokens_BT[:, -1].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert rollouts.group_B.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_prompt_that_a_step_holds_twice_is_sampled_with_six_different_seeds() -> None:
    group = RecordingGroup()
    actor = dealing_actor(group, train=1, rollout=4)

    actor.generate_sequences([prompt(1), prompt(1)], SAMPLING, step=1)

    (shares,) = group.given
    assert len(set(shares[0][2])) == 6


def test_a_prompt_that_a_step_has_answered_before_goes_on_with_seeds_of_its_own() -> None:
    """Prompt 1 is the second of three, then the first of two."""
    group = RecordingGroup()
    actor = dealing_actor(group, train=1, rollout=4)
    first, second = [prompt(2), prompt(1), prompt(3)], [prompt(1), prompt(4)]
    actor.generate_sequences(first, SAMPLING, step=1)
    actor.generate_sequences(second, SAMPLING, step=1, answered=first)
    actor.generate_sequences([*first, *second], SAMPLING, step=1)
    earlier, later, together = (shares[0][2] for shares in group.given)
    assert [*earlier, *later] == together
    assert len({*together}) == 15


def test_log_probs_come_back_in_order_and_as_wide_as_the_batch() -> None:
    group = RecordingGroup()
    actor = dealing_actor(group, train=2, rollout=1)
    tokens_BT = torch.tensor([[1, 2, 0, 0], [3, 4, 0, 0], [5, 6, 7, 8], [9, 1, 2, 0]])
    mask_BT = torch.tensor([[0, 1, 0, 0], [0, 1, 0, 0], [0, 1, 1, 1], [0, 1, 1, 0]]).bool()
    sequences = Sequences(
        tokens_BT=tokens_BT, lengths_B=torch.tensor([2, 2, 4, 3]), response_mask_BT=mask_BT
    )

    scored = actor.compute_log_prob(sequences)

    # The first replica's share was cut to its longest sequence, 2 tokens, and padded again.
    assert group.given[0][0][0].tokens_BT.shape == (2, 2)
    assert torch.equal(scored.logprobs_BT, tokens_BT.float())


def test_by_cost_the_longest_sequence_is_alone_and_log_probs_still_come_back_in_order() -> None:
    group = RecordingGroup()
    actor = WorkerHandle(
        group,
        {"actor": TrainLayout(dp=2, pp=2)},
        ColocatedEngines(group, RolloutLayout(dp=4)),
        seed=1,
        engine_rows=8,
        costs=lambda lengths: [float(length) for length in lengths],
    )
    tokens_BT = torch.arange(1, 25).view(4, 6)
    lengths_B = torch.tensor([2, 1, 6, 2])
    tokens_BT = tokens_BT * (torch.arange(6) < lengths_B[:, None])
    sequences = Sequences(tokens_BT=tokens_BT, lengths_B=lengths_B, response_mask_BT=tokens_BT > 30)

    scored = actor.compute_log_prob(sequences)

    shares = [part.lengths_B.tolist() for (part,) in group.given[0]]
    assert sorted(shares) == [[2, 1, 2], [2, 1, 2], [6], [6]]
    # Both stages of a replica get the same.
    assert (shares[0], shares[1]) == (shares[2], shares[3])
    assert torch.equal(scored.logprobs_BT, tokens_BT.float())


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_replica_without_a_sequence_of_its_own_updates_with_one_of_no_weight(
    is_begun: bool,
) -> None:
    """Failed conversations may leave fewer sequences than replicas."""
    group = RecordingGroup()
    actor = WorkerHandle(
        group,
        {"critic": TrainLayout(dp=4)},
        ColocatedEngines(group, RolloutLayout(dp=4)),
        seed=1,
        engine_rows=8,
        costs=lambda lengths: [float(length) for length in lengths],
    )
    tokens_BT = torch.tensor([[1, 2, 3], [4, 5, 0], [6, 7, 0]])
    mask_BT = torch.tensor([[0, 1, 1], [0, 1, 0], [0, 1, 0]]).bool()
    weights_BT = mask_BT / mask_BT.sum()
    minibatch = CriticMinibatch(
        tokens_BT=tokens_BT,
        lengths_B=torch.tensor([3, 2, 2]),
        response_mask_BT=mask_BT,
        token_weights_BT=weights_BT,
        old_values_BT=weights_BT,
        returns_BT=weights_BT,
    )
    if is_begun:
        actor.begin("update_critic", "critic", [minibatch])
    actor.update_critic(minibatch)
    parts = [part for (part,) in group.given[0]]
    assert [len(part) for part in parts] == [1] * 4
    assert sum(float(part.token_weights_BT.sum()) for part in parts) == pytest.approx(1.0)
    assert sum(not part.token_weights_BT.any() for part in parts) == 1


def four_sequences() -> Sequences:
    tokens_BT = torch.tensor([[1, 2, 0, 0], [3, 4, 0, 0], [5, 6, 7, 8], [9, 1, 2, 0]])
    return Sequences(
        tokens_BT=tokens_BT, lengths_B=torch.tensor([2, 2, 4, 3]), response_mask_BT=tokens_BT > 0
    )


MIXED: dict[Role, TrainLayout] = {
    "actor": TrainLayout(tp=2, dp=2),
    "ref": TrainLayout(tp=4),
    "critic": TrainLayout(dp=4),
    "reward": TrainLayout(pp=2, dp=2),
}
"""A role on each of the ways to cut four ranks."""


def critic_minibatch() -> CriticMinibatch:
    sequences = four_sequences()
    ones_BT = torch.ones(4, 4)
    return CriticMinibatch(
        tokens_BT=sequences.tokens_BT,
        lengths_B=sequences.lengths_B,
        response_mask_BT=sequences.response_mask_BT,
        old_values_BT=ones_BT,
        returns_BT=ones_BT,
        token_weights_BT=ones_BT,
    )


def test_each_role_is_dealt_by_its_own_layout_and_answers_in_order() -> None:
    group = RecordingGroup()
    actor = WorkerHandle(
        group, MIXED, ColocatedEngines(group, RolloutLayout(dp=4)), seed=1, engine_rows=8
    )
    sequences = four_sequences()

    scored = actor.compute_ref_log_prob(sequences)
    values = actor.compute_values(sequences)
    rewards = actor.compute_rewards(sequences)

    dealt = [[part.lengths_B.tolist() for (part,) in arguments] for arguments in group.given]
    assert dealt == [
        [[2, 2, 4, 3]] * 4,
        [[2], [2], [4], [3]],
        [[2, 2], [4, 3], [2, 2], [4, 3]],
    ]
    assert torch.equal(scored.logprobs_BT, sequences.tokens_BT.float())
    assert torch.equal(values.values_BT, sequences.tokens_BT / 2)
    assert rewards.rewards_B.tolist() == [3, 7, 26, 12]


def test_replicas_of_a_model_that_shares_no_prompts_get_equal_numbers_of_all_tokens(
    tmp_path: Path, run_config: MakeConfig
) -> None:
    """Answers of one token: four to a prompt of 8, and one each to prompts of 17 and 35."""
    judge, model = model_folder(tmp_path / "judge", labels=1), model_folder(tmp_path / "model")
    asked = {DEVICES: 4, TRAIN_TP: 2, "reward_config.load": str(judge)}
    asked |= {"rl_config.use_dynamic_bsz": True, "rl_config.share_prompts": True}
    plan = unordered_shardings(run_config(model, overrides(tmp_path) | asked)).plan
    group = RecordingGroup()
    workers = worker_handle(group, plan)
    assert workers.shares_prompts == {"actor"}
    workers = replace(workers, costs=lambda lengths: [float(length) for length in lengths])
    firsts, lengths_B = [1, 1, 1, 1, 2, 3], torch.tensor([9, 9, 9, 9, 18, 36])
    places_BT = torch.arange(36) + torch.tensor([100 * first for first in firsts])[:, None]
    tokens_BT = places_BT * (torch.arange(36) < lengths_B[:, None])
    mask_BT = torch.arange(36) == lengths_B[:, None] - 1
    batch = Sequences(tokens_BT=tokens_BT, lengths_B=lengths_B, response_mask_BT=mask_BT)

    workers.compute_log_prob(batch)
    workers.compute_rewards(batch)

    dealt = [[part.lengths_B.tolist() for (part,) in given[::2]] for given in group.given]
    # The four have 12 tokens together, and 9 each alone.
    assert [sorted(each) for each in dealt] == [
        [[9, 9, 9, 9, 18], [36]],
        [[9, 9, 9, 18], [9, 36]],
    ]


def test_a_batch_that_does_not_divide_over_the_replicas_is_filled_and_cut_again() -> None:
    group = RecordingGroup()
    actor = WorkerHandle(
        group, MIXED, ColocatedEngines(group, RolloutLayout(dp=4)), seed=1, engine_rows=8
    )

    rewards = actor.compute_rewards(four_sequences().rows(torch.arange(3)))

    (arguments,) = group.given
    assert [part.lengths_B.tolist() for (part,) in arguments] == [[2, 2], [4, 2]] * 2
    assert rewards.rewards_B.tolist() == [3, 7, 26]


def test_an_update_of_the_critic_goes_to_its_replicas_and_the_first_leader_answers() -> None:
    group = RecordingGroup()
    actor = WorkerHandle(
        group, MIXED, ColocatedEngines(group, RolloutLayout(dp=4)), seed=1, engine_rows=8
    )

    assert actor.update_critic(critic_minibatch()) == {"rank": 0.0}

    shares = [part for (part,) in group.given[0]]
    assert [share.lengths_B.tolist() for share in shares] == [[2], [2], [4], [3]]
    assert [share.token_weights_BT.sum().item() for share in shares] == [2, 2, 4, 3]


def test_the_leader_of_a_pipelined_critic_is_on_its_last_stage() -> None:
    layouts = MIXED | {"critic": TrainLayout(pp=2, dp=2)}
    group = RecordingGroup()
    engines = ColocatedEngines(group, RolloutLayout(dp=4))
    actor = WorkerHandle(group, layouts, engines, seed=1, engine_rows=8)
    assert actor.update_critic(critic_minibatch()) == {"rank": 2.0}


def test_bad_numbers_are_counted_by_worker_and_seconds_are_those_of_the_slowest() -> None:
    assert dealing_actor(RecordingGroup(), train=1, rollout=1).flush_metrics() == {
        "seconds/swap": 3.0,
        "seconds/generate": 8.0,
        "throughput/idle_min": 0.0,
        "throughput/idle_mean": 0.5625,
        "throughput/idle_max": 0.75,
        "throughput/idle_worst_worker": 3.0,
        "nonfinite/worker_2/ref_logprobs": 3.0,
    }


def test_a_role_is_asked_on_its_own_ranks_and_what_was_begun_ahead_is_asked_for_once() -> None:
    group = RecordingGroup()
    layouts: dict[Role, TrainLayout] = {
        "actor": TrainLayout(tp=2),
        "critic": TrainLayout(dp=2, first_rank=2),
        "ref": TrainLayout(dp=4),
    }
    engines = ColocatedEngines(group, RolloutLayout(dp=4))
    actor = WorkerHandle(group, layouts, engines, seed=1, engine_rows=8)
    batch = four_sequences()
    actor.begin("compute_ref_log_prob", "ref", [batch])
    actor.begin("compute_values", "critic", [batch])
    assert group.firsts == [0, 2]
    assert [len(each) for each in group.given] == [4, 2]
    values = actor.compute_values(batch).values_BT
    assert torch.equal(values, batch.tokens_BT / 2)
    assert torch.equal(actor.compute_ref_log_prob(batch).logprobs_BT, batch.tokens_BT.float())
    assert len(group.given) == 2
    actor.compute_values(batch)
    actor.compute_log_prob(batch)
    assert group.firsts == [0, 2, 2, 0]
    assert [len(part) for (part,) in group.given[2]] == [2, 2]
    # Both ranks of the actor have all.
    assert [len(part) for (part,) in group.given[3]] == [4, 4]


class _SilentGroup(RecordingGroup):
    def answers(self, _: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [None] * len(arguments)


def test_an_export_is_kept_by_the_first_rank_of_its_role_which_wrote_it() -> None:
    group = _SilentGroup()
    layouts: dict[Role, TrainLayout] = {
        "actor": TrainLayout(tp=2),
        "critic": TrainLayout(dp=2, first_rank=2),
    }
    engines = ColocatedEngines(group, RolloutLayout(dp=4))
    workers = WorkerHandle(group, layouts, engines, seed=1, engine_rows=8)
    for role in layouts:
        workers.keep_export(role, Path(role), Path(f"{role}_best"))
    assert group.firsts == [0, 2]
    assert group.given == [[("actor", "actor_best")], [("critic", "critic_best")]]


def test_each_teacher_reads_its_rows_and_log_probs_come_back_in_order() -> None:
    group = RecordingGroup()
    layouts: dict[Role, TrainLayout] = {"teacher": TrainLayout(dp=2)}
    engines = ColocatedEngines(group, RolloutLayout(dp=2))
    workers = WorkerHandle(group, layouts, engines, seed=1, engine_rows=8)
    sequences = replace(four_sequences(), teacher_B=torch.tensor([2, 0, 2, 2]))

    found = workers.compute_teacher_log_prob(sequences)

    # One row for two replicas, then three for two: the first row of each call fills up the shares.
    shares = [[part.teacher_B.tolist() for (part,) in given] for given in group.given]
    assert shares == [[[0], [0]], [[2, 2], [2, 2]]]
    assert torch.equal(found.logprobs_BT, sequences.tokens_BT.float())
