"""What travels between the tests of the engine's shards and the processes that they fork.

Without vLLM: the test process must be able to read it.
"""

from dataclasses import dataclass

Answer = tuple[tuple[int, ...], tuple[float, ...]]
"""Tokens and their log-probs, in nats."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """An engine, and two sets of weights for it."""

    folder: str
    later_folder: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    expert_parallel: bool = False
    dtype: str = "float32"


@dataclass(frozen=True, kw_only=True)
class EngineMemory:
    """Storage of an engine's weights."""

    parameters: int
    """Bytes, those of tied parameters once."""
    packed_layers: int
    """Linear layers that hold their weights in the order that the kernels like."""
    tensors: int
    """Bytes of all tensors of the process, of the engine and of others."""


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Shapes of this rank's local tensors, by their names."""

    expected: dict[str, tuple[int, ...]]
    """By the engine."""
    table: dict[str, tuple[int, ...]]
    """Of the rollout side."""
    queues: list[str]
    """Names of the shared memory that the engine's ranks have mapped."""


@dataclass(frozen=True, kw_only=True)
class Filled:
    """What one rank saw of an engine that was filled from its own shards."""

    shapes: Shapes
    answers: dict[str, list[Answer]]
    """To all prompts, by the moment."""
    memory: dict[str, EngineMemory]
    """By the moment; `ordinary` is that of an engine that loaded the folder itself."""
    sequence_bytes: int
    """Bytes of the engine's cache for its longest sequence, by vLLM."""
    smallest_cache_bytes: int
    """Those with the block that vLLM keeps for itself."""
    cache_bytes: int
    """Bytes of the engine's whole cache."""
    addresses_kept: bool
    """Every parameter with memory is where it was before the load."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What one process saw of engines that loaded the two folders of a case themselves."""

    answers: dict[str, list[Answer]]
    """To all prompts, by the engine."""
    table: dict[str, tuple[int, ...]]
    """Shapes of all tensors of the rollout side."""
