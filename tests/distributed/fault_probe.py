"""A real worker in whose models single numbers can be planted; see forked_workers.start."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from fault_messages import Kept, Plant
from torch import Tensor

from mindrl.algorithms.losses import LossInputs, LossTerms
from mindrl.launch.worker import build_worker
from mindrl.memory.schedule import Phase
from mindrl.platform.device import Platform
from mindrl.preflight.run_shardings import RunPlan

PHASES = {"actor": Phase.TRAIN, "critic": Phase.CRITIC_TRAIN}
READ_IN = {
    "actor_logprobs": "actor",
    "ref_logprobs": "ref",
    "critic_values": "critic",
    "reward_scores": "reward",
    "padding": "actor",
}


class PlantedWorker:
    """Obeys as the worker does; each plant is used up by the next number of its place."""

    def __init__(self, plan: RunPlan, platform: Platform) -> None:
        self.worker = build_worker(plan, platform)
        self.plants: list[Plant] = []
        self.fired = 0
        for role, model in self.worker.models.items():
            model.engine.forward = self._reading(role, model.engine.forward)
            if updates := model.updates:
                planted = replace(updates, loss=self._losing(role, updates.loss))
                self.worker.models[role] = replace(model, updates=planted)
        self.worker.inference_model.generate = self._generating(
            self.worker.inference_model.generate
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def plant(self, plants: list[Plant]) -> None:
        """Take what concerns this rank."""
        self.plants, self.fired = [each for each in plants if each.rank == dist.get_rank()], 0

    def witnessed(self) -> int:
        """Return how many numbers were planted here."""
        return self.fired

    def kept(self, role: str) -> Kept:
        """Read all that the model of a role keeps."""
        self.worker.sharding_manager.enter(PHASES[role])
        engine = self.worker.models[role].engine
        sums = {name: _checksum(each) for name, each in engine.local_tensors().items()}
        for each in engine.state_slices():
            name = f"{each.kind} {each.tensor} {each.box}"
            sums[name] = _checksum(each.values(each.stored))
        return Kept(checksums=sums, updates=engine.updates)

    def _take(self, *places: str) -> float | None:
        for each in self.plants:
            if each.place in places:
                self.plants.remove(each)
                self.fired += 1
                return each.value
        return None

    def _reading(self, role: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        places = [place for place, whose in READ_IN.items() if whose == role]

        def planted(sequences: Any, *given: Any, at_end: bool = False) -> Any:
            read = forward(sequences, *given, at_end=at_end)
            (place,) = {each.place for each in self.plants} & set(places) or {None}
            value = None if place is None or read is None else self._take(place)
            if value is not None:
                shortest = int(sequences.lengths_B.argmin())
                # Of a sequence's last token, or of the place behind it.
                read[0][shortest, sequences.lengths_B[shortest] - int(place != "padding")] = value
            return read

        return planted

    def _losing(self, role: str, loss: Callable[..., LossTerms]) -> Callable[..., LossTerms]:
        def planted(inputs: LossInputs[Any]) -> LossTerms:
            if (factor := self._take(f"{role}_gradient")) is not None:
                inputs.outputs[0].register_hook(lambda gradient: gradient * factor)
            terms = loss(inputs)
            value = self._take(f"{role}_loss")
            # Added: the gradient stays as it was.
            return terms if value is None else replace(terms, loss=terms.loss + value)

        return planted

    def _generating(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        def planted(*given: Any) -> Any:
            responses = generate(*given)
            if (value := self._take("rollout_logprobs")) is not None:
                responses.logprobs_N[-1] = value
            return responses

        return planted


def _checksum(tensor: Tensor) -> str:
    # A copy: numpy would keep the storage from leaving the device.
    return hashlib.sha256(tensor.detach().clone().view(torch.uint8).numpy()).hexdigest()
