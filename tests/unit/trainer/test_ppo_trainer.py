"""The order of a PPO step, and what actor and critic are given."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_roles import PROMPTS, MemoryRoles, config, data, lines, rewards, run_log

from mindrl.batch.experience import CriticMinibatch
from mindrl.batch.prompts import Prompt
from mindrl.errors import NonfiniteError
from mindrl.trainer.policy_trainer import PolicyTrainer


def build(
    root: Path,
    roles: MemoryRoles,
    *,
    model_weight: float | None = None,
    test: Sequence[Prompt] = (),
    **changes: Any,
) -> PolicyTrainer:
    chosen = config(
        **({"adv_estimator": "gae", "lam": 1.0, "kl_penalty": "k1", "init_kl_coef": 0.1} | changes)
    )
    return PolicyTrainer(
        chosen,
        data(test),
        roles,
        rewards(roles, model_weight=model_weight),
        run_log(root, chosen.megatron_training.train_iters, "critic"),
        max_logprob_gap=0.1,
    )


def test_a_step_gives_each_role_its_turn_once_and_the_critic_two_turns_in_a_row(
    tmp_path: Path,
) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles, model_weight=1.0).run()
    assert roles.calls == [
        "generate",
        "score",
        "reward model",
        "reference log-probs",
        "log-probs",
        "values",
        "critic update",
        "critic update",
        "update",
        "update",
        "flush",
        "export model",
        "export critic",
        "flush",
    ]


def test_the_critic_of_the_best_step_is_kept_beside_the_actor(tmp_path: Path) -> None:
    roles = MemoryRoles()
    keys = {"train_iters": 2, "export_interval": 1, "test_freq": 1}
    build(tmp_path, roles, test=PROMPTS[:1], **keys).run()
    kept = [call for call in roles.calls if call.startswith("keep")]
    # Step 2 is evaluated as well as step 1, and no better.
    assert kept == ["keep model of actor as model_best", "keep critic of critic as critic_best"]


def test_the_actor_gets_whitened_advantages_and_the_critic_the_returns(tmp_path: Path) -> None:
    """Rewards 0 and 1, values 0.25: advantages -0.25 and 0.75, mean 0.25, deviation 0.5."""
    roles = MemoryRoles()
    build(tmp_path, roles).run()
    assert len(roles.minibatches) == len(roles.critic_minibatches) == 2
    for minibatch, of_critic in zip(roles.minibatches, roles.critic_minibatches, strict=True):
        low, high = minibatch.advantages_BT
        # 1e-8 is added to a variance of 0.25.
        assert low.tolist() == pytest.approx([0, 0, -1, -1], abs=1e-7)
        assert high.tolist() == pytest.approx([0, 0, 1, 1], abs=1e-7)
        assert of_critic.returns_BT.tolist() == [[0, 0, 0, 0], [0, 0, 1, 1]]
        assert of_critic.old_values_BT.tolist() == [[0, 0, 0.25, 0.25]] * 2
        assert torch.equal(of_critic.token_weights_BT, minibatch.token_weights_BT)
    (step,) = lines(tmp_path / "metrics.jsonl")
    assert step["value/mean"] == 0.25
    assert step["value/return_mean"] == 0.5
    assert step["value/explained_variance"] == 0.0
    assert (step["advantage/mean"], step["advantage/std"]) == (0.25, 0.5)
    assert step["critic/value_loss"] == 1.5
    assert "reward/kl" not in step
    stages = ("rollout", "reward", "ref_log_prob", "log_prob", "values", "update_critic", "update")
    assert sum(step[f"seconds/{stage}"] for stage in stages) <= step["seconds/step"]


def test_gamma_and_lambda_discount_the_reward_of_the_last_token(tmp_path: Path) -> None:
    """Last token: 1 - 0.25. The one before: 0.5 * 0.25 - 0.25 + 0.25 * 0.75 = 0.0625."""
    roles = MemoryRoles()
    build(tmp_path, roles, gamma=0.5, lam=0.5).run()
    (_, high) = roles.critic_minibatches[0].returns_BT
    assert high.tolist() == [0, 0, 0.3125, 1.0]


def test_a_kl_term_in_the_reward_is_taken_from_each_token(tmp_path: Path) -> None:
    """Log-probs are -1 of the policy, -3 of the reference: k1 is 2, times 0.125."""
    roles = MemoryRoles()
    build(tmp_path, roles, init_kl_coef=0.125, use_kl_in_reward=True).run()
    low, high = roles.critic_minibatches[0].returns_BT
    assert low.tolist() == [0, 0, -0.5, -0.25]
    assert high.tolist() == [0, 0, 0.5, 0.75]
    (step,) = lines(tmp_path / "metrics.jsonl")
    assert step["reward/kl"] == 2.0
    # The reward that people read is without it.
    assert step["reward/mean"] == 0.5


@pytest.mark.parametrize("seed", [None, 5])
def test_critic_and_actor_are_updated_on_the_same_minibatches_in_each_epoch(
    seed: int | None, tmp_path: Path
) -> None:
    roles = MemoryRoles()
    dealt = {} if seed is None else {"shuffle_mini_batch": True, "seed": seed}
    build(tmp_path, roles, global_batch_size=4, epochs=3, **dealt).run()
    actors = [minibatch.tokens_BT[0, 0].item() for minibatch in roles.minibatches]
    critics = [minibatch.tokens_BT[0, 0].item() for minibatch in roles.critic_minibatches]
    assert len(actors) == 12
    assert actors == critics
    assert sorted(actors[:4]) == [1, 2, 3, 4]
    assert (actors[:4] == actors[4:8]) == (seed is None)


def test_for_two_warm_up_steps_of_three_the_critic_learns_alone(tmp_path: Path) -> None:
    roles = MemoryRoles()
    build(tmp_path, roles, train_iters=3, critic_warmup=2).run()
    assert (len(roles.critic_minibatches), len(roles.minibatches)) == (6, 2)
    steps = lines(tmp_path / "metrics.jsonl")
    assert ["update/policy_loss" in step for step in steps] == [False, False, True]
    assert all("critic/value_loss" in step for step in steps)


@pytest.mark.parametrize(("on_nonfinite", "updates"), [("skip", (2, 2)), ("stop", (1, 0))])
def test_behind_an_update_of_the_critic_that_stops_the_run_comes_none_of_the_actor(
    on_nonfinite: str, updates: tuple[int, int], tmp_path: Path
) -> None:
    class BadCritic(MemoryRoles):
        def update_critic(self, minibatch: CriticMinibatch) -> dict[str, float]:
            return super().update_critic(minibatch) | {"skipped": 1.0}

    roles = BadCritic()
    with suppress(NonfiniteError):
        build(tmp_path, roles, on_nonfinite=on_nonfinite).run()
    assert (len(roles.critic_minibatches), len(roles.minibatches)) == updates
