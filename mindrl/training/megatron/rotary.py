"""Rotary frequencies with scalings that Megatron-core cannot be configured for."""

from typing import Any

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
