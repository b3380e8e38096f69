"""Descriptions of models that mindrl has no network of its own for. Imports no torch."""

from pydantic.dataclasses import dataclass

from mindrl.models.gated_delta import GatedDeltaNet
from mindrl.models.rope import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OwnFamily:
    """Spec data of a model with a user's own network."""

    spec: str
    """Location of the spec: `package.module:name` or `path/to/file.py:name`."""
    sizes: str
    """Letters of the parallel sizes that the network supports: d, t, p, c."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TowerSizes:
    """Sizes of a vision tower."""

    layers: int
    hidden_size: int
    intermediate_size: int
    out_hidden_size: int
    """Width of a feature: the decoder's hidden size."""
    patch: int
    """Pixels of a patch in each direction."""
    frames: int
    """Frames of a patch; those of a picture are equal."""
    merge: int
    """Patches of a token in each direction."""
    places: int
    """Number of learned patch positions; 0 without any."""
    inner: int
    """Number of layers whose output goes to the decoder's first layers too."""
    is_gated: bool
    """Whether its layers are Qwen2.5-VL's: gated feed-forward parts, and norms without biases."""

    @property
    def patches_of_token(self) -> int:
        """Number of patches that become one token."""
        return self.merge**2

    @property
    def numbers_of_patch(self) -> int:
        """Number of pixels of a patch, times colours and frames."""
        return _COLOURS * self.frames * self.patch**2

    @property
    def numbers_of_token(self) -> int:
        """Number of elements of the features of a token, with those of the inner layers."""
        return self.out_hidden_size * (1 + self.inner)


_COLOURS = 3


@dataclass(frozen=True, kw_only=True, config=STRICT)
class VisionPart:
    """The tower of a vision-language model, and names of its parts in the files."""

    image_token: int
    """Id of the token that stands for a part of a picture."""
    tower: str
    """Prefix of the tower's tensors."""
    decoder: str
    """Prefix of the decoder's tensors, the embedding among them."""
    sizes: TowerSizes
    sections: tuple[int, int, int]
    """Pairs of a head's dimensions turned by a token's picture, by its row in the picture, and by
    its column."""
    takes_turns: bool
    """Whether the pairs of the sections are interleaved instead of consecutive."""
    is_frozen: bool = False
    """Whether the tower is not trained: no gradients, no optimizer state."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OtherFamily:
    """Tensors and sharding rules of a model whose network transformers or a user provides."""

    architecture: str
    """Class in transformers; rollout engines use the same name."""
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """Names and shapes as in its files, without a value head."""
    embedding: str
    head: str
    """Name; the same as `embedding` if they are tied."""
    cuts: tuple[int | None, ...] | None = None
    """For each tensor the dimension that tensor-parallel ranks cut; None: each has it whole.
    Embedding and head are always cut by the vocabulary. None if unknown."""
    styles: tuple[tuple[str, str], ...] = ()
    """Modules of a transformers network that ranks share, with transformers' name of the style."""
    delta: GatedDeltaNet | None = None
    """Its layers of linear attention; None if all layers have full attention."""
    own: OwnFamily | None = None
    """Spec of a user's network; None for a network of transformers."""
    vision: VisionPart | None = None
    """Tower of a vision-language model; None for a model of text."""
