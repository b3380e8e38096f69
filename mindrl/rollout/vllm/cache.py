"""Bytes of sequences in vLLM's cache: keys and values, and states of gated delta nets.

A layer with a state has one block of the cache per sequence, for sequences of any length. All
blocks have the same size: just enough tokens that their keys and values take at least the memory of
a state. vLLM divides the layers into groups of the same size, each with its own blocks. It keeps
one block that no sequence gets. Imports no torch.
"""

from typing import NamedTuple, Self

from mindrl.layouts.layout import RolloutLayout
from mindrl.models.decoder import ELEMENT_BYTES, DType
from mindrl.models.description import ModelDescription
from mindrl.models.gated_delta import GatedDeltaNet

_BLOCK_TOKENS = 128
"""The engine's default block size on CPUs and NPUs; a multiple of it if layers have states.

GPUs have smaller blocks, so this is the maximum.
"""


class CacheSizes(NamedTuple):
    """Bytes of sequences in a rank's cache."""

    per_token: int
    """Bytes of a token's keys and values."""
    states: int = 0
    """Bytes of the blocks with a sequence's states."""
    block_tokens: int = _BLOCK_TOKENS
    """Tokens of a block."""

    def with_draft(self, model: ModelDescription, layout: RolloutLayout, dtype: DType) -> Self:
        """Return the sizes with a model that drafts; neither has states."""
        return self._replace(per_token=self.per_token + cache_sizes(model, layout, dtype).per_token)

    def of_sequence(self, tokens: int) -> int:
        """Return the bytes of a sequence, which takes whole blocks."""
        blocks = -(-tokens // self.block_tokens)
        return self.per_token * blocks * self.block_tokens + self.states

    def smallest(self, tokens: int) -> int:
        """Return the bytes of the smallest cache that vLLM accepts for sequences of this length."""
        return self.of_sequence(tokens) + self.per_token * self.block_tokens

    def described(self) -> str:
        """Return the sizes as text."""
        states = f", {self.states:,} bytes of states" if self.states else ""
        return f"{self.per_token:,} bytes per token{states}, {self.block_tokens:,} tokens per block"


def cache_sizes(
    model: ModelDescription, layout: RolloutLayout, dtype: DType, block_tokens: int | None = None
) -> CacheSizes:
    """Return the bytes of sequences on a rank of the stage with most layers.

    `block_tokens` is `generate_config.kv_block_tokens`.
    """
    if model.mla:
        width = model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    else:
        width = 2 * max(1, model.num_key_value_heads // layout.tp) * model.head_dim
    of_layer = width * ELEMENT_BYTES[dtype]
    unit = block_tokens or _BLOCK_TOKENS
    if model.delta is None:
        layers = max(map(len, layout.chunks(model.num_hidden_layers)))
        return CacheSizes(of_layer * layers, block_tokens=unit)
    tokens = unit * -(-_state_bytes(model.delta, layout.tp, dtype) // (unit * of_layer))
    attending, recurrent = model.attention_layers, len(model.delta.layers)
    size = _group_size(attending, recurrent)
    attended, states = (size * -(-layers // size) for layers in (attending, recurrent))
    return CacheSizes(of_layer * attended, of_layer * tokens * states, tokens)


def _state_bytes(delta: GatedDeltaNet, tp: int, dtype: DType) -> int:
    """Return the bytes of a layer's states: the convolution's last inputs, and float32 states."""
    inputs = sum(delta.mixed_rows) // tp * (delta.convolution - 1) * ELEMENT_BYTES[dtype]
    numbers = delta.value_heads // tp * delta.value_width * delta.key_width
    return inputs + numbers * ELEMENT_BYTES["float32"]


def _group_size(*layers: int) -> int:
    """Return the number of layers in a group, given the layers of each kind."""
    fewest, most = min(filter(None, layers)), max(layers)
    return most if most < 1.5 * fewest else fewest
