"""All roles of a run in one process: the actor, and the reference where there is one."""

import logging
from dataclasses import dataclass
from pathlib import Path

from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Scored, Sequences
from mindrl.observability.memory import process_memory
from mindrl.training.model import ModelSettings
from mindrl.training.scoring import ReferenceModel
from mindrl.workers.actor_hybrid_worker import ActorHybridWorker, ActorSettings
from mindrl.workers.sharding_manager import Phase

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReferenceSettings:
    """Where the reference comes from and how it is run."""

    load: str
    model: ModelSettings
    temperature: float
    micro_batching: MicroBatching


class IntegratedWorker(ActorHybridWorker):
    """An actor that also holds the reference model, on the host while it is not used."""

    def __init__(self, actor: ActorSettings, reference: ReferenceSettings | None) -> None:
        """Build all roles; without a KL term there is no reference.

        Raises:
            ModelError: A model folder does not hold a supported model.
        """
        # The reference first: it leaves the device before the actor comes.
        self.reference_settings = reference
        self.reference = (
            None
            if reference is None
            else ReferenceModel(reference.load, reference.model, temperature=reference.temperature)
        )
        super().__init__(actor)

    def compute_ref_log_prob(self, sequences: Sequences) -> Scored | None:
        """Score this replica's sequences with the reference. Needs phase `forward`.

        Returns:
            None on all but the last pipeline stage.
        """
        self.sharding_manager.require(Phase.FORWARD)
        assert self.reference is not None
        assert self.reference_settings is not None
        return self.reference.compute_log_prob(sequences, self.reference_settings.micro_batching)

    def enter(self, phase: str) -> None:
        """Switch the device to a phase, by its name."""
        logger.info("phase %s", phase)
        self.sharding_manager.enter(Phase(phase))

    def export(self, folder: str) -> None:
        """Export the actor's weights to a Hugging Face folder."""
        self.save(Path(folder))

    def flush_metrics(self) -> dict[str, float]:
        """Return seconds and bytes of the last switches and this process's memory."""
        memory = process_memory()
        return self.sharding_manager.flush_metrics() | {
            "memory/rss_bytes": float(memory.rss_bytes),
            "memory/peak_rss_bytes": float(memory.peak_rss_bytes),
        }
