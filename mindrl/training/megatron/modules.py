"""The modules that Megatron-core takes from a vendor's library, in plain torch.

Shapes: S tokens of this rank, N heads of this rank, M of them key-value heads, D head dimension.
"""

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel import ColumnParallelLinear
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.nn import functional

from mindrl.platform.attention import Kernel
from mindrl.training.megatron.head_exchange import heads_for_tokens, tokens_for_heads
from mindrl.training.megatron.packs import PackedSequences


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


class PackedAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention inside each sequence of a pack, by the platform's kernel.

    Under context parallelism every rank gets all tokens of some heads for the while (Ulysses,
    arXiv 2309.14509), so any kernel will do.
    """

    def __init__(
        self,
        config: TransformerConfig,
        kernel: Kernel,
        softmax_scale: float | None = None,
        **_: object,
    ) -> None:
        """Take from Megatron's many arguments the two that matter to causal attention."""
        super().__init__(config=config)
        self.kernel = kernel
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
        """Attend; returns [S, N * D]."""
        packing = packed_seq_params.packing
        assert packing is not None
        if packed_seq_params.gathered is None:
            return self.kernel(query_SND, key_SMD, value_SMD, packing, self.softmax_scale).flatten(
                1
            )
        assert packed_seq_params.natural is not None
        group = parallel_state.get_context_parallel_group()
        query, key, value = (
            tokens_for_heads(heads, group).index_select(0, packed_seq_params.natural)
            for heads in (
                query_SND,
                _at_least(key_SMD, group.size()),
                _at_least(value_SMD, group.size()),
            )
        )
        mixed = self.kernel(query, key, value, packing, self.softmax_scale)
        return heads_for_tokens(mixed.index_select(0, packed_seq_params.gathered), group).flatten(1)


def _at_least(heads_SMD: Tensor, ranks: int) -> Tensor:
    """Repeat key or value heads where there are fewer than context-parallel ranks."""
    heads = heads_SMD.size(1)
    return heads_SMD if heads >= ranks else heads_SMD.repeat_interleave(ranks // heads, dim=1)


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


class LatentPackedAttention(PackedAttention):
    """Causal attention whose rotary key is one for all heads of all tensor-parallel ranks."""

    def forward(
        self,
        query_SND: Tensor,
        key_SMD: Tensor,
        value_SMD: Tensor,
        *_: object,
        packed_seq_params: PackedSequences,
        **__: object,
    ) -> Tensor:
        """Attend; the rotary key's gradient is summed over the tensor-parallel ranks.

        Megatron cuts the down projection, gathers what it gives, and hands each rank the gradient
        of its own rows; that of the rotary key is a sum over the rank's own heads only.
        """
        width = key_SMD.size(-1) - self.config.qk_pos_emb_head_dim
        plain, rotary = key_SMD[..., :width], key_SMD[..., width:]
        rotary = _SharedByRanks.apply(rotary)  # type: ignore[no-untyped-call]
        key_SMD = torch.cat([plain, rotary], dim=-1)
        return super().forward(query_SND, key_SMD, value_SMD, packed_seq_params=packed_seq_params)


class HeadInput(nn.Module):
    """In the place of Megatron's output layer: hands on what it would multiply.

    It keeps the weight, under the same name; a tied model has none here.
    """

    def __init__(self, replaced: ColumnParallelLinear) -> None:
        """Take over the weight of Megatron's layer."""
        super().__init__()
        self.weight = replaced.weight
        self.sequence_parallel = bool(replaced.sequence_parallel)

    def forward(self, hidden: Tensor, **_: object) -> tuple[Tensor, None]:
        """Return the hidden states of all tokens; their gradient is summed over the ranks."""
        if self.sequence_parallel:
            return gather_from_sequence_parallel_region(hidden), None
        return copy_to_tensor_model_parallel_region(hidden), None


class ValueHead(nn.Module):
    """In the place of Megatron's output layer: keeps the weight of one output, hands on its input.

    Every tensor-parallel rank multiplies by the whole weight, so each has the whole gradient of
    the hidden states and of the weight already: no sum over the ranks follows.
    """

    def __init__(self, config: TransformerConfig) -> None:
        """Make room for the weight."""
        super().__init__()
        weight_1H = torch.empty(1, config.hidden_size, dtype=config.params_dtype)
        self.weight = nn.Parameter(weight_1H)
        self.sequence_parallel = bool(config.sequence_parallel)

    def forward(self, hidden: Tensor, **_: object) -> tuple[Tensor, None]:
        """Return the hidden states of all tokens; each rank's gradient of them counts once."""
        if self.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=False)
        return hidden, None


def block_spec(
    config: TransformerConfig, vp_stage: int | None, kernel: Kernel
) -> TransformerBlockSubmodules:
    """Return Megatron's local decoder block with the modules above in it.

    Args:
        config: Of the model.
        vp_stage: Which chunk of this rank's pipeline stage; None where there is only one.
        kernel: Of the attention.
    """
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage
    )
    attending = LatentPackedAttention if config.multi_latent_attention else PackedAttention
    for layer in block.layer_specs:
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
        attention = layer.submodules.self_attention.submodules
        attention.core_attention = ModuleSpec(module=attending, params={"kernel": kernel})
        if config.multi_latent_attention:
            attention.q_layernorm = attention.kv_layernorm = RMSNorm
        elif config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = RMSNorm
    block.layer_norm = RMSNorm
    return block
