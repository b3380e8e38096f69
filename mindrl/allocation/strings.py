"""Layouts as one word: `megatron:d4p2t2`, `megatron:(attn:d4t2|ffn:d2e4)`, `vllm:d2t4`.

A dimension is a letter and its size: d data, p pipeline, t tensor, c context, e expert, v virtual
pipeline chunks. What is left out is 1; d may follow from the number of ranks instead. In the
short form experts are whole; behind `ffn:` t cuts each expert, and d, the copies of each expert,
follows from the others.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mindrl.allocation.layout import RolloutLayout, TrainLayout
from mindrl.config.validate import must_divide
from mindrl.errors import ConfigError

_DIMENSION = re.compile(r"([a-z]?)(\d*)")
_BODIES = re.compile(r"\(attn:(?P<attn>[^|()]*)\|ffn:(?P<ffn>[^|()]*)\)|(?P<both>[^|()]*)")
_MOST_DIGITS = 5
_EXAMPLES = {
    "megatron": "megatron:d4p2t2 or megatron:(attn:d4t2|ffn:d2e4)",
    "vllm": "vllm:d2t4",
}


def parse_training(text: str, world_size: int | None = None) -> TrainLayout:
    """Read a training layout.

    Args:
        text: For example `megatron:d4p2t2`.
        world_size: Ranks that it must have; a missing d follows from it.

    Raises:
        ConfigError: The text is no training layout, or not one of so many ranks.
    """
    start, bodies = _bodies(text, "megatron")
    if bodies["both"] is not None:
        sizes = _sizes(text, start, "dptcev", "megatron")
        expert = _Sizes(text=text, at=sizes.at, of={"e": sizes.of.get("e", 1)})
    else:
        sizes = _sizes(text, bodies.start("attn"), "dptcv", "attn")
        expert = _sizes(text, bodies.start("ffn"), "dpte", "ffn")
    tp, cp, pp = sizes["t"], sizes["c"], sizes["p"]
    if world_size is None and "d" in expert.of and "d" not in sizes.of:
        world_size = expert["d"] * expert["t"] * expert["e"] * pp
    dp = _replicas(sizes, "ptc", world_size)
    _check_experts(expert, tp * cp * dp, pp)
    return TrainLayout(tp=tp, cp=cp, dp=dp, pp=pp, vpp=sizes["v"], ep=expert["e"], etp=expert["t"])


def parse_rollout(text: str, world_size: int | None = None) -> RolloutLayout:
    """Read a rollout layout.

    Args:
        text: For example `vllm:d2t4`.
        world_size: Ranks that it must have; a missing d follows from it.

    Raises:
        ConfigError: The text is no rollout layout, or not one of so many ranks.
    """
    start, bodies = _bodies(text, "vllm")
    if bodies["both"] is None:
        raise _error(text, start, f"the rollout side has one list; write {_EXAMPLES['vllm']}")
    sizes = _sizes(text, start, "dpte", "vllm")
    dp = _replicas(sizes, "pt", world_size)
    tp, ep = sizes["t"], sizes["e"]
    if ep > 1 and (ep % tp or tp * dp % ep):
        near = ", ".join(str(tp * copies) for copies in range(1, dp + 1) if dp % copies == 0)
        raise sizes.error("e", f"e must be 1, or t={tp} times a divisor of d={dp}: {near}")
    return RolloutLayout(tp=tp, pp=sizes["p"], dp=dp, ep=ep)


def training_string(layout: TrainLayout) -> str:
    """Spell a training layout; the orders of its ranks and uneven stages have no spelling."""
    if layout.etp == 1:
        sizes = {"p": layout.pp, "t": layout.tp, "c": layout.cp, "e": layout.ep, "v": layout.vpp}
        return f"megatron:{_spell(layout.dp, sizes)}"
    dense = {"p": layout.pp, "t": layout.tp, "c": layout.cp, "v": layout.vpp}
    expert = {"p": layout.pp, "t": layout.etp, "e": layout.ep}
    return f"megatron:(attn:{_spell(layout.dp, dense)}|ffn:{_spell(layout.expert_dp, expert)})"


def rollout_string(layout: RolloutLayout) -> str:
    """Spell a rollout layout."""
    return f"vllm:{_spell(layout.dp, {'p': layout.pp, 't': layout.tp, 'e': layout.ep})}"


def states_replicas(text: str) -> bool:
    """Say whether a layout states d, so that its number of ranks is known."""
    return re.search(r"[:\d]d\d", text) is not None


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """One list of dimensions, and where each stands in the text."""

    text: str
    of: Mapping[str, int]
    at: Mapping[str, int]

    def __getitem__(self, letter: str) -> int:
        return self.of.get(letter, 1)

    def error(self, letter: str, what: str) -> ConfigError:
        """Point at a dimension."""
        return _error(self.text, self.at[letter], what)


def _bodies(text: str, backend: str) -> tuple[int, re.Match[str]]:
    """Split off the backend; returns where the lists start, and the lists."""
    example = _EXAMPLES[backend]
    named, colon, rest = text.partition(":")
    if not colon or "(" in named:
        raise _error(text, 0, f"the backend is missing; write {backend}:{text or 'd2t2'}")
    if named != backend:
        raise _error(text, 0, f"{named!r} cannot stand on this side; write {backend}:{rest}")
    start = len(named) + 1
    found = _BODIES.match(text, start)
    assert found is not None, "the second form matches the empty text"
    if found.end() < len(text):
        raise _error(text, found.end(), f"{text[found.end()]!r} is not expected; write {example}")
    return start, found


def _sizes(text: str, start: int, letters: str, place: str) -> _Sizes:
    """Read a list of dimensions, as far as it goes."""
    of: dict[str, int] = {}
    at: dict[str, int] = {}
    while start < len(text) and text[start] not in "|)":
        found = _DIMENSION.match(text, start)
        assert found is not None, "both parts may be empty"
        letter, size = found.groups()
        if letter not in letters or not letter:
            known = ", ".join(letters)
            raise _error(text, start, f"{text[start]!r} is no dimension of {place}; known: {known}")
        if letter in of:
            raise _error(text, start, f"{letter} is given twice; leave one out")
        if not 0 < len(size) <= _MOST_DIGITS or int(size) == 0:
            raise _error(text, start + 1, f"{letter} needs a size of 1 to 99999, as in {letter}2")
        of[letter], at[letter] = int(size), start
        start = found.end()
    if not of:
        raise _error(text, start, f"{place} needs a dimension, as in d2t2")
    return _Sizes(text=text, of=of, at=at)


def _replicas(sizes: _Sizes, others: str, world_size: int | None) -> int:
    """Return d, as stated or as it follows from the ranks."""
    rest = 1
    for letter in others:
        rest *= sizes[letter]
    if world_size is None:
        return sizes["d"]
    if "d" not in sizes.of:
        spelled = " x ".join(letter for letter in others if letter in sizes.of)
        for finding in must_divide(f"{sizes.text}: {spelled}", rest, "the ranks", world_size):
            raise ConfigError(finding)
        return world_size // rest
    if sizes["d"] * rest != world_size:
        fix = f"write d{world_size // rest}" if world_size % rest == 0 else "change the sizes"
        needed = f"{sizes['d'] * rest} ranks, not {world_size}; {fix}"
        raise sizes.error("d", f"this layout has {needed}")
    return sizes["d"]


def _check_experts(expert: _Sizes, ranks_of_stage: int, pp: int) -> None:
    """Refuse an expert grid that does not cover the same ranks as the dense one."""
    if "p" in expert.of and expert["p"] != pp:
        raise expert.error("p", f"attn and ffn share the stages; write p{pp}")
    shared = expert["t"] * expert["e"]
    named = [letter for letter in "te" if expert[letter] > 1]
    for finding in must_divide(" x ".join(named), shared, "the ranks of a stage", ranks_of_stage):
        raise expert.error(named[-1], finding)
    copies = ranks_of_stage // shared
    if "d" in expert.of and expert["d"] != copies:
        raise expert.error("d", f"{ranks_of_stage} ranks of a stage leave d{copies}; write that")


def _spell(dp: int, sizes: Mapping[str, int]) -> str:
    return f"d{dp}" + "".join(f"{letter}{size}" for letter, size in sizes.items() if size > 1)


def _error(text: str, at: int, what: str) -> ConfigError:
    return ConfigError(f"{text}, character {at + 1}: {what}")
