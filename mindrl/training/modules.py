"""The modules that Megatron-core takes from a vendor's library, in plain torch.

Shapes: S positions, B sequences, N heads of this rank, D head dimension.
"""

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Root-mean-square norm whose gradient is reduced under sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        # Each rank sees only its part of the sequence: Megatron sums the gradients of
        # parameters that carry this mark over the tensor-parallel ranks.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, hidden_SBH: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return functional.rms_norm(hidden_SBH, self.weight.shape, self.weight, self.eps)


class CausalAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention over right-padded sequences, by torch's fused kernel."""

    def __init__(
        self, config: TransformerConfig, softmax_scale: float | None = None, **_: object
    ) -> None:
        """Take from Megatron's many arguments the two that matter to causal attention."""
        super().__init__(config=config)
        self.softmax_scale = softmax_scale

    def forward(
        self,
        query_SBND: Tensor,
        key_SBND: Tensor,
        value_SBND: Tensor,
        *_: object,
        **__: object,
    ) -> Tensor:
        """Attend; returns [S, B, N * D]. No mask is needed: nothing looks at padding behind it."""
        query, key, value = (
            tensor.permute(1, 2, 0, 3) for tensor in (query_SBND, key_SBND, value_SBND)
        )
        mixed_BNSD = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            scale=self.softmax_scale,
            enable_gqa=query.size(1) != key.size(1),
        )
        return mixed_BNSD.permute(2, 0, 1, 3).flatten(2)


class _SharedByRanks(torch.autograd.Function):
    """The same on all tensor-parallel ranks; its gradient is the sum of theirs.

    Megatron's own function for it leaves a gradient that is not contiguous as it is.
    """

    @staticmethod
    def forward(_ctx: Any, shared: Tensor) -> Tensor:
        return shared.view_as(shared)

    @staticmethod
    def backward(_ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
        return total


class LatentCausalAttention(CausalAttention):
    """Causal attention whose rotary key is one for all heads of all tensor-parallel ranks."""

    def forward(
        self,
        query_SBND: Tensor,
        key_SBND: Tensor,
        value_SBND: Tensor,
        *_: object,
        **__: object,
    ) -> Tensor:
        """Attend; the rotary key's gradient is summed over the tensor-parallel ranks.

        Megatron cuts the down projection, gathers what it gives, and hands each rank the gradient
        of its own rows; that of the rotary key is a sum over the rank's own heads only.
        """
        width = key_SBND.size(-1) - self.config.qk_pos_emb_head_dim
        plain, rotary = key_SBND[..., :width], key_SBND[..., width:]
        rotary = _SharedByRanks.apply(rotary)  # type: ignore[no-untyped-call]
        return super().forward(query_SBND, torch.cat([plain, rotary], dim=-1), value_SBND)


def block_spec(config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
    """Return Megatron's local decoder block with the modules above in it.

    Args:
        config: Of the model.
        vp_stage: Which chunk of this rank's pipeline stage; None where there is only one.
    """
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage
    )
    for layer in block.layer_specs:
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
        attention = layer.submodules.self_attention.submodules
        attention.core_attention = CausalAttention
        if config.multi_latent_attention:
            attention.core_attention = LatentCausalAttention
            attention.q_layernorm = attention.kv_layernorm = RMSNorm
        elif config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = RMSNorm
    block.layer_norm = RMSNorm
    return block
