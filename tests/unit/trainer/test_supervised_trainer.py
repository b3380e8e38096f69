"""The loop of supervised fine-tuning on roles in memory: order, updates, metrics, held-out loss."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from memory_roles import MemoryRoles, asked_at, config, data, lines, run_log

from mindrl.batch.prompts import Demonstration
from mindrl.batch.sequences import Logprobs, Sequences
from mindrl.config.run import RunConfig
from mindrl.config.sft import SFTConfig
from mindrl.config.supervision import supervised
from mindrl.errors import StopRequestedError
from mindrl.observability.metrics import computed
from mindrl.trainer.supervised_trainer import SupervisedTrainer, sequences_of

SHOWN = tuple(
    Demonstration(
        uid=uid,
        token_ids=(uid + 1, 9, *range(20, 21 + uid), 7),
        text=f"row {uid}",
        answer="",
        # Neither the question, nor what the template writes behind the answer.
        targets=(False, False, *(True,) * (uid + 1), False),
    )
    for uid in range(4)
)


class AnswerRoles(MemoryRoles):
    """Roles that give token n of the vocabulary the log-prob -n / 10."""

    loss = "answer_loss"

    def __init__(self) -> None:
        super().__init__()
        self.scored: list[list[int]] = []
        """First tokens of the rows of each forward pass."""

    def compute_log_prob(self, sequences: Sequences) -> Logprobs:
        self.calls.append("log-probs")
        self.scored.append(sequences.tokens_BT[:, 0].tolist())
        logprobs_BT = sequences.response_mask_BT * sequences.tokens_BT / -10.0
        return Logprobs(logprobs_BT=logprobs_BT)


def chosen(**changes: object) -> RunConfig:
    plain = config(train_iters=3, no_shuffle=True, mini_batch_size=2, **changes)
    rl = replace(plain.rl_config, n_samples_per_prompt=8)
    return supervised(replace(plain, rl_config=rl, sft_config=SFTConfig()))


def trained(root: Path, roles: MemoryRoles, **changes: object) -> SupervisedTrainer:
    log = run_log(root, 3)
    trainer = SupervisedTrainer(chosen(**changes), data(SHOWN[:3], SHOWN), roles, log)
    trainer.run()
    log.close()
    return trainer


def test_steps_take_the_rows_in_order_and_weigh_each_target_token_alike(tmp_path: Path) -> None:
    roles = AnswerRoles()
    trained(tmp_path, roles)
    assert [each.tokens_BT[:, 0].tolist() for each in roles.minibatches] == [[1, 2], [3, 4], [1, 2]]
    second = roles.minibatches[1]
    # Rows 2 and 3 have 3 and 4 target tokens.
    assert second.token_weights_BT[0].tolist() == pytest.approx([0, 0, 1 / 7, 1 / 7, 1 / 7, 0, 0])
    assert second.token_weights_BT.sum().item() == pytest.approx(1)
    steps = [line for line in lines(tmp_path / "metrics.jsonl") if "sft/loss" in line]
    assert [line["sft/loss"] for line in steps] == [1, 2, 3]
    assert [line["sft/tokens"] for line in steps] == [9, 13, 9]
    assert [line["sft/target_tokens"] for line in steps] == [3, 7, 3]
    assert [line["sft/epoch"] for line in steps] == [0.5, 1.0, 1.5]
    assert steps[0]["update/grad_norm"] == 0.5
    assert not {"update/answer_loss", "rollout/response_tokens"} & steps[0].keys()


def test_the_held_out_loss_is_a_mean_over_tokens_and_each_row_is_scored_once(
    tmp_path: Path,
) -> None:
    """Of three rows two make a batch, and the third is a batch of its own."""
    roles = AnswerRoles()
    trained(tmp_path, roles, test_freq=2)
    # Targets 20, then 20 21, then 20 21 22.
    loss = (3 * 2.0 + 2 * 2.1 + 2.2) / 6
    held_out = [line for line in lines(tmp_path / "metrics.jsonl") if "evaluation/loss" in line]
    assert [line["step"] for line in held_out] == [0, 2, 3]
    for line in held_out:
        assert line["evaluation/loss"] == pytest.approx(loss)
        assert line["evaluation/perplexity"] == pytest.approx(torch.tensor(loss).exp().item())
    assert roles.scored == [[1, 2], [3]] * 3
    assert "generate" not in roles.calls


def test_a_run_that_is_stopped_goes_on_with_the_rows_that_come_next(tmp_path: Path) -> None:
    straight, first, second = AnswerRoles(), AnswerRoles(), AnswerRoles()
    trained(tmp_path / "straight", straight)
    log = run_log(tmp_path / "begun", 3)
    begun = SupervisedTrainer(chosen(), data((), SHOWN), first, log)
    with pytest.raises(StopRequestedError):
        begun.run(asked_at(1))
    goes_on = SupervisedTrainer(chosen(), data((), SHOWN), second, run_log(tmp_path / "on", 3))
    goes_on.resume(1, begun.state())
    goes_on.run()
    both = [*first.minibatches, *second.minibatches]
    assert len(both) == 3
    for ours, theirs in zip(both, straight.minibatches, strict=True):
        assert torch.equal(ours.tokens_BT, theirs.tokens_BT)
    assert goes_on.run_log.summary.steps == 3
    assert computed(goes_on.step(4)[0])["sft/epoch"] == 2.0


def test_rows_are_padded_behind_their_end_alone() -> None:
    batch = sequences_of(SHOWN[:2])
    assert batch.tokens_BT.tolist() == [[1, 9, 20, 7, 0], [2, 9, 20, 21, 7]]
    assert batch.lengths_B.tolist() == [4, 5]
    assert batch.response_mask_BT.int().tolist() == [[0, 0, 1, 0, 0], [0, 0, 1, 1, 0]]
