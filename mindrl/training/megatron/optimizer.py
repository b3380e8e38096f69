"""Megatron's optimizer and learning-rate schedule."""

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.role import LearningConfig


def build_optimizer(
    chunks: Sequence[DistributedDataParallel],
    learning: LearningConfig,
    training: MegatronTrainingConfig,
    updates: int,
) -> tuple[MegatronOptimizer, OptimizerParamScheduler]:
    """Build the optimizer of this rank's parameters, and its schedule over a run of updates."""
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=learning.lr,
            min_lr=learning.min_lr,
            weight_decay=learning.weight_decay,
            adam_beta1=learning.adam_beta1,
            adam_beta2=learning.adam_beta2,
            adam_eps=learning.adam_eps,
            clip_grad=learning.clip_grad,
            bf16=training.bf16,
            params_dtype=torch.bfloat16 if training.bf16 else torch.float32,
            use_distributed_optimizer=training.use_distributed_optimizer,
        ),
        list(chunks),
    )
    allocate_moments(optimizer)
    warmup_updates = int(learning.lr_warmup_fraction * updates)
    schedule = OptimizerParamScheduler(
        optimizer,
        # The first update has a share of the peak too, and the one behind the warm-up the whole.
        init_lr=learning.lr / (warmup_updates + 1),
        max_lr=learning.lr,
        min_lr=learning.min_lr,
        lr_warmup_steps=warmup_updates,
        # The schedule wants a decay that outlasts the warm-up.
        lr_decay_steps=max(updates, warmup_updates + 1),
        lr_decay_style=learning.lr_decay_style,
        start_wd=learning.weight_decay,
        end_wd=learning.weight_decay,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
    return optimizer, schedule


def take_step(
    optimizer: MegatronOptimizer, schedule: OptimizerParamScheduler, device_type: str
) -> dict[str, float]:
    """Take one optimizer step, or none where the norm of the gradient is not finite.

    A collective over all ranks, which agree: what one of them cannot take, none takes. A step that
    is not taken changes no weight, no moment and no learning rate.

    Args:
        optimizer: The gradients of the update are in its parameters' buffers.
        schedule: Goes on by one update.
        device_type: Where collectives run.

    Returns:
        `grad_norm` before clipping, `lr` of this update, and `skipped`: 1 for a step not taken.
    """
    # Megatron's step clips and updates in one go, whatever the norm is: ask before.
    optimizer.prepare_grads()
    grad_norm = float(optimizer.get_grad_norm())
    finite = torch.tensor(int(math.isfinite(grad_norm)), device=device_type)
    dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    lr = float(optimizer.param_groups[0]["lr"])
    if finite:
        optimizer.step()
        schedule.step(increment=1)
    return {"grad_norm": grad_norm, "lr": lr, "skipped": float(not finite)}


def allocate_moments(optimizer: MegatronOptimizer) -> None:
    """Give Adam its moments, zero, which it would otherwise make in its first step.

    The memory of a worker is planned before the first step, and then stays as it is.
    """
    for part in getattr(optimizer, "chained_optimizers", [optimizer]):
        if part.is_stub_optimizer:  # This rank has no parameters of that kind.
            continue
        part.init_state_fn(part.optimizer, part.config)
        if isinstance(part.optimizer, torch.optim.Adam):
            # A state that is not empty must hold all of it; other versions count in the group.
            for state in part.optimizer.state.values():
                state.setdefault("step", torch.tensor(0.0))
