"""Settings of the run and the layout for one model, for every training engine."""

from dataclasses import dataclass, field

from mindrl.config.images import ImageConfig
from mindrl.config.megatron_training import MegatronTrainingConfig
from mindrl.config.role import LearningConfig, RouterReplay
from mindrl.config.teacher import Candidates
from mindrl.layouts.layout import TrainLayout
from mindrl.models.adapters import LowRank
from mindrl.models.decoder import Head
from mindrl.platform.attention import Kernel
from mindrl.platform.rendezvous import World


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How an engine builds and computes this rank's part of a model."""

    layout: TrainLayout
    """Parallel sizes and rank order."""
    training: MegatronTrainingConfig
    learning: LearningConfig
    device_type: str
    attention: Kernel
    """Causal attention kernel of the device."""
    head: Head = "vocabulary"
    """What the model predicts for each token."""
    temperature: float = 1.0
    """Divides the logits over the vocabulary."""
    removes_padding: bool = True
    """Whether sequences are packed; False pads each to the longest."""
    shares_prompts: bool = False
    """Whether sequences of a micro-batch with the same prompt share its computation."""
    logprob_chunk_tokens: int = 1024
    """Number of tokens with logits in memory at a time."""
    candidates: Candidates | None = None
    """Most probable tokens that a forward pass also returns at each position; None for none."""
    batch_invariant: bool = False
    """Whether log-probs are computed as in the rollout engine: by one operator, from whole rows."""
    low_rank: LowRank | None = None
    """Adapters that are trained in place of the weights."""
    adapter_folder: str | None = None
    """PEFT folder with the adapters' initial values; None draws them."""
    images: ImageConfig = field(default_factory=ImageConfig)
    """Where the pictures of sequences are, for a model with a vision tower."""
    router_replay: RouterReplay = "none"
    """Which pass chooses the experts of an update's tokens."""
    world: World | None = None
    """Ranks of the model; None if they are all ranks."""
