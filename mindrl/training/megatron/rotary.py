"""Rotary angles that Megatron-core cannot be configured for."""

from collections.abc import Mapping
from functools import _lru_cache_wrapper, partial
from typing import Any

from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from torch import Tensor, nn

from mindrl.models.description import ModelDescription
from mindrl.training.rotary import inverse_frequencies


def scale_rotary(network: Any, model: ModelDescription) -> None:
    """Set a GPT model's scaled frequencies, before its first forward pass caches angles.

    Megatron's Llama 3 scaling hard-codes three of its four numbers. The frequencies are not a
    buffer there, so they stay float32 in a bfloat16 network.
    """
    if model.rope_scaling is not None:
        rotary = network.rotary_pos_emb
        rotary.inv_freq = inverse_frequencies(model).to(rotary.inv_freq.device)


def place_rotary(network: Any) -> None:
    """Make a GPT model take angles at the positions of each pack, if the pack has any.

    Not for latent attention, whose layers make their own angles.
    """
    positions: Tensor | None = None

    def remember(_: Any, __: Any, named: Mapping[str, Any]) -> None:
        nonlocal positions
        positions = named["packed_seq_params"].positions

    def chosen(_: Any, __: Any, angles: Tensor) -> Tensor:
        return angles if positions is None else angles[positions]

    network.register_forward_pre_hook(remember, with_kwargs=True)
    network.rotary_pos_emb.register_forward_hook(chosen)


def keep_no_angles(network: nn.Module) -> None:
    """Make a network compute its angles in each pass.

    Megatron keeps the last 32 tables of a process, float32 [positions, width], on the device while
    other roles need its memory; packs of other lengths need other tables. MindSpeed keeps none.
    """
    for module in network.modules():
        if isinstance(module, RotaryEmbedding):
            forward = type(module).forward
            if isinstance(forward, _lru_cache_wrapper):
                module.forward = partial(forward.__wrapped__, module)
