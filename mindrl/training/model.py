"""The Megatron-core GPT model of a model description."""

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

from mindrl.models.description import ModelDescription
from mindrl.models.qwen2 import padded_vocab_size
from mindrl.training.modules import block_spec


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """What the layout and the numerics add to a model description."""

    seq_length: int
    bf16: bool
    sequence_parallel: bool
    device_type: str


def transformer_config(model: ModelDescription, settings: ModelSettings) -> TransformerConfig:
    """Translate a description into Megatron's configuration; fused kernels stay off."""
    dtype = torch.bfloat16 if settings.bf16 else torch.float32
    return TransformerConfig(
        num_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.intermediate_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_key_value_heads,
        kv_channels=model.head_dim,
        layernorm_epsilon=model.rms_norm_eps,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        sequence_parallel=settings.sequence_parallel,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=settings.bf16,
        # Weights come from files; initialising on the host also needs no device generator.
        use_cpu_initialization=True,
        perform_initialization=False,
        finalize_model_grads_func=finalize_model_grads,
        bias_dropout_fusion=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        batch_p2p_comm=False,
        # Asserted by Megatron for variable lengths, for dense models too.
        moe_token_dispatcher_type="alltoall",  # noqa: S106 - no password
    )


def build_model(
    model: ModelDescription, config: TransformerConfig, settings: ModelSettings
) -> torch.nn.Module:
    """Build this rank's part of the model on its device; weights are not set yet."""
    tp = parallel_state.get_tensor_model_parallel_world_size()
    network: torch.nn.Module = GPTModel(
        config=config,
        transformer_layer_spec=block_spec(config),
        vocab_size=padded_vocab_size(model, tp),
        max_sequence_length=settings.seq_length,
        parallel_output=True,
        share_embeddings_and_output_weights=model.tie_word_embeddings,
        position_embedding_type="rope",
        rotary_base=model.rope_theta,
    ).to(settings.device_type)
    return Float16Module(config, network) if settings.bf16 else network


def unwrap(network: torch.nn.Module) -> torch.nn.Module:
    """Return the GPT model inside its wrappers."""
    wrapped: Any = network
    while hasattr(wrapped, "module"):
        wrapped = wrapped.module
    return wrapped  # type: ignore[no-any-return]
