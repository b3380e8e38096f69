"""What is known of a model that mindrl has no network of. Imports no torch."""

from pydantic.dataclasses import dataclass

from mindrl.models.rope import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OwnFamily:
    """What the spec of a user's own network says of a model."""

    spec: str
    """Where the spec is: `package.module:name` or `path/to/file.py:name`."""
    sizes: str
    """Letters of the sizes that the network may have: d, t, p, c."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OtherFamily:
    """What is known of a model that mindrl has no network of: transformers or a user has one."""

    architecture: str
    """Its class in transformers, by which rollout engines know it too."""
    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """Names and shapes as its files have them, without a value head."""
    embedding: str
    head: str
    """Both by name: the same where they are tied."""
    cuts: tuple[int | None, ...] | None = None
    """Of each tensor the dimension that tensor-parallel ranks share, None: each has it whole.
    Embedding and head are cut by the vocabulary whatever it says. None where nothing is known."""
    styles: tuple[tuple[str, str], ...] = ()
    """Of a network of transformers the modules that ranks share, and how, in its own word."""
    own: OwnFamily | None = None
    """Of a user's network; of one of transformers None."""
