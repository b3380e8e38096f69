"""All models of a run and its rollout engine in one process; they take turns on the device."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mindrl.batch.prompts import PlacedImage
from mindrl.batch.rollouts import Responses
from mindrl.memory.schedule import Phase
from mindrl.observability.timing import StageTimer
from mindrl.rollout.engine import Request, RolloutEngine, Sampling
from mindrl.training.engine import TrainingEngine
from mindrl.workers.training_worker import TrainingWorker


@dataclass(kw_only=True)
class ActorHybridWorker(TrainingWorker):
    """Generates, scores and trains on one device; see `TrainingWorker`.

    `sharding_manager` copies the weights of `model` into `inference_model`, and gives the device to
    one of them at a time.
    """

    inference_model: RolloutEngine
    """Generates responses with the actor's weights."""
    timer: StageTimer = field(default_factory=StageTimer)
    """Times the engine's generation."""

    @property
    def model(self) -> TrainingEngine:
        """The actor's training engine on this rank."""
        return self.models["actor"].engine

    @property
    def optimizer(self) -> object:
        """The optimizer of the actor's weights on this rank."""
        return self.model.optimizer

    def generate_sequences(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        images: Sequence[Sequence[PlacedImage]] = (),
    ) -> Responses:
        """Generate a response to each of this replica's prompts, in order."""
        self._begin_rollout()
        with self.timer("generate"):
            responses = self.inference_model.generate(prompts, sampling, seeds, images)
        self._note("rollout_logprobs", responses.logprobs_N)
        self._keep_routes()
        return responses

    def begin_sequences(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Start this replica's requests, which `advance_sequences` completes."""
        self._begin_rollout()
        self.inference_model.begin(requests, sampling)

    def advance_sequences(
        self, steps: int, more: Sequence[Request], until: int | None = None
    ) -> tuple[list[int], Responses]:
        """Add requests and run steps of the engine, as `RolloutEngine.advance`.

        Returns the indices of requests that were completed, and their responses.
        """
        with self.timer("generate"):
            whole = self.inference_model.advance(steps, more, until)
        return whole, self.inference_model.answers(whole)

    def take_sequences(self) -> Responses:
        """Return the tokens sampled for this replica's requests, in order."""
        responses = self.inference_model.take_back()
        self._keep_routes()
        self._note("rollout_logprobs", responses.logprobs_N)
        return responses

    def begin_save(self, folder: str) -> None:
        """Write the state of the trained models to a folder during the next rollout.

        The movable part is on the host then.
        """
        self.saver.request(Path(folder))

    def flush_metrics(self) -> dict[str, float]:
        """Add the seconds of generation and the number of preemptions."""
        return {
            **super().flush_metrics(),
            "seconds/generate": 0.0,
            **self.timer.flush(),
            **self.inference_model.flush_counts(),
        }

    def _keep_routes(self) -> None:
        """Keep the experts of sampled tokens, which the actor's passes replay."""
        if routes := self.inference_model.take_routes():
            self._routes.keep(routes)

    def _begin_rollout(self) -> None:
        self.sharding_manager.enter(Phase.ROLLOUT)
        self.saver.start()
