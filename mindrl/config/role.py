"""The sections of the roles, `actor_config` first, and what they share: training and layout."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.archon import ArchonConfig
from mindrl.config.lora import LoRAConfig
from mindrl.config.section import (
    SECTION,
    Coefficient,
    Fraction,
    PathText,
    PositiveInt,
    Sequences,
    Tokens,
    Weight,
)


@dataclass(frozen=True, kw_only=True, config=SECTION)
class LearningConfig:
    """What a role that is trained needs: recomputation, experts, optimizer."""

    recompute_granularity: Literal["selective", "full"] | None = None
    """Activations that the backward pass makes again: those of attention, or of whole layers. None
    keeps all. Of Megatron; of the other engines `archon.ac_mode` says it."""
    recompute_method: Literal["uniform", "block"] | None = None
    """With `full`: runs of `recompute_num_layers` layers each, which must divide the layers of each
    chunk; or that many single layers of each chunk."""
    recompute_num_layers: PositiveInt | None = None
    """With `full`: see `recompute_method`."""
    moe_aux_loss_coeff: Coefficient = 0.0
    """Weight of the loss that keeps the experts of a layer equally busy."""
    moe_router_load_balancing_type: Literal["aux_loss", "seq_aux_loss"] = "aux_loss"
    """Within what they are to be: `aux_loss`, one micro-batch, so that the gradient depends on the
    cut into micro-batches; `seq_aux_loss`, each sequence (DeepSeek-V3, arXiv 2412.19437, eq. 17),
    the mean over those of a micro-batch."""
    moe_grouped_gemm: bool = False
    """Multiply by all experts of a rank and layer at once, in bfloat16; False takes them one after
    the other."""
    lr: Annotated[float, Field(gt=0.0, le=10.0)] = 1e-6
    """Peak learning rate."""
    min_lr: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Learning rate that the decay ends at: that of the step after the last."""
    lr_decay_style: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after the warm-up."""
    lr_warmup_fraction: Fraction = 0.0
    """Share of all optimizer steps, w of them, in which the learning rate rises linearly: step i of
    them takes i/(w + 1) of the peak, and the first step behind them all of it."""
    weight_decay: Annotated[float, Field(ge=0.0, le=100.0)] = 0.01
    """Decoupled weight decay (AdamW)."""
    clip_grad: Annotated[float, Field(ge=0.0, le=1e12)] = 1.0
    """Largest global gradient norm; longer gradients are scaled down. 0 clips nothing."""
    adam_beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Decay of Adam's first moment."""
    adam_beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay of Adam's second moment."""
    adam_eps: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-8
    """Added to the denominator of Adam's step."""
    archon: ArchonConfig = ArchonConfig()
    """The engine of PyTorch alone, where `backend` names it."""


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
    """The engine and the training layout as an allocation string, such as `megatron:d4p2t2` or
    `archon:d4t2`, in place of the keys that it stands for; see
    [Allocation strings](allocation-strings.md). Empty takes `megatron` and the keys."""
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
    micro_batch_size: Sequences = 1
    """Sequences per forward and backward pass of one data-parallel rank, unless
    `rl_config.use_dynamic_bsz`."""
    logprob_chunk_tokens: Tokens = 1024
    """Tokens whose logits are in memory at a time."""
    lora: LoRAConfig = LoRAConfig()
    """Adapters of low rank that learn in place of the weights; see
    [LoRA](../how-to/train-with-lora.md)."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RoleLayoutConfig:
    """The training layout of a role beside the actor; what is not given is the actor's."""

    backend: str = ""
    """Engine and layout as an allocation string, as `actor_config.backend`. Empty takes the actor's
    engine, and its sizes or the keys below."""
    tensor_model_parallel_size: PositiveInt | None = None
    """Tensor-parallel size. None takes the actor's."""
    pipeline_model_parallel_size: PositiveInt | None = None
    """Pipeline stages. None takes the actor's."""
    virtual_pipeline_model_parallel_size: PositiveInt | None = None
    """Chunks of layers of each stage. None takes the actor's."""
    num_layer_list: tuple[PositiveInt, ...] | None = None
    """Layers of each stage or chunk, as `actor_config.num_layer_list`. None takes the actor's where
    stages and chunks are as many as the actor's, and else cuts evenly."""
    context_parallel_size: PositiveInt | None = None
    """Ranks that share the tokens of each sequence. None takes the actor's."""
    expert_model_parallel_size: PositiveInt | None = None
    """Ranks that share the experts of a layer. None takes the actor's."""
    expert_tensor_parallel_size: PositiveInt | None = None
    """Ranks that each expert is cut over. None takes the actor's."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RefConfig(RoleLayoutConfig):
    """The reference: model folder, layout. There is one where `rl_config.init_kl_coef` is not 0."""

    load: PathText | None = None
    """Folder of the reference model. None takes `actor_config.load`."""
    offload_param: bool = True
    """Keep the weights on the host while no log-probs of the reference are computed."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class CriticConfig(RoleLayoutConfig, LearningConfig):
    """The critic of PPO. Left out by default; there with `rl_config.adv_estimator: gae`."""

    load: PathText | None = None
    """Folder of the initial model: of a token classifier with one label, or of a language model,
    whose value head is then drawn at random. None takes `actor_config.load`."""
    save: PathText | None = None
    """Folder for the exported critic. None writes to `critic` in the run folder."""
    micro_batch_size: Sequences | None = None
    """Sequences per forward and backward pass of one data-parallel rank. None takes
    `actor_config.micro_batch_size`."""
    offload_train_param: bool = True
    """Keep the critic's weights on the host while they are not used."""
    offload_train_grad: bool = True
    """Release the critic's gradient buffers while it does not update."""
    offload_train_optimizer: bool = True
    """Keep the critic's optimizer state on the host while it does not update."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RewardConfig(RoleLayoutConfig):
    """A neural reward model, beside the verifiers or in their place. Left out by default."""

    load: PathText
    """Folder of a sequence classifier with one label, with the actor's vocabulary."""
    weight: Weight = 1.0
    """Weight of its score, which is added to the weighted sum of the verifiers."""
    micro_batch_size: Sequences | None = None
    """Sequences per forward pass of one data-parallel rank. None takes
    `actor_config.micro_batch_size`."""
    offload_param: bool = True
    """Keep the weights on the host while no responses are scored."""
