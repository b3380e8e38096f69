"""Losses and advantages against TRL's own code, where the extra `compare` has brought TRL.

Shapes: B sequences, T tokens of a response.
"""

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from mindrl.algorithms.advantages import group_normalised_advantages
from mindrl.algorithms.estimators import RatedResponses, group_mean, rloo
from mindrl.algorithms.losses import LossInputs
from mindrl.algorithms.policy_loss import PolicyLoss
from mindrl.algorithms.token_loss import resolve_token_loss
from mindrl.algorithms.token_weights import (
    sequence_mean_weights,
    sequence_sum_weights,
    token_mean_weights,
)
from mindrl.batch.experience import Minibatch
from mindrl.config.rl import RLConfig, RolloutCorrection

grpo_trainer = pytest.importorskip("trl.trainer.grpo_trainer", exc_type=ImportError)
rloo_trainer = pytest.importorskip("trl.trainer.rloo_trainer", exc_type=ImportError)

B, T, LONGEST = 8, 12, 20
CLIP_LOW, CLIP_HIGH, KL = 0.2, 0.28, 0.05
# Ours, TRL's name, how tokens are weighed, and what else TRL is told.
LOSSES: dict[str, tuple[str, str, Callable[[Tensor], Tensor], dict[str, Any]]] = {
    "grpo": ("clipped", "grpo", sequence_mean_weights, {}),
    "dr_grpo": ("clipped", "dr_grpo", lambda mask: sequence_sum_weights(mask, LONGEST), {}),
    "bnpo": ("clipped", "bnpo", token_mean_weights, {}),
    "dapo": ("clipped", "dapo", token_mean_weights, {}),
    "dual_clip": ("dual_clip", "dapo", token_mean_weights, {"delta": 1.5}),
    "gspo": ("gspo", "grpo", sequence_mean_weights, {"importance_sampling_level": "sequence"}),
    "sapo": ("sapo", "sapo", sequence_mean_weights, {}),
    # TRL clips the weight itself, and above alone; no ratio here is below 0.001.
    "cispo": ("cispo", "cispo", token_mean_weights, {"epsilon_high": 1 + CLIP_HIGH}),
}


def trl_loss(batch: Minibatch, new_BT: Tensor, loss_type: str, told: dict[str, Any]) -> Tensor:
    """Call the trainer's own method on what it reads."""
    mask_BT = batch.response_mask_BT.float()
    asked = SimpleNamespace(
        use_bias_correction_kl=False,
        delta=told.get("delta"),
        sapo_temperature_pos=1.0,
        sapo_temperature_neg=1.05,
        steps_per_generation=1,
    )
    same = SimpleNamespace(
        num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x, sync_gradients=True
    )
    trainer = SimpleNamespace(
        args=asked,
        accelerator=same,
        loss_type=loss_type,
        model=SimpleNamespace(training=True),
        beta=KL,
        epsilon_low=CLIP_LOW,
        epsilon_high=told.get("epsilon_high", CLIP_HIGH),
        importance_sampling_level=told.get("importance_sampling_level", "token"),
        use_vllm=batch.rollout_logprobs_BT is not None,
        vllm_importance_sampling_correction=True,
        max_completion_length=LONGEST,
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (new_BT, torch.ones(B, T), None),
    )
    inputs = {
        "prompt_ids": torch.zeros(B, 1, dtype=torch.int64),
        "prompt_mask": torch.ones(B, 1),
        "completion_ids": batch.tokens_BT,
        "completion_mask": mask_BT,
        "advantages": batch.advantages_BT[:, 0],
        "old_per_token_logps": batch.old_logprobs_BT,
        "ref_per_token_logps": batch.ref_logprobs_BT,
        "num_items_in_batch": mask_BT.sum(),
    }
    if batch.rollout_logprobs_BT is not None:
        log_BT = (batch.old_logprobs_BT - batch.rollout_logprobs_BT) * mask_BT
        if "importance_sampling_level" in told:
            log_BT = log_BT.sum(dim=1, keepdim=True)
        inputs["importance_sampling_ratio"] = log_BT.exp().clamp(max=2.0)
    found: Tensor = grpo_trainer.GRPOTrainer._compute_loss(trainer, None, inputs)
    return found


def random_batch(seed: int, weights: Callable[[Tensor], Tensor], *, drawn: bool) -> Minibatch:
    generator = torch.Generator().manual_seed(seed)

    def near(values_BT: Tensor, scale: float) -> Tensor:
        return values_BT + scale * torch.randn(B, T, generator=generator)

    old_BT = near(torch.full((B, T), -2.0), 0.5)
    lengths_B = torch.randint(1, T + 1, (B,), generator=generator)
    mask_BT = torch.arange(T) < lengths_B[:, None]
    return Minibatch(
        tokens_BT=torch.zeros(B, T, dtype=torch.int64),
        lengths_B=lengths_B,
        response_mask_BT=mask_BT,
        old_logprobs_BT=old_BT,
        advantages_BT=torch.randn(B, generator=generator)[:, None].expand(B, T),
        token_weights_BT=weights(mask_BT),
        ref_logprobs_BT=near(old_BT, 0.3),
        rollout_logprobs_BT=near(old_BT, 0.6) if drawn else None,
    )


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_and_its_gradient_are_those_of_trl(name: str, seed: int, drawn: bool) -> None:
    ours, loss_type, weights, told = LOSSES[name]
    batch = random_batch(seed, weights, drawn=drawn)
    assert batch.old_logprobs_BT is not None
    start_BT = batch.old_logprobs_BT + 0.4 * torch.randn(
        B, T, generator=torch.Generator().manual_seed(seed + 100)
    )
    # A token of gspo has the gradient of its own log-prob: equal weights in a response, equal sums.
    level: Literal["token", "sequence"] = "sequence" if ours == "gspo" else "token"
    mine_BT, theirs_BT = (start_BT.clone().requires_grad_() for _ in range(2))
    keys = RLConfig(
        mini_batch_size=1,
        policy_loss=ours,
        clip_ratio_low=0.999 if ours == "cispo" else CLIP_LOW,
        clip_ratio_high=CLIP_HIGH,
        dual_clip_ratio=1.5,
    )
    loss = PolicyLoss(
        kl_kind="k3",
        kl_coef=KL,
        entropy_coef=0.0,
        tokens=resolve_token_loss(keys),
        correction=RolloutCorrection(level=level) if drawn else None,
    )
    ones_BT = torch.ones(B, T)
    terms = loss(LossInputs.of((mine_BT, ones_BT), batch, ones_BT))
    theirs = trl_loss(batch, theirs_BT, loss_type, told)
    terms.loss.backward()  # type: ignore[no-untyped-call]
    theirs.backward()  # type: ignore[no-untyped-call]
    # Sums of about a hundred terms of size 1 in float32.
    torch.testing.assert_close(terms.loss, theirs, rtol=1e-5, atol=1e-6)
    assert theirs_BT.grad is not None
    assert theirs_BT.grad.abs().max() > 1e-3
    torch.testing.assert_close(mine_BT.grad, theirs_BT.grad, rtol=1e-5, atol=1e-7)


def trl_advantages(trainer: Any, first: str, last: str, told: dict[str, Any]) -> Tensor:
    """Run those lines of the trainer's own method that make advantages of rewards."""
    kind = next(
        each for name, each in vars(trainer).items() if name in ("GRPOTrainer", "RLOOTrainer")
    )
    source = textwrap.dedent(inspect.getsource(kind._generate_and_score_completions))
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    lines = [ast.unparse(each) for each in function.body]
    start = next(at for at, line in enumerate(lines) if line.startswith(first))
    stop = next(at for at in range(start, len(lines)) if lines[at].startswith(last))
    known = {**vars(trainer), **told}
    exec("\n".join(lines[start : stop + 1]), known)
    found: Tensor = known["advantages"]
    return found


def rewards_of(seed: int) -> tuple[Tensor, Tensor]:
    rewards_B = torch.randn(24, generator=torch.Generator().manual_seed(seed))
    # A group without a signal.
    rewards_B[8:12] = 0.5
    return rewards_B, torch.arange(6).repeat_interleave(4)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_advantages_of_groups_are_those_of_trl(seed: int, scaled: bool) -> None:
    rewards_B, group_B = rewards_of(seed)
    own = SimpleNamespace(
        multi_objective_aggregation="sum_then_normalize",
        scale_rewards="group" if scaled else "none",
        reward_weights=torch.ones(1),
    )
    told = {
        "self": own,
        "device": "cpu",
        "num_generations": 4,
        "rewards_per_func": rewards_B[:, None],
        "unscorable_mask": torch.zeros(24, dtype=torch.bool),
    }
    first = "if self.multi_objective_aggregation"
    theirs_B = trl_advantages(grpo_trainer, first, first, told)
    mask_BT = torch.ones(24, 1) > 0
    rated = RatedResponses(rewards_B=rewards_B, group_B=group_B, mask_BT=mask_BT)
    # TRL adds 1e-4 to the deviation.
    scaled_B = group_normalised_advantages(rewards_B, group_B, epsilon=1e-4)
    ours_B = scaled_B if scaled else group_mean(rated)
    torch.testing.assert_close(ours_B, theirs_B, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_advantages_against_the_others_of_a_group_are_those_of_trl(seed: int) -> None:
    rewards_B, group_B = rewards_of(seed)
    own = SimpleNamespace(normalize_advantages=False)
    told = {"self": own, "num_generations": 4, "rewards": rewards_B}
    theirs_B = trl_advantages(rloo_trainer, "grouped_rewards = ", "advantages = torch.nan", told)
    rated = RatedResponses(rewards_B=rewards_B, group_B=group_B, mask_BT=torch.ones(24, 1) > 0)
    torch.testing.assert_close(rloo(rated), theirs_B, rtol=1e-5, atol=1e-6)
