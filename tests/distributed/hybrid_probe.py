"""A real worker whose members the tests use; see forked_workers.start."""

from collections.abc import Sequence
from typing import Any

from mindrl.launch.worker import build_worker
from mindrl.memory.schedule import Phase
from mindrl.platform.device import Platform
from mindrl.preflight.run_shardings import RunPlan


class HybridProbe:
    """Passes calls on to the worker, and works with its members."""

    def __init__(self, plan: RunPlan, platform: Platform) -> None:
        self.worker = build_worker(plan, platform)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def classes(self) -> dict[str, list[str]]:
        """Return the names of each member's classes, from its own to `object`."""
        members = ("model", "optimizer", "inference_model", "sharding_manager")
        found = {name: type(getattr(self.worker, name)).__mro__ for name in members}
        return {name: [each.__name__ for each in classes] for name, classes in found.items()}

    def hold_optimizer(self) -> None:
        """Replace the step of the worker's optimizer by nothing."""
        self.worker.optimizer.step = lambda: None

    def release_optimizer(self) -> None:
        """Undo `hold_optimizer`."""
        del self.worker.optimizer.step

    def last_logprobs(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Switch by the sharding manager, and ask the inference model."""
        self.worker.sharding_manager.enter(Phase.ROLLOUT)
        return self.worker.inference_model.next_logprobs(rows, 1.0)

    def weights_moved(self) -> float:
        """Return how far the model's weights are from those of the first call, at the most."""
        self.worker.sharding_manager.enter(Phase.FORWARD)
        weights = self.worker.model.local_tensors()
        if "first" not in vars(self):
            self.first = {name: each.clone() for name, each in weights.items()}
        return max(float((each - self.first[name]).abs().max()) for name, each in weights.items())
