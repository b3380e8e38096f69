"""The GRPO loss against a plain Python reference, whole and in micro-batches."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mindrl.algorithms.kl import KlKind
from mindrl.algorithms.losses import LossInputs, LossTerms
from mindrl.algorithms.policy_loss import PolicyLoss
from mindrl.algorithms.token_loss import resolve_token_loss
from mindrl.algorithms.token_weights import sequence_mean_weights, token_mean_weights
from mindrl.batch.experience import Minibatch
from mindrl.config.rl import RLConfig

SEQUENCES, POSITIONS = 6, 8
LOW, HIGH = 0.2, 0.3
TOKENS = resolve_token_loss(RLConfig(mini_batch_size=1, clip_ratio_low=LOW, clip_ratio_high=HIGH))
LOSS = PolicyLoss(
    tokens=TOKENS,
    kl_kind="k3",
    kl_coef=0.05,
    entropy_coef=0.01,
)
OUTPUTS = ("logprobs_BT", "entropy_BT")
NAMES = ("logprobs_BT", "entropy_BT", "old_logprobs_BT", "advantages_BT", "ref_logprobs_BT")


def make_batch(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(SEQUENCES, POSITIONS, dtype=torch.float64, generator=generator)

    logprobs_BT = normal(1.0) - 2
    mask_BT = torch.rand(SEQUENCES, POSITIONS, generator=generator) < 0.7
    return {
        "logprobs_BT": logprobs_BT,
        "entropy_BT": normal(1.0).abs(),
        "old_logprobs_BT": logprobs_BT + normal(0.3),
        "advantages_BT": normal(1.0),
        "ref_logprobs_BT": logprobs_BT + normal(0.5),
        "token_weights_BT": sequence_mean_weights(mask_BT).double(),
    }


def batch_of(columns: Mapping[str, Tensor | None]) -> Minibatch:
    """Return a micro-batch with the columns of an update among these."""
    weights_BT = columns["token_weights_BT"]
    assert weights_BT is not None
    own = {name: column for name, column in columns.items() if name not in OUTPUTS}
    return Minibatch(
        tokens_BT=torch.zeros(weights_BT.shape, dtype=torch.int64),
        lengths_B=torch.full((len(weights_BT),), POSITIONS),
        response_mask_BT=weights_BT != 0,
        **own,
    )


def terms_of(columns: Mapping[str, Tensor | None], loss: PolicyLoss = LOSS) -> LossTerms:
    """Return the terms of a micro-batch that one rank has whole."""
    batch, (logprobs_BT, entropy_BT) = batch_of(columns), (columns[name] for name in OUTPUTS)
    assert logprobs_BT is not None
    assert entropy_BT is not None
    ones_BT = torch.ones(batch.token_weights_BT.shape)
    return loss(LossInputs.of((logprobs_BT, entropy_BT), batch, ones_BT))


def reference_terms(batch: dict[str, list[list[float]]], loss: PolicyLoss) -> dict[str, float]:
    sums = dict.fromkeys(
        ("policy_loss", "kl", "entropy", "clip_fraction", "ratio", "kl_old", "loss"), 0.0
    )
    for b in range(SEQUENCES):
        for t in range(POSITIONS):
            new, entropy, old, gain, ref = (batch[name][b][t] for name in NAMES)
            weight = batch["token_weights_BT"][b][t]
            ratio = math.exp(new - old)
            limited = min(max(ratio, 1 - LOW), 1 + HIGH)
            policy = -min(ratio * gain, limited * gain)
            difference = ref - new
            kl = math.exp(difference) - difference - 1
            sums["policy_loss"] += weight * policy
            sums["kl"] += weight * kl
            sums["entropy"] += weight * entropy
            sums["clip_fraction"] += weight * (limited * gain < ratio * gain)
            sums["ratio"] += weight * ratio
            sums["kl_old"] += weight * (ratio - math.log(ratio) - 1)
            sums["loss"] += weight * (policy + loss.kl_coef * kl - loss.entropy_coef * entropy)
    return sums


@pytest.mark.parametrize("seed", range(5))
def test_loss_and_all_six_metrics_match_a_plain_python_reference(seed: int) -> None:
    batch = make_batch(seed)
    terms = terms_of(batch)
    expected = reference_terms({name: value.tolist() for name, value in batch.items()}, LOSS)
    assert terms.loss.item() == pytest.approx(expected.pop("loss"), rel=1e-12)
    found = {name: value.item() for name, value in terms.metrics.items()}
    assert found == pytest.approx(expected, rel=1e-10)
    assert 0 < found["clip_fraction"] < 1


@pytest.mark.parametrize("name", ["logprobs_BT", "entropy_BT"])
def test_gradient_of_the_loss_matches_finite_differences_of_the_reference(name: str) -> None:
    batch = make_batch(11)
    batch[name].requires_grad_()
    (grad_BT,) = torch.autograd.grad(terms_of(batch).loss, batch[name])
    plain = {key: value.tolist() for key, value in batch.items()}
    step = 1e-6
    for b in range(SEQUENCES):
        for t in range(POSITIONS):
            value = plain[name][b][t]
            plain[name][b][t] = value + step
            above = reference_terms(plain, LOSS)["loss"]
            plain[name][b][t] = value - step
            below = reference_terms(plain, LOSS)["loss"]
            plain[name][b][t] = value
            # Rounding of a loss near 1 in float64, divided by 2e-6, is about 1e-10.
            assert grad_BT[b, t].item() == pytest.approx((above - below) / (2 * step), abs=1e-8)


@pytest.mark.parametrize("sizes", [[1, 1, 1, 1, 1, 1], [2, 4], [3, 1, 2], [6]])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "abs"])
def test_micro_batches_of_any_size_add_to_the_loss_gradient_and_metrics_of_the_whole(
    sizes: list[int], kind: KlKind
) -> None:
    loss = PolicyLoss(
        tokens=TOKENS,
        kl_kind=kind,
        kl_coef=0.1,
        entropy_coef=0.02,
    )
    batch = make_batch(3)
    batch["logprobs_BT"].requires_grad_()
    whole = terms_of(batch, loss)
    (whole_grad_BT,) = torch.autograd.grad(whole.loss, batch["logprobs_BT"])
    split = {name: torch.split(value, sizes) for name, value in batch.items()}
    parts = [
        terms_of({name: pieces[place] for name, pieces in split.items()}, loss)
        for place in range(len(sizes))
    ]
    total = torch.stack([part.loss for part in parts]).sum()
    (grad_BT,) = torch.autograd.grad(total, batch["logprobs_BT"])
    torch.testing.assert_close(total, whole.loss, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad_BT, whole_grad_BT, rtol=0, atol=0)
    for name, value in whole.metrics.items():
        added = torch.stack([part.metrics[name] for part in parts]).sum()
        torch.testing.assert_close(added, value, rtol=1e-12, atol=1e-12)


def test_nan_and_inf_outside_the_mask_change_neither_loss_nor_gradient() -> None:
    batch = make_batch(4)
    unused_BT = batch["token_weights_BT"] == 0
    clean_BT = batch["logprobs_BT"].clone().requires_grad_()
    (clean_grad_BT,) = torch.autograd.grad(
        terms_of(batch | {"logprobs_BT": clean_BT}).loss, clean_BT
    )
    dirty = {name: batch[name].masked_fill(unused_BT, math.nan) for name in NAMES}
    dirty["old_logprobs_BT"] = batch["old_logprobs_BT"].masked_fill(unused_BT, -math.inf)
    dirty["logprobs_BT"].requires_grad_()
    terms = terms_of(dirty | {"token_weights_BT": batch["token_weights_BT"]})
    (grad_BT,) = torch.autograd.grad(terms.loss, dirty["logprobs_BT"])
    assert unused_BT.any()
    assert terms.loss.item() == terms_of(batch).loss.item()
    assert torch.equal(grad_BT, clean_grad_BT)


def test_without_old_log_probs_the_update_takes_its_own_to_the_bit() -> None:
    batch = make_batch(6)
    found = []
    for old_BT in (batch["logprobs_BT"], None):
        new_BT = batch["logprobs_BT"].clone().requires_grad_()
        terms = terms_of(batch | {"logprobs_BT": new_BT, "old_logprobs_BT": old_BT})
        (grad_BT,) = torch.autograd.grad(terms.loss, new_BT)
        found.append((terms.loss.item(), grad_BT.tolist(), terms.metrics["kl_old"].item()))
    assert found[0] == found[1]
    assert found[0][2] == 0


def test_an_untouched_policy_has_ratio_1_no_clipping_and_a_loss_of_minus_the_mean_advantage() -> (
    None
):
    batch = make_batch(5)
    batch["old_logprobs_BT"] = batch["ref_logprobs_BT"] = batch["logprobs_BT"]
    batch["token_weights_BT"] = token_mean_weights(torch.ones(SEQUENCES, POSITIONS) > 0).double()
    metrics = terms_of(batch).metrics
    # Weights are float32 rounded, 1/48 is off by 3e-8 of itself.
    assert metrics["ratio"].item() == pytest.approx(1.0, rel=1e-7)
    assert metrics["policy_loss"].item() == pytest.approx(
        -batch["advantages_BT"].mean().item(), rel=1e-6
    )
    assert metrics["clip_fraction"].item() == metrics["kl"].item() == 0.0
    assert metrics["kl_old"].item() == 0.0


def test_metrics_are_detached_0_dim_tensors_while_the_loss_carries_the_gradient() -> None:
    batch = make_batch(6)
    batch["logprobs_BT"].requires_grad_()
    terms = terms_of(batch)
    assert terms.loss.requires_grad
    assert terms.loss.ndim == 0
    assert all(not value.requires_grad and value.ndim == 0 for value in terms.metrics.values())


def test_a_kl_coefficient_above_zero_without_a_reference_is_refused() -> None:
    batch: dict[str, Tensor | None] = dict(make_batch(7))
    batch["ref_logprobs_BT"] = None
    with pytest.raises(ValueError, match=r"ref_logprobs_BT is None; kl_coef=0.05"):
        terms_of(batch)


def test_without_kl_a_reference_is_optional_and_only_adds_the_metric() -> None:
    loss = PolicyLoss(
        tokens=TOKENS,
        kl_kind="k1",
        kl_coef=0.0,
        entropy_coef=0.01,
    )
    batch = make_batch(8)
    measured = terms_of(batch, loss)
    without = terms_of(batch | {"ref_logprobs_BT": None}, loss)
    assert "kl" not in without.metrics
    assert measured.metrics["kl"].item() != 0
    assert measured.loss.item() == without.loss.item()


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_another_shape_is_refused_by_name_rather_than_broadcast(name: str) -> None:
    batch = make_batch(9)
    batch[name] = batch[name][:, :1]
    with pytest.raises(ValueError, match=rf"^{name} has shape \[6, 1\]; .* \[6, 8\]"):
        terms_of(batch)


def test_a_minibatch_says_its_own_weight_of_the_entropy() -> None:
    batch = make_batch(7)
    outputs = batch["logprobs_BT"], batch["entropy_BT"]
    own_BT, told = torch.ones(SEQUENCES, POSITIONS), torch.full((SEQUENCES,), 0.5)
    plain = LossInputs.of(outputs, batch_of(batch), own_BT)
    found = LOSS(replace(plain, batch=replace(plain.batch, entropy_coef_B=told))).loss
    assert found.item() == replace(LOSS, entropy_coef=0.5)(plain).loss.item()
    assert found.item() != LOSS(plain).loss.item()
