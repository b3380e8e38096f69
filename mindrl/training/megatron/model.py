"""The Megatron-core GPT model of a model description."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

from mindrl.config.role import LearningConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import padded_vocab_size
from mindrl.models.description import ModelDescription
from mindrl.platform.device import has_fused_layers
from mindrl.training.megatron.balance import balance_packs
from mindrl.training.megatron.modules import FusedRMSNorm, HeadInput, RMSNorm, block_spec
from mindrl.training.megatron.parallel import ParallelGroups, parallel_sizes
from mindrl.training.megatron.rotary import keep_no_angles, place_rotary, scale_rotary
from mindrl.training.megatron.traced_timers import TracedTimers
from mindrl.training.settings import EngineSettings


@dataclass(frozen=True, kw_only=True)
class ModelSettings(EngineSettings):
    """Engine settings with Megatron's process groups."""

    groups: ParallelGroups
    """Process groups of the model's layout."""


def transformer_config(model: ModelDescription, settings: ModelSettings) -> TransformerConfig:
    """Translate a description into Megatron's configuration, without kernels of other vendors."""
    training, learning = settings.training, settings.learning
    dtype = torch.bfloat16 if training.bf16 else torch.float32
    # Megatron trains tensor-parallel experts only with sequence parallelism.
    has_cut_tokens = settings.layout.tp > 1 and (training.sequence_parallel or bool(model.moe))
    make = MLATransformerConfig if model.mla else TransformerConfig
    return make(
        num_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.intermediate_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_key_value_heads,
        kv_channels=model.head_dim,
        layernorm_epsilon=model.rms_norm_eps,
        normalization="RMSNorm",
        qk_layernorm=model.qk_norm or model.mla is not None,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=model.attention_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        sequence_parallel=has_cut_tokens,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=training.bf16,
        # Weights come from files; initialising on the host also needs no device generator.
        use_cpu_initialization=True,
        perform_initialization=False,
        finalize_model_grads_func=finalize_model_grads,
        timers=TracedTimers(),
        # MindSpeed replaces Megatron's fused activation by the NPU's.
        bias_activation_fusion=training.use_fused_swiglu and has_fused_layers(settings.device_type),
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        deterministic_mode=training.is_deterministic,
        recompute_granularity=learning.recompute_granularity,
        recompute_method=learning.recompute_method,
        recompute_num_layers=learning.recompute_num_layers,
        # Packs differ in length, so stages send each other the length of the next one.
        variable_seq_lengths=True,
        batch_p2p_comm=False,
        # Without it an interleaved pipeline of two stages confuses lengths sent forward and
        # backward.
        overlap_p2p_comm=settings.layout.vpp > 1,
        # Asserted by Megatron for variable lengths, for dense models too.
        moe_token_dispatcher_type="alltoall",  # noqa: S106 - not a password
        **parallel_sizes(settings.layout),
        pipeline_model_parallel_layout=_pipeline(model, settings.layout),
        **_experts(model, learning),
        **_latent_attention(model),
    )


def build_model(
    model: ModelDescription, config: TransformerConfig, settings: ModelSettings
) -> list[torch.nn.Module]:
    """Build this rank's chunks of the model on its device, with uninitialised weights.

    The settings' groups must be active.
    """
    chunks = range(settings.layout.vpp)
    stages = chunks if len(chunks) > 1 else [None]
    built = [_build_chunk(model, config, settings, stage) for stage in stages]
    return [_wrapped(network.to(settings.device_type), config) for network in built]


def head_weight(last_chunk: torch.nn.Module) -> torch.Tensor:
    """Return this rank's weight for logits, [V, H], or for values, [1, H]."""
    network: Any = unwrap(last_chunk)
    if network.share_embeddings_and_output_weights:
        return network.shared_embedding_or_output_weight()  # type: ignore[no-any-return]
    return network.output_layer.weight  # type: ignore[no-any-return]


def head_is_embedding(last_chunk: torch.nn.Module) -> bool:
    """Return whether this rank's weight for logits is also that of its embedding."""
    network: Any = unwrap(last_chunk)
    return bool(network.share_embeddings_and_output_weights and network.pre_process)


def unwrap(network: torch.nn.Module) -> torch.nn.Module:
    """Return the GPT model inside its wrappers."""
    wrapped: Any = network
    while hasattr(wrapped, "module"):
        wrapped = wrapped.module
    return wrapped  # type: ignore[no-any-return]


def _build_chunk(
    model: ModelDescription,
    config: TransformerConfig,
    settings: ModelSettings,
    vp_stage: int | None,
) -> torch.nn.Module:
    is_value = settings.head == "value"
    is_fused = settings.training.use_fused_rmsnorm and has_fused_layers(settings.device_type)
    norm = FusedRMSNorm if is_fused else RMSNorm
    place = {"ignore_virtual": False, "vp_stage": vp_stage}
    network: torch.nn.Module = GPTModel(
        config=config,
        transformer_layer_spec=block_spec(
            config, vp_stage, settings.attention, settings.groups.context, norm
        ),
        vocab_size=padded_vocab_size(model, settings.layout.tp),
        max_sequence_length=settings.training.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(**place),
        post_process=parallel_state.is_pipeline_last_stage(**place),
        parallel_output=True,
        share_embeddings_and_output_weights=model.tie_word_embeddings and not is_value,
        position_embedding_type="rope",
        rotary_percent=model.partial_rotary_factor,
        rotary_base=model.rope_theta,
        vp_stage=vp_stage,
    )
    scale_rotary(network, model)
    if model.mla is None:
        place_rotary(network)
    keep_no_angles(network)
    if config.moe_router_load_balancing_type != "none":
        balance_packs(network)
    if hasattr(network, "output_layer"):
        replaced: Any = network.output_layer
        weight = replaced.weight
        if is_value:
            weight_1H = torch.empty(1, config.hidden_size, dtype=config.params_dtype)
            weight = torch.nn.Parameter(weight_1H)
        network.output_layer = HeadInput(
            weight, is_cut=not is_value, sequence_parallel=config.sequence_parallel
        )
    return network


def _wrapped(network: torch.nn.Module, config: TransformerConfig) -> torch.nn.Module:
    """Wrap a bfloat16 network so that its inputs and outputs are float32."""
    if not config.bf16:
        return network
    wrapped: torch.nn.Module = Float16Module(config, network)
    for name, buffer in network.named_buffers():
        # Megatron would cast it back only at the first forward pass, already rounded.
        if name.endswith("router.expert_bias"):
            buffer.data = buffer.data.float()
    return wrapped


def _pipeline(model: ModelDescription, layout: TrainLayout) -> list[list[str]] | None:
    """Return the modules of each chunk; None if Megatron's even cut is used."""
    if layout.layers_per_chunk is None or layout.pp == 1:
        return None
    chunks = [["decoder"] * len(layers) for layers in layout.chunks(model.num_hidden_layers)]
    chunks[0].insert(0, "embedding")
    chunks[-1].append("loss")
    return chunks


def _experts(model: ModelDescription, learning: LearningConfig) -> dict[str, Any]:
    """Return Megatron's settings for a mixture of experts that routes as in Hugging Face."""
    moe = model.moe
    if moe is None:
        return {}
    layers, is_grouped = range(model.num_hidden_layers), moe.groups > moe.chosen_groups
    return {
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.num_experts_per_tok,
        "moe_ffn_hidden_size": moe.intermediate_size,
        "moe_layer_freq": [int(layer not in moe.dense_layers) for layer in layers],
        # A softmax over the chosen experts equals one over all, renormalised to sum to 1.
        "moe_router_pre_softmax": not moe.norm_topk_prob,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": (
            learning.moe_router_load_balancing_type if learning.moe_aux_loss_coeff else "none"
        ),
        "moe_aux_loss_coeff": learning.moe_aux_loss_coeff,
        "moe_grouped_gemm": learning.moe_grouped_gemm,
        # The alternative class requires Transformer Engine, and is the only one from 0.17 on.
        **({"moe_use_legacy_grouped_gemm": True} if learning.moe_grouped_gemm else {}),
        "moe_shared_expert_intermediate_size": moe.shared_intermediate_size or None,
        "moe_router_score_function": "sigmoid" if moe.score_correction_bias else "softmax",
        "moe_router_enable_expert_bias": moe.score_correction_bias,
        "moe_router_bias_update_rate": 0.0,
        "moe_router_num_groups": moe.groups if is_grouped else None,
        "moe_router_group_topk": moe.chosen_groups if is_grouped else None,
        "moe_router_topk_scaling_factor": moe.scaling_factor,
    }


def _latent_attention(model: ModelDescription) -> dict[str, Any]:
    """Return Megatron's settings for latent attention: latent widths and rotary scaling."""
    mla = model.mla
    if mla is None:
        return {}
    sizes = {
        "q_lora_rank": mla.q_lora_rank,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_head_dim": mla.qk_nope_head_dim,
        "qk_pos_emb_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
        "rotary_base": model.rope_theta,
    }
    if mla.yarn is None:
        # The attention scale reads the factor without YaRN too.
        return sizes | {"rope_type": "rope", "rotary_scaling_factor": 1.0}
    stretch = asdict(mla.yarn)
    return sizes | {"rope_type": "yarn", "rotary_scaling_factor": stretch.pop("factor"), **stretch}
