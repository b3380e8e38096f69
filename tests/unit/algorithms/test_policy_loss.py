"""The clipped loss against a plain Python reference and cases worked by hand."""

import math

import pytest
import torch

from mindrl.algorithms.losses import clipped_policy_loss


def reference_loss(
    new: float, old: float, advantage: float, low: float, high: float
) -> tuple[float, bool]:
    ratio = math.exp(new - old)
    limited = min(max(ratio, 1 - low), 1 + high) * advantage
    return -min(ratio * advantage, limited), limited < ratio * advantage


def test_2000_random_tokens_match_a_plain_python_reference_in_loss_clipping_and_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    new_BT = torch.randn(20, 100, dtype=torch.float64, generator=generator).requires_grad_()
    old_BT = new_BT.detach() + 0.3 * torch.randn(20, 100, dtype=torch.float64, generator=generator)
    gain_BT = torch.randn(20, 100, dtype=torch.float64, generator=generator)
    result = clipped_policy_loss(new_BT, old_BT, gain_BT, clip_low=0.2, clip_high=0.28)
    (grad_BT,) = torch.autograd.grad(result["policy_loss"].sum(), new_BT)
    step = 1e-6
    clipped = 0
    for b in range(20):
        for t in range(100):
            new, old, gain = new_BT[b, t].item(), old_BT[b, t].item(), gain_BT[b, t].item()
            loss, is_clipped = reference_loss(new, old, gain, 0.2, 0.28)
            assert result["policy_loss"][b, t].item() == pytest.approx(loss, rel=1e-12)
            assert result["clip_fraction"][b, t].item() == is_clipped
            assert result["ratio"][b, t].item() == pytest.approx(math.exp(new - old), rel=1e-12)
            rise = (
                reference_loss(new + step, old, gain, 0.2, 0.28)[0]
                - reference_loss(new - step, old, gain, 0.2, 0.28)[0]
            )
            assert grad_BT[b, t].item() == pytest.approx(rise / (2 * step), abs=1e-6)
            clipped += is_clipped
    assert 300 < clipped < 1000  # the data reaches both branches


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped", "slope"),
    [
        (1.5, 1.0, -1.2, 1, 0.0),
        (1.5, -1.0, 1.5, 0, 1.5),
        (0.5, 1.0, -0.5, 0, -0.5),
        (0.5, -1.0, 0.9, 1, 0.0),
        (1.0, 2.0, -2.0, 0, -2.0),
        (1.5, 0.0, 0.0, 0, 0.0),
    ],
)
def test_clip_low_01_and_clip_high_02_at_ratios_one_can_check_by_hand(
    ratio: float, advantage: float, loss: float, clipped: int, slope: float
) -> None:
    new_BT = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    result = clipped_policy_loss(
        new_BT,
        torch.zeros(1, 1, dtype=torch.float64),
        torch.tensor([[advantage]], dtype=torch.float64),
        clip_low=0.1,
        clip_high=0.2,
    )
    (grad_BT,) = torch.autograd.grad(result["policy_loss"].sum(), new_BT)
    assert result["policy_loss"].item() == pytest.approx(loss)
    assert result["clip_fraction"].item() == clipped
    assert grad_BT.item() == pytest.approx(slope)


@pytest.mark.parametrize("log_ratio", [89.0, -89.0, 1e4, -1e4])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_log_ratio_that_exp_cannot_hold_gives_a_finite_loss_and_no_gradient(
    log_ratio: float, advantage: float
) -> None:
    """e^89 is beyond float32; the ratio ends at e^20, about 4.85e8."""
    new_BT = torch.tensor([[log_ratio, 0.0]], requires_grad=True)
    gain_BT = torch.full((1, 2), advantage)
    result = clipped_policy_loss(new_BT, torch.zeros(1, 2), gain_BT, clip_low=0.2, clip_high=0.2)
    (grad_BT,) = torch.autograd.grad(result["policy_loss"].sum(), new_BT)
    assert grad_BT.tolist() == [[0.0, -advantage]]
    assert result["policy_loss"].isfinite().all()
    assert result["ratio"][0, 0].item() == pytest.approx(math.exp(math.copysign(20, log_ratio)))
