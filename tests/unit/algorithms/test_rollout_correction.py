"""Importance weights: by hand, in float64, and what they make of a gradient.

Shapes: B sequences, T positions, V the vocabulary.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from mindrl.algorithms.losses import LossInputs
from mindrl.algorithms.policy_loss import PolicyLoss
from mindrl.algorithms.rollout_correction import corrected
from mindrl.algorithms.token_loss import resolve_token_loss
from mindrl.batch.experience import Minibatch
from mindrl.config.rl import RLConfig, RolloutCorrection

MASK_BT = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 0], [0, 1, 1, 1]]) > 0
# Ratios of the trainer to the engine: 1/2, 1, 4; 1/4, 1; 3, 3, 3.
RATIO_BT = torch.tensor([[9, 0.5, 1, 4], [9, 0.25, 1, 9], [9, 3, 3, 3.0]])


def weights(**options: Any) -> list[list[float]]:
    """Return the weights of RATIO_BT, and outside the responses nothing."""
    found = corrected(RolloutCorrection(**options), RATIO_BT.log(), MASK_BT)
    assert not found.weights_BT[~MASK_BT].any()
    return [row[mask].tolist() for row, mask in zip(found.weights_BT, MASK_BT, strict=True)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"level": "token"}, [[0.5, 1, 2], [0.25, 1], [2, 2, 2]]),
        (
            {"level": "token", "beyond": "mask", "max_weight": 3.5, "min_weight": 0.4},
            [[0.5, 1, 0], [0, 1], [3, 3, 3]],
        ),
        # The products of the responses are 2, 1/4 and 27.
        ({"level": "sequence", "max_weight": 5}, [[2, 2, 2], [0.25, 0.25], [5, 5, 5]]),
        ({"level": "sequence", "beyond": "mask"}, [[2, 2, 2], [0.25, 0.25], [0, 0, 0]]),
        # Geometric means: the cubic root of 2, 1/2, and 3.
        ({"level": "off", "reject_above": 1.2}, [[0, 0, 0], [1, 1], [0, 0, 0]]),
        (
            {"level": "token", "reject_below": 0.6, "reject_above": 3.1},
            [[0.5, 1, 2], [0, 0], [2, 2, 2]],
        ),
    ],
)
def test_weights_are_those_by_hand(options: dict[str, Any], expected: list[list[float]]) -> None:
    for found, wanted in zip(weights(**options), expected, strict=True):
        # Logarithms and back, in float32.
        assert found == pytest.approx(wanted, rel=1e-6)


def reference(
    options: RolloutCorrection, old: Sequence[float], drawn: Sequence[float]
) -> list[Any]:
    """Say the weights of the tokens of one response, in float64."""
    logs = [o - d for o, d in zip(old, drawn, strict=True)]
    mean = math.exp(sum(logs) / len(logs))
    found = []
    for each in logs:
        ratio = {"off": 1.0, "token": math.exp(each), "sequence": math.exp(sum(logs))}
        weight = ratio[options.level or "off"]
        if options.beyond == "mask":
            weight *= options.min_weight <= weight <= options.max_weight
        weight = min(weight, options.max_weight)
        rejected = mean < (options.reject_below or 0) or mean > (options.reject_above or math.inf)
        found.append(0.0 if rejected else weight)
    return found


@pytest.mark.parametrize("level", ["off", "token", "sequence"])
@pytest.mark.parametrize("beyond", ["truncate", "mask"])
@pytest.mark.parametrize("rejects", [{}, {"reject_below": 0.9, "reject_above": 1.1}])
def test_weights_equal_a_reference_in_float64_and_add_over_ranks(
    level: Any, beyond: Any, rejects: dict[str, float]
) -> None:
    options = RolloutCorrection(
        level=level, beyond=beyond, max_weight=1.2, min_weight=0.7 * (beyond == "mask"), **rejects
    )
    generator = torch.Generator().manual_seed(3)
    old_BT, drawn_BT = torch.randn(2, 9, 12, generator=generator, dtype=torch.float64) * 0.3 - 2
    mask_BT = torch.arange(12) < torch.arange(3, 12)[:, None]
    log_BT = old_BT - drawn_BT
    whole_BT = corrected(options, log_BT, mask_BT).weights_BT
    for row, mask_T in enumerate(mask_BT):
        wanted = reference(options, old_BT[row, mask_T].tolist(), drawn_BT[row, mask_T].tolist())
        assert whole_BT[row, mask_T].tolist() == pytest.approx(wanted, rel=1e-12)
    # Two ranks with every second token each: whoever adds knows what the other would say.
    halves = [mask_BT & (torch.arange(12) % 2 == half) for half in (0, 1)]
    for mine, others in (halves, halves[::-1]):
        asked = iter([(log_BT * others).sum(dim=1), others.sum(dim=1)])
        part_BT = corrected(
            options, log_BT, mine, lambda values_B, asked=asked: values_B + next(asked)
        ).weights_BT
        torch.testing.assert_close(part_BT, whole_BT * mine, rtol=1e-12, atol=0)


V, T = 5, 3
REWARDS = torch.randn(V**T, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
SEQUENCES_BT = torch.tensor([*itertools.product(range(V), repeat=T)])


def policy(weights: list[Tensor], dtype: torch.dtype) -> Tensor:
    """Return log-probs of all sequences of T tokens by a small recurrent network, [B, T]."""
    embed_VH, mix_HH, head_HV = (each.to(dtype) for each in weights)
    state_BH = torch.zeros(len(SEQUENCES_BT), len(mix_HH), dtype=dtype)
    found = []
    for t in range(T):
        logits_BV = (state_BH @ head_HV).float()
        found.append(logits_BV.log_softmax(1).gather(1, SEQUENCES_BT[:, t, None])[:, 0])
        state_BH = torch.tanh(state_BH @ mix_HH + embed_VH[SEQUENCES_BT[:, t]])
    return torch.stack(found, dim=1)


def gradient(
    weights: list[Tensor], chances_B: Tensor, correction: RolloutCorrection | None
) -> Tensor:
    """Return the expected gradient where sequences come with these chances, by mindrl's loss."""
    leaves = [each.clone().requires_grad_() for each in weights]
    logprobs_BT = policy(leaves, torch.float32)
    loss = PolicyLoss(
        kl_kind="k3",
        kl_coef=0.0,
        entropy_coef=0.0,
        tokens=resolve_token_loss(RLConfig(mini_batch_size=1, policy_loss="plain")),
        correction=correction,
    )
    ones_BT = torch.ones(SEQUENCES_BT.shape)
    minibatch = Minibatch(
        tokens_BT=SEQUENCES_BT,
        lengths_B=torch.full((len(SEQUENCES_BT),), T),
        response_mask_BT=ones_BT > 0,
        old_logprobs_BT=None,
        advantages_BT=REWARDS.float()[:, None] * ones_BT,
        token_weights_BT=chances_B.float()[:, None] * ones_BT,
        ref_logprobs_BT=None,
        rollout_logprobs_BT=policy(weights, torch.bfloat16),
    )
    outputs = (logprobs_BT, torch.zeros_like(ones_BT))
    terms = loss(LossInputs.of(outputs, minibatch, ones_BT))
    return torch.cat([each.flatten() for each in torch.autograd.grad(terms.loss, leaves)])


@pytest.mark.parametrize("seed", range(3))
def test_with_a_rollout_in_bfloat16_the_corrected_gradient_is_nearer_to_the_exact_one(
    seed: int,
) -> None:
    """All 125 sequences are enumerated: nothing is sampled."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(size, generator=generator) for size in ((V, 8), (8, 8), (8, V))]
    own_B, engine_B = (
        policy(weights, dtype).double().sum(dim=1).exp()
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert own_B.sum().item() == pytest.approx(1, abs=1e-6)
    assert 1e-4 < (own_B - engine_B).abs().sum() < 0.1
    exact = gradient(weights, own_B, None)
    levels = (None, RolloutCorrection(level="token"), RolloutCorrection(level="sequence"))
    far, token, sequence = (
        ((gradient(weights, engine_B, each) - exact).norm() / exact.norm()).item()
        for each in levels
    )
    # The product of a response is exact; a token's own ratio forgets those before it.
    assert token < far
    assert sequence < 0.01 * far


def updated(
    correction: RolloutCorrection, drawn_BT: Tensor, new_BT: Tensor, old_BT: Tensor | None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return gradients of log-probs and entropies, and the metrics, of a loss with all its terms.

    The advantage of each token is 1, the log-prob of the reference -3, the weight 1 / 6.
    """
    new_BT = new_BT.clone().requires_grad_()
    entropy_BT = torch.full_like(new_BT, 0.5).requires_grad_()
    ones_BT = torch.ones_like(new_BT)
    loss = PolicyLoss(
        kl_kind="k3",
        kl_coef=0.1,
        entropy_coef=0.01,
        tokens=resolve_token_loss(RLConfig(mini_batch_size=1)),
        correction=correction,
    )
    minibatch = Minibatch(
        tokens_BT=ones_BT.long(),
        lengths_B=torch.full((len(ones_BT),), ones_BT.size(1)),
        response_mask_BT=ones_BT > 0,
        old_logprobs_BT=old_BT,
        advantages_BT=ones_BT,
        token_weights_BT=ones_BT / ones_BT.numel(),
        ref_logprobs_BT=-3 * ones_BT,
        rollout_logprobs_BT=drawn_BT,
    )
    terms = loss(LossInputs.of((new_BT, entropy_BT), minibatch, ones_BT))
    found = torch.autograd.grad(terms.loss, (new_BT, entropy_BT), allow_unused=True)
    by_logprob_BT, by_entropy_BT = found
    return by_logprob_BT, by_entropy_BT, terms.metrics


@pytest.mark.parametrize(
    ("correction", "left_out"),
    [
        # The engine's log-prob of one token is off by 1: e^(1/3) is the mean ratio of its response.
        (RolloutCorrection(level="off", reject_above=1.1), [[True] * 3, [False] * 3]),
        (RolloutCorrection(level="off", reject_below=0.9), [[False] * 3, [False] * 3]),
        (
            RolloutCorrection(level="token", beyond="mask", max_weight=2.0),
            [[False, True, False], [False] * 3],
        ),
    ],
)
def test_what_is_left_out_learns_nothing_from_kl_and_entropy_either(
    correction: RolloutCorrection, left_out: list[list[bool]]
) -> None:
    new_BT = torch.full((2, 3), -1.0)
    drawn_BT = new_BT.clone()
    drawn_BT[0, 1] -= 1.0
    by_logprob_BT, by_entropy_BT, metrics = updated(correction, drawn_BT, new_BT, None)
    assert ((by_logprob_BT == 0).tolist(), (by_entropy_BT == 0).tolist()) == (left_out,) * 2
    # Each token that learns has the weight that it has without those that are left out.
    assert by_entropy_BT[1].tolist() == pytest.approx([-0.01 / 6] * 3)
    # What is left out goes on being measured.
    assert metrics["entropy"].item() == pytest.approx(0.5)
    assert metrics["kl"].item() == pytest.approx(math.exp(-2) + 2 - 1)


@pytest.mark.parametrize("name", ["gspo", "gmpo"])
def test_a_token_that_is_left_out_has_no_part_in_the_ratio_of_its_response(name: str) -> None:
    """Of three tokens the first has a ratio of e^0.15 to the old policy, the others of 1."""
    old_BT = torch.full((1, 3), -1.0)
    new_BT = torch.tensor([[-0.85, -1.0, -1.0]])
    masks = RolloutCorrection(level="token", beyond="mask", max_weight=2.0)
    for place, ratio in ((0, 1.0), (2, math.exp(0.15 / 2))):
        drawn_BT = old_BT.clone()
        drawn_BT[0, place] -= 1.0
        loss = PolicyLoss(
            kl_kind="k3",
            kl_coef=0.0,
            entropy_coef=0.0,
            tokens=resolve_token_loss(
                RLConfig(mini_batch_size=1, policy_loss=name, clip_ratio=0.4)
            ),
            correction=masks,
        )
        ones_BT = torch.ones(1, 3)
        minibatch = Minibatch(
            tokens_BT=ones_BT.long(),
            lengths_B=torch.tensor([3]),
            response_mask_BT=ones_BT > 0,
            old_logprobs_BT=old_BT,
            advantages_BT=ones_BT,
            token_weights_BT=ones_BT / 2,
            ref_logprobs_BT=None,
            rollout_logprobs_BT=drawn_BT,
        )
        terms = loss(LossInputs.of((new_BT, ones_BT), minibatch, ones_BT))
        # Two tokens that learn, each of weight 1 / 2.
        assert terms.loss.item() == pytest.approx(-ratio)


def test_the_weight_is_that_of_the_policy_that_the_update_starts_from() -> None:
    """Engine -1, start -0.9, now -0.75: the weight is e^0.1, the ratio e^0.15 is not clipped."""
    token = RolloutCorrection(level="token", max_weight=2.0)
    drawn_BT, old_BT, new_BT = (torch.full((1, 1), each) for each in (-1.0, -0.9, -0.75))
    found = {}
    for name, start_BT in (("old", old_BT), ("own", None)):
        by_logprob_BT, _, _ = updated(token, drawn_BT, new_BT, start_BT)
        # Less the slope of 0.1 k3 against a reference of -3.
        found[name] = by_logprob_BT.item() - 0.1 * (1 - math.exp(-2.25))
    assert found["old"] == pytest.approx(-math.exp(0.1) * math.exp(0.15), rel=1e-5)
    # Where it finds its own log-probs it starts from the present policy.
    assert found["own"] == pytest.approx(-math.exp(0.25), rel=1e-5)
