"""What travels between the tests of packs and the process that makes them. Without Megatron."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Arguments of `PackRules`, of all context-parallel ranks."""

    cp: int = 1
    tokens_multiple: int = 1
    removes_padding: bool = True
    shares_prompts: bool = False


@dataclass(frozen=True, kw_only=True)
class PackFacts:
    """A pack of one rank."""

    tokens_S: Tensor
    positions_S: Tensor
    predicting_N: Tensor
    targets_N: Tensor
    places_N: Tensor
    spread_BT: Tensor
    """What became of 1, 2, ... N."""
    starts: tuple[int, ...]
    longest: int
    cumulative: list[int]
    for_megatron: tuple[str, list[int], list[int], int, int]
    """Format, bounds and longest of queries and of keys."""
    gathered: Tensor | None
    natural: Tensor | None
