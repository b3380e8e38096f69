"""PyTorch's own engine on a network of the transformers library."""

from mindrl.training.archon.engine import ArchonEngine
from mindrl.training.archon.network import NetworkSettings, StagePart
from mindrl.training.fsdp.network import HuggingFaceNetwork


class FsdpEngine(ArchonEngine):
    """This rank's part of a model of any family; see `TrainingEngine`."""

    def network_of(self, part: StagePart, settings: NetworkSettings) -> HuggingFaceNetwork:
        """Return the model, without memory."""
        return HuggingFaceNetwork(self.folder, self.description, part, settings)
