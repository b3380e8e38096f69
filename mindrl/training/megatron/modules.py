"""The modules that Megatron-core takes from a vendor's library, in plain torch.

Shapes: S tokens of this rank, N heads of this rank, M of them key-value heads, D head dimension,
R context-parallel ranks.
"""

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.tensor_parallel.mappings import (
    all_to_all,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from mindrl.platform.attention import Kernel
from mindrl.training.megatron.passes import PackedSequences


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm whose gradient is reduced under sequence parallelism."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__(hidden_size, eps, dtype=config.params_dtype)
        # Each rank sees only its part of the sequence: Megatron sums the gradients of
        # parameters that carry this mark over the tensor-parallel ranks.
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


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
        if self.config.multi_latent_attention:
            key_SMD = _with_shared_rotary_key(key_SMD, self.config.qk_pos_emb_head_dim)
        heads = query_SND, key_SMD, value_SMD
        gathered, natural = packed_seq_params.gathered, packed_seq_params.natural
        if gathered is None or natural is None:
            return self.kernel(*heads, packing, self.softmax_scale).flatten(1)
        group = parallel_state.get_context_parallel_group()
        query, key, value = (
            _tokens_for_heads(each, group).index_select(0, natural) for each in heads
        )
        mixed = self.kernel(query, key, value, packing, self.softmax_scale)
        return _heads_for_tokens(mixed.index_select(0, gathered), group).flatten(1)


def _tokens_for_heads(heads_SND: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Give up heads, get the tokens of all ranks, rank by rank; returns [R * S, N / R, D].

    Key or value heads are repeated where there are fewer than ranks. A collective over `group`.
    """
    R = group.size()
    if heads_SND.size(1) < R:
        heads_SND = heads_SND.repeat_interleave(R // heads_SND.size(1), dim=1)
    S, N, D = heads_SND.shape
    received: Tensor = all_to_all(group, heads_SND.view(S, R, N // R, D).transpose(0, 1))
    return received.flatten(0, 1)


def _heads_for_tokens(tokens: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Give up the tokens of others, get all heads; from [R * S, N / R, D] to [S, N, D]."""
    received: Tensor = all_to_all(group, tokens.view(group.size(), -1, *tokens.shape[1:]))
    return received.transpose(0, 1).flatten(1, 2)


def _with_shared_rotary_key(key_SMD: Tensor, width: int) -> Tensor:
    """Let the gradient of the last columns, the rotary key, be summed over the tensor ranks.

    That key is one for all heads of all ranks. Megatron cuts the down projection, gathers what it
    gives, and hands each rank the gradient of its own rows; that of the rotary key is a sum over
    the rank's own heads only.
    """
    plain, rotary = key_SMD[..., :-width], key_SMD[..., -width:]
    if rotary.requires_grad:
        rotary.register_hook(_sum_over_tensor_ranks)  # type: ignore[no-untyped-call]
    return torch.cat([plain, rotary], dim=-1)


def _sum_over_tensor_ranks(gradient: Tensor) -> Tensor:
    # Megatron's own function for it leaves a gradient that is not contiguous as it is.
    total = gradient.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=parallel_state.get_tensor_model_parallel_group())
    return total


class HeadInput(nn.Module):
    """In the place of Megatron's output layer: keeps its weight, hands on what it would multiply.

    A vocabulary's weight is cut between the tensor-parallel ranks, so the gradient of the hidden
    states is summed over them; a tied model has no weight here. By a value head's weight every
    rank multiplies whole, so each has the whole gradient of both already.
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
    config: TransformerConfig, vp_stage: int | None, kernel: Kernel
) -> TransformerBlockSubmodules:
    """Return Megatron's local decoder block with the modules above in it.

    `vp_stage` is the chunk of this rank's pipeline stage; None where there is only one.
    """
    block = get_gpt_decoder_block_spec(
        config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage
    )
    for layer in block.layer_specs:
        layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
        attention = layer.submodules.self_attention.submodules
        attention.core_attention = ModuleSpec(module=PackedAttention, params={"kernel": kernel})
        if config.multi_latent_attention:
            attention.q_layernorm = attention.kv_layernorm = RMSNorm
        elif config.qk_layernorm:
            attention.q_layernorm = attention.k_layernorm = RMSNorm
    block.layer_norm = RMSNorm
    return block
