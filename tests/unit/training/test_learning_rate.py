"""The learning rate of each step equals Megatron's own schedule."""

import pytest
import torch

# Not in the test: after an import of distutils, setuptools refuses to be imported.
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from mindrl.config.role import LearningConfig
from mindrl.training.learning_rate import learning_rate


def test_a_linear_decay_behind_a_warm_up_of_two_of_ten_steps() -> None:
    learning = LearningConfig(lr=0.3, lr_decay_style="linear", lr_warmup_fraction=0.2)
    found = [learning_rate(learning, step, 10) for step in range(12)]
    assert found[:3] == pytest.approx([0.1, 0.2, 0.3])
    assert found[6] == pytest.approx(0.15)
    assert found[10:] == [0.0, 0.0]


@pytest.mark.parametrize("style", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0.0, 0.25, 1.0])
def test_every_step_has_megatrons_rate(style: str, warmup: float) -> None:
    learning = LearningConfig(lr=1e-2, min_lr=1e-3, lr_decay_style=style, lr_warmup_fraction=warmup)
    steps, updates = int(warmup * 12), 12
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = OptimizerParamScheduler(
        optimizer,
        init_lr=learning.lr / (steps + 1),
        max_lr=learning.lr,
        min_lr=learning.min_lr,
        lr_warmup_steps=steps,
        lr_decay_steps=max(updates, steps + 1),
        lr_decay_style=style,
        start_wd=0.0,
        end_wd=0.0,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
    for step in range(updates + 2):
        rate = optimizer.param_groups[0]["lr"]
        assert learning_rate(learning, step, updates) == pytest.approx(rate, rel=1e-12), step
        schedule.step(increment=1)
