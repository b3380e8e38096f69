"""Rotary frequencies of a model, as transformers makes them.

Shapes: F frequencies, half as many as a head has rotated dimensions.
"""

import math

import torch
from torch import Tensor

from mindrl.models.description import ModelDescription
from mindrl.models.other_family import VisionPart
from mindrl.models.rope import LinearScaling, Llama3Scaling


def inverse_frequencies(model: ModelDescription) -> Tensor:
    """Return the angle per position of each pair of a head's dimensions: float32 [F], in radians.

    Uses transformers' order of operations, so the results are bit-identical.
    """
    width = model.rotary_width
    powers_F = torch.arange(0, width, 2, dtype=torch.float32) / width
    plain_F = 1.0 / (model.rope_theta**powers_F)
    match model.rope_scaling:
        case None:
            return plain_F
        case LinearScaling(factor=factor):
            return plain_F / factor
        case Llama3Scaling() as scaling:
            return _scaled_as_llama3(plain_F, scaling)


def rotary_axes(vision: VisionPart) -> Tensor:
    """Return which of a token's three positions turns each pair of dimensions: int64 [F].

    M-RoPE, Qwen2-VL, arXiv:2409.12191, section 2.1: sections are consecutive, or interleaved; then
    the first has the remaining pairs.
    """
    if not vision.takes_turns:
        return torch.arange(3).repeat_interleave(torch.tensor(vision.sections))
    axes_F = torch.zeros(sum(vision.sections), dtype=torch.int64)
    for axis in (1, 2):
        axes_F[axis : 3 * vision.sections[axis] : 3] = axis
    return axes_F


def _scaled_as_llama3(plain_F: Tensor, scaling: Llama3Scaling) -> Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    length = scaling.original_max_position_embeddings
    wave_F = 2 * math.pi / plain_F
    kept_F = (length / wave_F - low) / (high - low)
    between_F = (1 - kept_F) * plain_F / scaling.factor + kept_F * plain_F
    scaled_F = torch.where(wave_F > length / low, plain_F / scaling.factor, between_F)
    return torch.where(wave_F < length / high, plain_F, scaled_F)
