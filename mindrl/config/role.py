"""Sections of the roles, `actor_config` first, and what they share: training and layout."""

from typing import Annotated, Any, Literal

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
    SequenceCount,
    TokenCount,
    Weight,
    inherited_values,
)

RouterReplay = Literal["none", "R2", "R3"]
"""Which pass chooses the experts of an update's tokens."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class AdamConfig:
    """Options of the optimizer, under Megatron's names."""

    lr: Annotated[float, Field(gt=0.0, le=10.0)] = 1e-6
    """Peak learning rate."""
    min_lr: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Final learning rate of the decay: that of the step after the last."""
    weight_decay: Annotated[float, Field(ge=0.0, le=100.0)] = 0.01
    """Decoupled weight decay (AdamW)."""
    clip_grad: Annotated[float, Field(ge=0.0, le=1e12)] = 1.0
    """Maximum global gradient norm; longer gradients are scaled down. 0 disables clipping."""
    adam_beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    """Decay of Adam's first moment."""
    adam_beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    """Decay of Adam's second moment."""
    adam_eps: Annotated[float, Field(gt=0.0, le=1.0)] = 1e-8
    """Added to the denominator of Adam's step."""

    @property
    def adam_betas(self) -> tuple[float, float]:
        """The decays of both moments."""
        return self.adam_beta1, self.adam_beta2

    def optimizer_options(self) -> dict[str, Any]:
        """Return the keys of this class and their values, without those of a larger section."""
        return inherited_values(self, AdamConfig)


@dataclass(frozen=True, kw_only=True, config=SECTION)
class LearningConfig(AdamConfig):
    """Options of a trained role: recomputation, experts, optimizer."""

    recompute_granularity: Literal["selective", "full"] | None = None
    """Activations that the backward pass recomputes: those of attention, or of whole layers. None
    keeps all. For Megatron; other engines use `archon.ac_mode`."""
    recompute_method: Literal["uniform", "block"] | None = None
    """With `full`: `uniform` recomputes groups of `recompute_num_layers` layers, which must divide
    the layers of each chunk; `block` recomputes that many single layers of each chunk."""
    recompute_num_layers: PositiveInt | None = None
    """With `full`: see `recompute_method`."""
    moe_aux_loss_coeff: Coefficient = 0.0
    """Weight of the loss that balances the load of a layer's experts."""
    moe_router_load_balancing_type: Literal["aux_loss", "seq_aux_loss"] = "aux_loss"
    """Scope of the balance: `aux_loss`, one micro-batch, so that the gradient depends on the
    micro-batches; `seq_aux_loss`, each sequence (DeepSeek-V3, arXiv 2412.19437, eq. 17), as a mean
    over those of a micro-batch."""
    moe_grouped_gemm: bool = False
    """Multiply all experts of a rank and layer at once, in bfloat16; False multiplies them in
    sequence."""
    lr_decay_style: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after the warm-up."""
    lr_warmup_fraction: Fraction = 0.0
    """Fraction of all optimizer steps, w steps, in which the learning rate rises linearly: step i
    of them uses i/(w + 1) of the peak, and the first step after them the peak."""
    archon: ArchonConfig = ArchonConfig()
    """Options of PyTorch's own engine, if `backend` names it."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class ActorConfig(LearningConfig):
    """The actor: model folder, training layout, optimizer."""

    load: PathText
    """Folder of the initial model in Hugging Face format (config.json, safetensors)."""
    sizes: PathText | None = None
    """A config.json, or a folder with one, with the sizes of the model: for checks and plans if
    `load` is not on the machine. None uses the shipped file with `load`'s name."""
    save: PathText | None = None
    """Folder for the exported model. None writes to `model` in the run folder. The best export by
    evaluation is next to it, as `<folder>_best`."""
    backend: str = ""
    """The engine and the training layout as an allocation string, such as `megatron:d4p2t2` or
    `archon:d4t2`, instead of the keys that it sets; see [Allocation
    strings](allocation-strings.md). Empty uses `megatron` and the keys."""
    tensor_model_parallel_size: PositiveInt = 1
    """Training tensor-parallel size."""
    pipeline_model_parallel_size: PositiveInt = 1
    """Training pipeline-parallel size: number of stages, in a 1F1B schedule."""
    virtual_pipeline_model_parallel_size: PositiveInt = 1
    """Chunks of layers of each stage; with more than 1 the stages are interleaved."""
    num_layer_list: tuple[PositiveInt, ...] | None = None
    """Layers of each stage, or of each chunk: those of the first chunk of all stages, then those of
    the second. None divides evenly."""
    context_parallel_size: PositiveInt = 1
    """Number of ranks that split the tokens of each sequence."""
    context_parallel_algo: Literal["ulysses_cp_algo", "megatron_cp_algo", "hybrid_cp_algo"] = (
        "ulysses_cp_algo"
    )
    """Attention over the split sequence, of every role. `ulysses_cp_algo`: each rank temporarily
    receives all tokens of some heads, so it cannot have more ranks than heads. `megatron_cp_algo`:
    keys and values travel around a ring of the ranks. `hybrid_cp_algo`: around a ring of groups
    that trade heads."""
    ulysses_degree_in_cp: PositiveInt | None = None
    """With `hybrid_cp_algo`: number of ranks in a group that trades heads."""
    expert_model_parallel_size: PositiveInt = 1
    """Number of ranks that distribute the experts of a layer, each with some of them."""
    expert_tensor_parallel_size: PositiveInt = 1
    """Number of ranks that split each expert. 1 keeps experts whole; the engine's own default is
    `tensor_model_parallel_size`."""
    micro_batch_size: SequenceCount = 1
    """Sequences per forward and backward pass of one data-parallel rank, unless
    `rl_config.use_dynamic_bsz`."""
    logprob_chunk_tokens: TokenCount = 1024
    """Number of tokens whose logits are in memory at the same time."""
    router_replay: RouterReplay = "none"
    """Which experts the tokens of an update use, in a model with experts. `none`: each pass
    chooses. `R2`: those of the pass that computes the old log-probs. `R3`: those of the rollout
    engine, also in that pass. See [Router replay](../how-to/replay-routes.md)."""
    freeze_vision_tower: bool = False
    """Keep the weights of the vision tower, its merger included, as they are in `load`: they get no
    gradients and no optimizer state, and the features of a picture are computed once for all
    passes. Needs a model with a vision tower."""
    lora: LoRAConfig = LoRAConfig()
    """Low-rank adapters that are trained instead of the weights; see
    [LoRA](../how-to/train-with-lora.md)."""

    @property
    def ulysses(self) -> int | None:
        """`TrainLayout.ulysses` of every role with context parallelism."""
        alone = 1 if self.context_parallel_algo == "megatron_cp_algo" else None
        return self.ulysses_degree_in_cp or alone


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RoleLayoutConfig:
    """The training layout of a role other than the actor; the defaults are the actor's."""

    backend: str = ""
    """Engine and layout as an allocation string, as `actor_config.backend`. Empty uses the actor's
    engine, and its sizes or the keys below."""
    tensor_model_parallel_size: PositiveInt | None = None
    """Tensor-parallel size. None uses the actor's."""
    pipeline_model_parallel_size: PositiveInt | None = None
    """Pipeline stages. None uses the actor's."""
    virtual_pipeline_model_parallel_size: PositiveInt | None = None
    """Chunks of layers of each stage. None uses the actor's."""
    num_layer_list: tuple[PositiveInt, ...] | None = None
    """Layers of each stage or chunk, as `actor_config.num_layer_list`. None uses the actor's if the
    numbers of stages and chunks equal the actor's, and otherwise divides evenly."""
    context_parallel_size: PositiveInt | None = None
    """Number of ranks that split the tokens of each sequence. None uses the actor's."""
    expert_model_parallel_size: PositiveInt | None = None
    """Number of ranks that distribute the experts of a layer. None uses the actor's."""
    expert_tensor_parallel_size: PositiveInt | None = None
    """Number of ranks that split each expert. None uses the actor's."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RefConfig(RoleLayoutConfig):
    """The reference: model folder, layout. It exists if `rl_config.init_kl_coef` is not 0."""

    load: PathText | None = None
    """Folder of the reference model. None uses `actor_config.load`."""
    offload_param: bool = True
    """Keep the weights on the host except while log-probs of the reference are computed."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class CriticConfig(RoleLayoutConfig, LearningConfig):
    """The critic of PPO, with `rl_config.adv_estimator: gae`. Left out by default."""

    load: PathText | None = None
    """Folder of the initial model: a token classifier with one label, or a language model, whose
    value head is then initialised at random. None uses `actor_config.load`."""
    save: PathText | None = None
    """Folder for the exported critic. None writes to `critic` in the run folder."""
    micro_batch_size: SequenceCount | None = None
    """Sequences per forward and backward pass of one data-parallel rank. None uses
    `actor_config.micro_batch_size`."""
    offload_train_param: bool = True
    """Keep the critic's weights on the host while they are not used."""
    offload_train_grad: bool = True
    """Release the critic's gradient buffers except during updates."""
    offload_train_optimizer: bool = True
    """Keep the critic's optimizer state on the host except during updates."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class RewardConfig(RoleLayoutConfig):
    """A neural reward model, besides or instead of the verifiers. Left out by default."""

    load: PathText
    """Folder of a sequence classifier with one label, with the actor's vocabulary."""
    weight: Weight = 1.0
    """Weight of its score, which is added to the weighted sum of the verifiers."""
    micro_batch_size: SequenceCount | None = None
    """Sequences per forward pass of one data-parallel rank. None uses
    `actor_config.micro_batch_size`."""
    offload_param: bool = True
    """Keep the weights on the host except while responses are scored."""
