"""Layouts as one word: `megatron:d4p2t2`, `megatron:(attn:d4t2|ffn:d2e4)`, `vllm:d2t4`.

A dimension is a letter and its size: d data, p pipeline, t tensor, c context, e expert, v virtual
pipeline chunks. What is left out is 1; d may follow from the number of ranks instead. In the
short form experts are whole; behind `ffn:` t cuts each expert, and d, the copies of each expert,
follows from the others.
"""

import re
from collections.abc import Mapping

from mindrl.allocation import part_layouts
from mindrl.allocation.grammar import Part, read_engine
from mindrl.allocation.refusals import AllocationError, missing_backend
from mindrl.errors import ConfigError
from mindrl.layouts.layout import RolloutLayout, TrainLayout


def parse_training(text: str, world_size: int | None = None) -> TrainLayout:
    """Read a training layout.

    Args:
        text: For example `megatron:d4p2t2`.
        world_size: Ranks that it must have; a missing d follows from it.

    Raises:
        ConfigError: The text is no training layout, or not one of so many ranks.
    """
    try:
        return part_layouts.training_layout(text, _part(text, "megatron"), world_size)
    except AllocationError as error:
        raise ConfigError(error.sentence) from error


def parse_rollout(text: str, world_size: int | None = None) -> RolloutLayout:
    """Read a rollout layout.

    Args:
        text: For example `vllm:d2t4`.
        world_size: Ranks that it must have; a missing d follows from it.

    Raises:
        ConfigError: The text is no rollout layout, or not one of so many ranks.
    """
    try:
        return part_layouts.rollout_layout(text, _part(text, "vllm"), world_size)
    except AllocationError as error:
        raise ConfigError(error.sentence) from error


def training_string(layout: TrainLayout, engine: str = "megatron") -> str:
    """Spell a training layout; the orders of its ranks and uneven stages have no spelling.

    Args:
        layout: To spell.
        engine: What stands before the colon.
    """
    if layout.etp == 1:
        sizes = {"p": layout.pp, "t": layout.tp, "c": layout.cp, "e": layout.ep, "v": layout.vpp}
        return f"{engine}:{_spell(layout.dp, sizes)}"
    dense = {"p": layout.pp, "t": layout.tp, "c": layout.cp, "v": layout.vpp}
    expert = {"p": layout.pp, "t": layout.etp, "e": layout.ep}
    return f"{engine}:(attn:{_spell(layout.dp, dense)}|ffn:{_spell(layout.expert_dp, expert)})"


def rollout_string(layout: RolloutLayout, engine: str = "vllm") -> str:
    """Spell a rollout layout.

    Args:
        layout: To spell.
        engine: What stands before the colon.
    """
    return f"{engine}:{_spell(layout.dp, {'p': layout.pp, 't': layout.tp, 'e': layout.ep})}"


def states_replicas(text: str) -> bool:
    """Say whether a layout states d, so that its number of ranks is known."""
    return re.search(r"[:\d]d\d", text) is not None


def _part(text: str, backend: str) -> Part:
    """Read a string of this one backend."""
    part = read_engine(text, backend)
    if part.backend is None:
        raise missing_backend(text, part.at, backend)
    rest = f"{backend}:{text[part.joint_at + 1 :]}"
    if part.backend != backend:
        what = f"{part.backend!r} cannot stand on this side; write {rest}"
        raise AllocationError(text, part.at, what)
    if part.name is not None:
        raise AllocationError(text, part.name_at - 1, f"a name has no place here; write {rest}")
    if part.joint == ".":
        raise AllocationError(text, part.joint_at, f"'.' is the old form; write {rest}")
    return part


def _spell(dp: int, sizes: Mapping[str, int]) -> str:
    return f"d{dp}" + "".join(f"{letter}{size}" for letter, size in sizes.items() if size > 1)
