"""What the run and the layout add to a model, whichever engine trains it."""

from dataclasses import dataclass

from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.role import LearningConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.models.adapters import LowRank
from mindrl.models.decoder import Head
from mindrl.platform.attention import Kernel


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How this rank's part of a model is built and computes."""

    layout: TrainLayout
    """Who holds what."""
    training: MegatronTrainingConfig
    learning: LearningConfig
    device_type: str
    attention: Kernel
    """Of causal attention on the device."""
    head: Head = "vocabulary"
    """What the model says of a token."""
    temperature: float = 1.0
    """Divides the logits of a vocabulary."""
    removes_padding: bool = True
    """Sequences are packed one behind the other; False pads each to the longest."""
    logprob_chunk_tokens: int = 1024
    """Tokens whose logits exist at a time."""
    low_rank: LowRank | None = None
    """Adapters that learn in place of the weights."""
    adapter_folder: str | None = None
    """PEFT's, that they begin with; None draws them."""
