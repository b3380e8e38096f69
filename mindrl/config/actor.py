"""Section `actor_config`: the policy that is trained, its layout and its optimizer."""

from typing import Literal

from pydantic.dataclasses import dataclass

from mindrl.config.role import LearningConfig
from mindrl.config.section import SECTION, PathText, PositiveInt


@dataclass(frozen=True, kw_only=True, config=SECTION)
class ActorConfig(LearningConfig):
    """The actor: model folder, training layout, optimizer."""

    load: PathText
    """Folder of the initial model in Hugging Face format (config.json, safetensors)."""
    sizes: PathText | None = None
    """A config.json, or a folder with one, that says how large the model is: for checks and plans
    where `load` is not on the machine. None takes the shipped one of `load`'s name."""
    save: PathText | None = None
    """Folder for the exported model. None writes to `model` in the run folder. The best export by
    evaluation lies beside it, as `<folder>_best`."""
    backend: str = ""
    """The training layout as an allocation string, such as `megatron:d4p2t2`, in place of the keys
    that it stands for; see [Allocation strings](allocation-strings.md)."""
    tensor_model_parallel_size: PositiveInt = 1
    """Training tensor-parallel size."""
    pipeline_model_parallel_size: PositiveInt = 1
    """Training pipeline-parallel size: stages, run one forward, one backward."""
    virtual_pipeline_model_parallel_size: PositiveInt = 1
    """Chunks of layers of each stage; above 1 the stages are interleaved."""
    num_layer_list: tuple[PositiveInt, ...] | None = None
    """Layers of each stage, or of each chunk: those of the first chunk of all stages, then those of
    the second. None cuts evenly."""
    context_parallel_size: PositiveInt = 1
    """Ranks that share the tokens of each sequence."""
    context_parallel_algo: Literal["ulysses_cp_algo"] = "ulysses_cp_algo"
    """How they attend to each other's tokens: each gets all tokens of some heads for the while."""
    expert_model_parallel_size: PositiveInt = 1
    """Ranks that share the experts of a layer, each holding some of them."""
    expert_tensor_parallel_size: PositiveInt = 1
    """Ranks that each expert is cut over. 1 keeps experts whole; the engine's own default is
    `tensor_model_parallel_size`."""
    micro_batch_size: PositiveInt = 1
    """Sequences per forward and backward pass of one data-parallel rank, unless
    `rl_config.use_dynamic_bsz`."""
    logprob_chunk_tokens: PositiveInt = 1024
    """Tokens whose logits are in memory at a time."""
