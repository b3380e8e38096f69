"""Section `actor_config`: the policy that is trained, its layout and its optimizer."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.megatron_training import Fraction, PositiveInt
from mindrl.config.section import SECTION


@dataclass(frozen=True, kw_only=True, config=SECTION)
class ActorConfig:
    """The actor: model folder, training layout, optimizer."""

    load: str
    """Folder of the initial model in Hugging Face format (config.json, safetensors)."""
    save: str | None = None
    """Folder for the exported model. None writes to `model` in the run folder."""
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
    """Ranks that each expert is cut over. 1 keeps experts whole; Megatron's own default is
    `tensor_model_parallel_size`."""
    micro_batch_size: PositiveInt = 1
    """Sequences per forward and backward pass of one data-parallel rank, unless
    `rl_config.use_dynamic_bsz`."""
    logprob_chunk_tokens: PositiveInt = 1024
    """Tokens whose logits are in memory at a time."""
    recompute_granularity: Literal["selective", "full"] | None = None
    """Activations that the backward pass makes again: those of attention, or of whole layers. None
    keeps all."""
    recompute_method: Literal["uniform", "block"] | None = None
    """With `full`: runs of `recompute_num_layers` layers each, which must divide the layers of each
    chunk; or that many single layers of each chunk."""
    recompute_num_layers: PositiveInt | None = None
    """With `full`: see `recompute_method`."""
    moe_aux_loss_coeff: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of the loss that keeps the experts of a layer equally busy. It looks at one
    micro-batch at a time, so with it the gradient depends on the cut into micro-batches."""
    moe_grouped_gemm: bool = False
    """Multiply by all experts of a rank and layer at once, in bfloat16; False takes them one after
    the other."""
    lr: Annotated[float, Field(gt=0.0)] = 1e-6
    """Peak learning rate."""
    min_lr: Annotated[float, Field(ge=0.0)] = 0.0
    """Learning rate that the decay ends at."""
    lr_decay_style: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after the warm-up."""
    lr_warmup_fraction: Fraction = 0.0
    """Share of all optimizer steps in which the learning rate rises linearly from 0."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Decoupled weight decay (AdamW)."""
    clip_grad: Annotated[float, Field(ge=0.0)] = 1.0
    """Largest global gradient norm; longer gradients are scaled down. 0 clips nothing."""
    adam_beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Decay of Adam's first moment."""
    adam_beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay of Adam's second moment."""
    adam_eps: Annotated[float, Field(gt=0.0)] = 1e-8
    """Added to the denominator of Adam's step."""
