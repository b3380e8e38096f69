"""Rotary frequencies, where Megatron-core cannot be told all of how they are scaled."""

from typing import Any

from mindrl.models.description import ModelDescription
from mindrl.training.rotary import inverse_frequencies


def scale_rotary(network: Any, model: ModelDescription) -> None:
    """Give a GPT model its scaled frequencies, before its first forward pass caches angles.

    Megatron has Llama 3's scaling with three of its four numbers fixed. The frequencies are no
    buffer there: wrapping the network in bfloat16 leaves them float32.
    """
    if model.rope_scaling is not None:
        rotary = network.rotary_pos_emb
        rotary.inv_freq = inverse_frequencies(model).to(rotary.inv_freq.device)
