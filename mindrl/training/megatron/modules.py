"""Plain torch versions of the modules that Megatron-core takes from a vendor's library.

Shapes: S tokens of this rank, N heads of this rank, M of them key-value heads, D head dimension.
"""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from mindrl.platform.attention import Kernel
from mindrl.platform.fused_layers import fused_rms_norm
from mindrl.training.context import ContextGroups, attend
from mindrl.training.megatron.passes import PackedSequences


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm whose gradient is reduced under sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__(hidden_size, eps, dtype=config.params_dtype)
        # Each rank sees only its part of the sequence: Megatron sums the gradients of
        # parameters that carry this mark over the tensor-parallel ranks.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class FusedRMSNorm(RMSNorm):
    """The same norm by one kernel of the device."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of the last dimension."""
        assert self.eps is not None
        return fused_rms_norm(x, self.weight, self.eps)


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention inside each sequence of a pack, by the platform's kernel."""

    def __init__(
        self,
        config: TransformerConfig,
        kernel: Kernel,
        context: ContextGroups | None,
        softmax_scale: float | None = None,
        **_: object,
    ) -> None:
        """Keep the two of Megatron's many arguments that matter to causal attention."""
        super().__init__(config=config)
        self.kernel, self.context = kernel, context
        self.softmax_scale = softmax_scale

    def forward(
        self,
        query_SND: Tensor,
        key_SMD: Tensor,
        value_SMD: Tensor,
        *_: object,
        packed_seq_params: PackedSequences,
        **__: object,
    ) -> Tensor:
        """Return the attention output, [S, N * D]."""
        tokens = packed_seq_params.attending
        assert tokens is not None
        if self.config.multi_latent_attention:
            key_SMD = _with_shared_rotary_key(key_SMD, self.config.qk_pos_emb_head_dim)
        heads = query_SND, key_SMD, value_SMD
        return attend(self.kernel, self.context, heads, tokens, self.softmax_scale).flatten(1)


def _with_shared_rotary_key(key_SMD: Tensor, width: int) -> Tensor:
    """Sum the gradient of the last columns, the rotary key, over the tensor-parallel ranks.

    All heads of all ranks share that key. Megatron cuts the down projection, gathers its output,
    and gives each rank the gradient of its own rows; that of the rotary key covers the rank's own
    heads only.
    """
    plain, rotary = key_SMD[..., :-width], key_SMD[..., -width:]
    if rotary.requires_grad:
        rotary.register_hook(_sum_over_tensor_ranks)  # type: ignore[no-untyped-call]
    return torch.cat([plain, rotary], dim=-1)


def _sum_over_tensor_ranks(gradient: Tensor) -> Tensor:
    # Megatron's own function skips a gradient that is not contiguous.
    total = gradient.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
    return total


class HeadInput(nn.Module):
    """Replaces Megatron's output layer: keeps its weight and returns the layer's input.

    A vocabulary's weight is cut over the tensor-parallel ranks, so the gradient of the hidden
    states is summed over them; a tied model has no weight here. A value head's weight is
    replicated, so each rank already has the whole gradient of both.
    """

    def __init__(
        self, weight: nn.Parameter | None, *, is_cut: bool, sequence_parallel: bool
    ) -> None:
        super().__init__()
        self.weight = weight
        self.is_cut = is_cut
        self.sequence_parallel = sequence_parallel

    def forward(self, hidden: Tensor, **_: object) -> tuple[Tensor, None]:
        """Return the hidden states of all tokens."""
        if self.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(
                hidden, tensor_parallel_output_grad=self.is_cut
            )
        elif self.is_cut:
            hidden = copy_to_tensor_model_parallel_region(hidden)
        return hidden, None


def block_spec(
    config: TransformerConfig,
    vp_stage: int | None,
    kernel: Kernel,
    context: ContextGroups | None,
    norm: type[RMSNorm],
) -> TransformerBlockSubmodules:
    """Return Megatron's local decoder block with the modules of this file in it.

    `vp_stage` is the chunk of this rank's pipeline stage; None if there is only one.
    """
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage
    )
    for layer in block.layer_specs:
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = norm
        attention = layer.submodules.self_attention.submodules
        params = {"kernel": kernel, "context": context}
        attention.core_attention = ModuleSpec(module=PackedAttention, params=params)
        if config.multi_latent_attention:
            attention.q_layernorm = attention.kv_layernorm = norm
        elif config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = norm
    block.layer_norm = norm
    return block
