"""All models of a run and its engine in one process: each has the device for its turn."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mindrl.batch.rollouts import Responses
from mindrl.memory.schedule import Phase
from mindrl.observability.timing import StageTimer
from mindrl.rollout.engine import Request, RolloutEngine, Sampling
from mindrl.workers.training_worker import TrainingWorker


@dataclass(kw_only=True)
class IntegratedWorker(TrainingWorker):
    """Generates, reads and learns on one device; see `TrainingWorker`."""

    rollout: RolloutEngine
    """Answers prompts with the actor's weights."""
    timer: StageTimer = field(default_factory=StageTimer)
    """Of the engine's answers."""

    def generate_sequences(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> Responses:
        """Answer this replica's prompts, in order."""
        self._begin_rollout()
        with self.timer("generate"):
            responses = self.rollout.generate(prompts, sampling, seeds)
        self._note("rollout_logprobs", responses.logprobs_N)
        return responses

    def begin_sequences(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Take this replica's requests, which `advance_sequences` answers."""
        self._begin_rollout()
        self.rollout.begin(requests, sampling)

    def advance_sequences(self, steps: int, more: Sequence[Request]) -> list[int]:
        """Let the engine take steps, with more requests behind those that it has.

        Returns the places of requests that are now answered whole.
        """
        with self.timer("generate"):
            return self.rollout.advance(steps, more)

    def take_sequences(self) -> Responses:
        """Return what was drawn for this replica's requests, in order."""
        responses = self.rollout.take_back()
        self._note("rollout_logprobs", responses.logprobs_N)
        return responses

    def begin_save(self, folder: str) -> None:
        """Have the state of the models that change written into a folder in the next rollout.

        It lies on the host then, where it may leave the device.
        """
        self.saver.request(Path(folder))

    def flush_metrics(self) -> dict[str, float]:
        """Return also the seconds of the engine's answers, and how often its cache was full."""
        return {
            **super().flush_metrics(),
            "seconds/generate": 0.0,
            **self.timer.flush(),
            "throughput/preemptions": self.rollout.flush_preemptions(),
        }

    def _begin_rollout(self) -> None:
        self.sharding_manager.enter(Phase.ROLLOUT)
        self.saver.start()
