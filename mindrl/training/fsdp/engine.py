"""The PyTorch-native engine with networks of the transformers library."""

from mindrl.training.archon.engine import ArchonEngine
from mindrl.training.archon.network import NetworkSettings, StagePart
from mindrl.training.fsdp.network import HuggingFaceNetwork
from mindrl.training.fsdp.routers import follow_packs
from mindrl.training.fsdp.vision import VisionNetwork


class FsdpEngine(ArchonEngine):
    """Trains this rank's part of a model of any family; see `TrainingEngine`."""

    def network_of(self, part: StagePart, settings: NetworkSettings) -> HuggingFaceNetwork:
        """Return the network on the meta device."""
        if self.description.reads_images:
            images = self.settings.images
            return VisionNetwork(self.folder, self.description, part, settings, images)
        return HuggingFaceNetwork(self.folder, self.description, part, settings)

    def _follow_routes(self) -> list[int]:
        assert self.description.moe is not None, "validated: a mixture of a known family"
        (network,) = self.networks.values()
        return follow_packs(network, self.description.moe)
