"""Training state of a model besides its weights: gradients, optimizer and schedule.

The optimizer works on plain tensors that share the storages of the DTensors.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from mindrl.config.role import LearningConfig
from mindrl.training.engine import StatePart
from mindrl.training.learning_rate import learning_rate


class Learning:
    """Gradients of a model and the optimizer of its weights, for this rank's own parts."""

    def __init__(
        self,
        parameters: Mapping[str, DTensor],
        copies: Mapping[str, int],
        learning: LearningConfig,
        updates: int,
        *,
        moved: Iterable[Tensor] = (),
    ) -> None:
        """Allocate gradients and moments for a run of `updates` optimizer steps.

        `copies` maps each parameter to the number of ranks that hold the same part. Parameters that
        require no gradient get neither. Further tensors `moved` are part of the weights' state.
        """
        self.learning, self.updates_of_run, self.updates = learning, updates, 0
        self.copies = copies
        learning_ones = {name: each for name, each in parameters.items() if each.requires_grad}
        self.leaves = {name: nn.Parameter(each.to_local()) for name, each in learning_ones.items()}
        self._frozen = [
            *(each.to_local().detach() for each in parameters.values() if not each.requires_grad),
            *moved,
        ]
        for name, leaf in self.leaves.items():
            leaf.grad = torch.zeros_like(leaf)
            # The backward pass adds into an existing gradient.
            parameters[name].grad = _alike(parameters[name], leaf.grad)
        self.optimizer = torch.optim.AdamW(
            self._groups(),
            lr=learning.lr,
            betas=learning.adam_betas,
            eps=learning.adam_eps,
            # Torch's default on devices makes the roots of all second moments at the same time: as
            # many bytes as the weights, which the memory plan lacks. Those of one tensor after
            # another take less than the gathered weights and gradients of a pass.
            foreach=False,
        )
        # A worker's memory is planned before the first step and must not change afterwards.
        for leaf in self.leaves.values():
            moments = {kind: torch.zeros_like(leaf) for kind in ("exp_avg", "exp_avg_sq")}
            self.optimizer.state[leaf] = {"step": torch.tensor(0.0), **moments}

    def zero_gradients(self) -> None:
        """Zero the gradients at the start of a step."""
        torch._foreach_zero_(self._gradients)

    def join(self, names: Collection[str], group: dist.ProcessGroup | None) -> None:
        """Sum the gradients of a parameter's copies, on this rank and over `group`."""
        gradients = [self.leaves[name].grad for name in names if name in self.leaves]
        first, *others = (each for each in gradients if each is not None)
        for other in others:
            first += other
        if group is not None:
            dist.all_reduce(first, group=group)
        for other in others:
            other.copy_(first)

    def step(self, losses: Sequence[Tensor]) -> dict[str, float]:
        """Take the optimizer step, or skip it if a loss or the gradient norm is not finite.

        A collective over all ranks: if one rank must skip the step, all do. See
        `TrainingEngine.train_step`.
        """
        has_loss = all(bool(each.isfinite().all()) for each in losses)
        device = self._gradients[0].device
        squares = [
            gradient.square().sum() / self.copies[name]
            for name, gradient in zip(self.leaves, self._gradients, strict=True)
        ]
        unsure = torch.tensor(float(not has_loss), device=device)
        sums = torch.stack([torch.stack(squares).sum(), unsure])
        dist.all_reduce(sums)
        grad_norm, bad_losses = math.sqrt(max(float(sums[0]), 0.0)), float(sums[1])
        is_finite = math.isfinite(float(sums[0])) and bad_losses == 0
        lr = learning_rate(self.learning, self.updates, self.updates_of_run)
        if is_finite:
            self._take(lr, grad_norm)
        metrics = {"grad_norm": grad_norm, "lr": lr, "skipped": float(not is_finite)}
        if not has_loss:
            metrics["nonfinite/loss"] = 1.0
        if not all(bool(square.isfinite()) for square in squares):
            metrics["nonfinite/gradient"] = 1.0
        return metrics

    def complete_weights(self) -> None:
        """Do nothing: an update changes the parts that FSDP gathers in each pass."""

    def restore(self, updates: int) -> None:
        """Set the number of updates taken; the moments keep their values."""
        self.updates = updates
        for state in self.optimizer.state.values():
            state["step"].fill_(float(updates))

    def state(self, part: StatePart) -> Iterator[Tensor]:
        """Yield the tensors of one part of the training state."""
        match part:
            case StatePart.PARAMETERS:
                yield from (leaf.data for leaf in self.leaves.values())
                yield from self._frozen
            case StatePart.GRADIENTS:
                yield from self._gradients
            case StatePart.OPTIMIZER:
                for leaf in self.leaves.values():
                    yield from self.moments(leaf).values()

    def moments(self, leaf: Tensor) -> dict[str, Tensor]:
        """Return both moments of a leaf."""
        state = self.optimizer.state[leaf]
        return {kind: state[kind] for kind in ("exp_avg", "exp_avg_sq")}

    @property
    def _gradients(self) -> list[Tensor]:
        return [leaf.grad for leaf in self.leaves.values() if leaf.grad is not None]

    def _take(self, lr: float, grad_norm: float) -> None:
        bound = self.learning.clip_grad
        scale = bound / (grad_norm + 1e-6) if bound else 1.0
        if scale < 1.0:
            torch._foreach_mul_(self._gradients, scale)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.updates += 1

    def _groups(self) -> list[dict[str, object]]:
        """Return parameter groups without weight decay for vectors, as in Megatron."""
        matrices = [leaf for leaf in self.leaves.values() if leaf.dim() > 1]
        vectors = [leaf for leaf in self.leaves.values() if leaf.dim() == 1]
        groups = ((matrices, self.learning.weight_decay), (vectors, 0.0))
        return [{"params": each, "weight_decay": decay} for each, decay in groups if each]


def _alike(parameter: DTensor, local: Tensor) -> DTensor:
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
