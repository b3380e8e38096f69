"""The rollout engine's memory, as the account of the device sees it."""

from mindrl.rollout.engine import EngineTag, RolloutEngine


class RolloutRegion:
    """The weights of a rollout engine, or its KV cache."""

    keeps = False

    def __init__(self, engine: RolloutEngine, tag: EngineTag) -> None:
        """Speak for a part of the engine."""
        self.engine = engine
        self.tag: EngineTag = tag
        self.nbytes = engine.nbytes(tag)

    def device_bytes(self) -> int:
        """Return what is on the device now."""
        return self.engine.device_bytes(self.tag)

    def onload(self) -> int:
        """Allocate it; nothing is copied."""
        self.engine.onload(self.tag)
        return 0

    def offload(self) -> int:
        """Take the whole engine off the device, which knows no other way; nothing is copied."""
        self.engine.offload()
        return 0

    def changed(self) -> None:
        """Do nothing: no copy is kept."""
