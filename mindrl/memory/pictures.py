"""Estimates of the memory of pictures: a tower's activations, and the data kept of pictures.

Pure Python. Activations are estimated as those of a decoder are (`mindrl.memory.activations`):
attention is fused, and norms of Qwen2.5-VL's tower are computed in float32.
"""

from dataclasses import dataclass

from mindrl.config.role import LearningConfig
from mindrl.memory.activations import kept_layers
from mindrl.models.decoder import ELEMENT_BYTES, DType
from mindrl.models.other_family import TowerSizes

LARGEST_TOKENS = 16_384
"""Tokens of the largest picture that the image processors of published models make."""
_FLOAT32 = ELEMENT_BYTES["float32"]


@dataclass(frozen=True, kw_only=True)
class TowerBytes:
    """Bytes of a tower's pass over the pictures of a micro-batch."""

    kept: int
    """Bytes that stay while the decoder computes: features, and what the backward pass needs."""
    most: int
    """Bytes at the end of the tower's pass, before the decoder's."""


@dataclass(frozen=True, kw_only=True)
class PictureBytes:
    """Bytes of pictures outside of regions and activations."""

    engine: int = 0
    """Features that the rollout engine keeps on each device."""
    host: int = 0
    """Opened pictures, and kept features, on the host of each worker."""


def tower_bytes(
    sizes: TowerSizes, tokens: int, dtype: DType, learning: LearningConfig | None
) -> TowerBytes:
    """Estimate the bytes of a pass over pictures of `tokens` tokens in all.

    `learning` are the settings of a trained tower; None for a pass without gradients.
    """
    patches, size = tokens * sizes.patches_of_token, ELEMENT_BYTES[dtype]
    features = tokens * feature_bytes(sizes, dtype)
    # uint8, normalised in float32, and converted.
    pixels = patches * sizes.numbers_of_patch * (1 + _FLOAT32 + (size if size < _FLOAT32 else 0))
    hidden, layer = patches * sizes.hidden_size * size, patches * _layer(sizes, size)
    if learning is None:
        return TowerBytes(kept=features, most=features + pixels + layer + hidden)
    whole, again, _ = kept_layers(learning, sizes.layers)
    kept = features + pixels + whole * layer + again * hidden + patches * _mergers(sizes, size)
    return TowerBytes(kept=kept, most=kept + layer)


def feature_bytes(sizes: TowerSizes, dtype: DType) -> int:
    """Return the bytes of the features of a token."""
    return sizes.numbers_of_token * ELEMENT_BYTES[dtype]


def _layer(sizes: TowerSizes, size: int) -> int:
    """Return the bytes that a layer keeps of a patch for its backward pass."""
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    # Queries, keys and values as projected; the first two as rotated; the output as computed
    # for each picture or window, and joined.
    attention = (3 + 2 + 2) * hidden
    if sizes.is_gated:
        # Both norms: the output; in float32 the input, and scaled.
        return (2 * hidden + attention + 4 * inner) * size + 4 * hidden * _FLOAT32
    # Both norms: input and output. Input and output of the activation.
    return (4 * hidden + attention + 2 * inner) * size


def _mergers(sizes: TowerSizes, size: int) -> int:
    """Return a patch's bytes in the mergers: input, normed input, both ends of the activation."""
    return (1 + sizes.inner) * 4 * sizes.hidden_size * size
