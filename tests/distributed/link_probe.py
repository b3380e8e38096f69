"""Workers whose training and rollout are apart, as the tests of links drive them."""

import os
import signal
import time
from typing import Any

from reshard_probe import _change
from shards_messages import Answer, Case
from shards_probe import _ask, _ordinary_engine

from mindrl.errors import MindrlError
from mindrl.launch.rollout_worker import build_rollout_worker
from mindrl.launch.worker import build_worker
from mindrl.memory.schedule import Phase
from mindrl.platform.device import Platform
from mindrl.preflight.run_shardings import RunPlan, RunShardings

Prompts = list[list[int]]


class _Obeying:
    """Obeys as a worker does, and says what it raised on purpose."""

    worker: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.worker, name)

    def tried(self, method: str, *arguments: Any) -> tuple[str, float]:
        """Call a method of the worker; returns what it raised, if it did, and its seconds."""
        began, said = time.monotonic(), ""
        try:
            getattr(self.worker, method)(*arguments)
        except MindrlError as error:
            said = str(error)
        return said, time.monotonic() - began

    def process(self) -> int:
        return os.getpid()


class LinkedTrainer(_Obeying):
    """A training worker whose weights can be changed without a batch."""

    def __init__(self, plan: RunPlan, platform: Platform) -> None:
        self.worker = build_worker(plan, platform)
        self.frozen = RunShardings(plan=plan).source.frozen

    def change(self, update: int) -> None:
        """Change every weight that learns."""
        self.worker.sharding_manager.enter(Phase.SEND)
        _change(self.worker.models["actor"].engine, update, self.frozen)

    def region_bytes(self) -> dict[str, int]:
        """Return what lies on the device, by its storages."""
        found = self.worker.device.ledger.region_bytes()
        return {region.value: nbytes for region, nbytes in found.items()}

    def through(self, phases: list[str]) -> list[dict[str, int]]:
        """Enter phases in turn; returns what lies on the device in each."""
        seen = []
        for phase in phases:
            self.worker.sharding_manager.enter(Phase(phase))
            seen.append(self.region_bytes())
        return seen


class LinkedReplica(_Obeying):
    """A rollout worker that can be told to die."""

    def __init__(self, plan: RunPlan, platform: Platform) -> None:
        self.worker = build_rollout_worker(plan, platform)

    def ask(self, prompts: Prompts) -> list[Answer]:
        """Ask the engine itself, greedily."""
        return _ask(self.worker.inference_model.llm, prompts)

    def region_bytes(self) -> dict[str, int]:
        found = self.worker.ledger.region_bytes()
        return {region.value: nbytes for region, nbytes in found.items()}

    def die_in_next_transfer(self, tensors: int) -> None:
        """Be killed as soon as so many tensors have arrived."""
        make, left = self.worker.inference_model.weight_sink, [tensors]

        def dying(kept: str | None = None) -> Any:
            sink = make(kept)
            close = sink.close

            def closing(name: str) -> None:
                close(name)
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

            sink.close = closing
            return sink

        self.worker.inference_model.weight_sink = dying


def loaded_answers(case: Case, folders: list[str], prompts: Prompts) -> list[list[Answer]]:
    """Ask engines that loaded a folder each."""
    return [_ask(_ordinary_engine(case, folder), prompts) for folder in folders]
