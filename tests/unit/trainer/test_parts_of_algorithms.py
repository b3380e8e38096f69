"""What some algorithms ask of the steps of a trainer: picks, a weight that changes, a baseline."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_roles import MemoryRoles, config, data, lines, rewards, run_log
from test_grpo_trainer import build

from mindrl.batch.experience import Minibatch, PolicyUpdate
from mindrl.batch.prompts import Prompt
from mindrl.batch.rollouts import Rollouts
from mindrl.config.teacher import TeacherConfig
from mindrl.trainer.policy_trainer import PolicyTrainer


def test_the_updates_of_the_policy_alone_carry_who_is_picked(tmp_path: Path) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles, policy_loss="kl_cov", mini_batch_size=2).run()
    (minibatch,) = roles.minibatches
    # One update a step, and the log-probs are asked for before it all the same.
    assert "log-probs" in roles.calls
    assert minibatch.picked_BT is not None
    assert minibatch.picked_BT.sum() == 1
    assert minibatch.old_logprobs_BT is not None


class Cooling(MemoryRoles):
    """Updates find less entropy each time."""

    def update(self, minibatch: Minibatch) -> PolicyUpdate:
        found = super().update(minibatch)
        found.metrics["entropy"] = 1.0 / len(self.minibatches)
        return found


def test_updates_carry_the_weight_and_a_resumed_run_goes_on_with_it(tmp_path: Path) -> None:
    keys = {"entropy_target": 0.3, "entropy_delta": 0.1, "mini_batch_size": 2, "train_iters": 6}
    roles = Cooling()
    roles.keeps_logprobs = True
    trainer = build(tmp_path, roles, **keys)
    trainer.run()
    carried = [each.entropy_coef_B for each in roles.minibatches]
    assert all(each is not None and len(each) == 4 for each in carried)
    weights = [each[0].item() for each in carried if each is not None]
    # Entropies 1, 1/2, 1/3 are above the target, 1/4 and 1/5 below.
    assert weights == pytest.approx([0, 0, 0, 0, 0.1, 0.2], abs=1e-7)
    steps = lines(tmp_path / "metrics.jsonl")
    assert [step["update/entropy_coef"] for step in steps] == pytest.approx(weights, abs=1e-7)
    state = json.loads(json.dumps(trainer.state()))
    again = build(tmp_path / "again", Cooling(), **keys)
    again.resume(6, state)
    assert again.minibatches.entropy == trainer.minibatches.entropy
    assert "entropy" not in build(tmp_path / "without", MemoryRoles()).state()


class Cutting(MemoryRoles):
    """Cuts the responses to the second prompt of step 2, and all of step 3."""

    def generate_sequences(self, prompts: Sequence[Prompt], *given: Any, **keys: Any) -> Rollouts:
        found = super().generate_sequences(prompts, *given, **keys)
        finished = {1: [True] * 4, 2: [True, True, False, False], 3: [False] * 4}[keys["step"]]
        return replace(found, finished_B=torch.tensor(finished))

    def update(self, minibatch: Minibatch) -> PolicyUpdate:
        found = super().update(minibatch)
        found.metrics["entropy"] = 0.4 if minibatch.token_weights_BT.any() else 0.0
        return found


def test_updates_without_tokens_enter_no_mean_over_tokens_and_not_the_target_of_entropy(
    tmp_path: Path,
) -> None:
    target = {"entropy_target": 0.3, "entropy_delta": 0.1, "entropy_coeff": 0.2}
    trainer = build(tmp_path, Cutting(), overlong_filter_enable=True, train_iters=3, **target)
    trainer.run()
    steps = lines(tmp_path / "metrics.jsonl")
    assert [step.get("update/entropy") for step in steps] == [0.4, 0.4, None]
    assert [step.get("update/entropy_coef") for step in steps] == [0.2, 0.0, None]
    assert [step["update/grad_norm"] for step in steps] == [0.5] * 3
    # 0.2 less 0.1 twice: the third step has no entropy.
    assert trainer.minibatches.entropy_state() == {"entropy": {"weight": 0.0, "is_below": False}}


@pytest.mark.parametrize(
    ("asked", "expected"), [({}, 2.0), ({"kl_penalty": "k3"}, math.exp(-2) + 2 - 1)]
)
def test_the_kl_in_the_reward_is_k1_unless_another_is_asked_for(
    asked: dict[str, str], expected: float, tmp_path: Path
) -> None:
    """The policy says -1 of each token, the reference -3."""
    keys = {"adv_estimator": "reinforce_plus_plus", "use_kl_in_reward": True}
    build(tmp_path, MemoryRoles(), with_reference=True, **keys, **asked).run()
    (line,) = lines(tmp_path / "metrics.jsonl")
    assert line["reward/kl"] == pytest.approx(expected)
    assert config(init_kl_coef=0.1).rl_config.kl_kind == "low_var_kl"


def test_a_greedy_response_to_each_prompt_is_the_baseline(tmp_path: Path) -> None:
    roles = MemoryRoles()
    roles.keeps_logprobs = True
    build(tmp_path, roles, adv_estimator="remax", mini_batch_size=2).run()
    assert roles.calls[:5] == ["generate", "generate", "score", "score", "update"]
    (uids, sampled, step), (again, greedy, same) = roles.asked
    assert (uids, step) == (again, same)
    assert (sampled.samples_per_prompt, sampled.is_greedy) == (2, False)
    assert (greedy.samples_per_prompt, greedy.is_greedy) == (1, True)
    (minibatch,) = roles.minibatches
    # The greedy response ends in 30 and earns nothing; the sampled ones earn 0 and 1.
    assert minibatch.advantages_BT[:, 2].tolist() == [0.0, 1.0] * 2
    (line,) = lines(tmp_path / "metrics.jsonl")
    assert line["reward/baseline"] == 0.0


@pytest.mark.parametrize(("candidates", "empty"), [(0, 1.0), (2, None)])
def test_advantages_of_0_are_an_empty_signal_unless_the_loss_has_a_teachers_divergence(
    candidates: int, empty: float | None, tmp_path: Path
) -> None:
    roles = MemoryRoles()
    teacher = TeacherConfig(load="none", candidates=candidates)
    chosen = replace(config(adv_estimator="teacher"), teacher_config=teacher)
    log = run_log(tmp_path, 1)
    PolicyTrainer(chosen, data(), roles, rewards(roles), log, max_logprob_gap=0.1).run()
    assert "teacher log-probs" in roles.calls
    assert not any(each.advantages_BT.any() for each in roles.minibatches)
    (step,) = lines(tmp_path / "metrics.jsonl")
    assert step.get("advantage/zero_fraction") == empty
