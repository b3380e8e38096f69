"""From one part of an allocation string to a layout: which sizes are legal, and what follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from mindrl.allocation.backends import BACKENDS, LETTERS
from mindrl.allocation.grammar import Dimension, Part
from mindrl.allocation.refusals import AllocationError, unknown_dimension
from mindrl.config.finding import must_divide
from mindrl.errors import ConfigError
from mindrl.layouts.layout import RolloutLayout, TrainLayout

_MOST_DIGITS = 5


def training_layout(text: str, part: Part, world_size: int | None = None) -> TrainLayout:
    """Return the layout of a training engine.

    Args:
        text: The string that the part stands in.
        part: Of a backend that trains.
        world_size: Ranks that it must have; a missing d follows from it.

    Raises:
        ConfigError: Sizes that do not fit the backend, each other or the ranks.
    """
    rules = BACKENDS[part.backend or ""]
    if part.expert_sizes is None:
        sizes = _sizes(text, part.sizes, rules.letters, part.backend or "")
        expert = _Sizes(text=text, at=sizes.at, of={"e": sizes.of.get("e", 1)})
    elif not rules.dense_letters:
        what = f"{part.backend} has one list of sizes; write megatron{text[part.joint_at :]}"
        raise AllocationError(text, part.joint_at + 1, what)
    else:
        sizes = _sizes(text, part.sizes, rules.dense_letters, "attn")
        expert = _sizes(text, part.expert_sizes, rules.expert_letters, "ffn")
    tp, cp, pp = sizes["t"], sizes["c"], sizes["p"]
    if world_size is None and "d" in expert.of and "d" not in sizes.of:
        world_size = expert["d"] * expert["t"] * expert["e"] * pp
    dp = _replicas(sizes, "ptc", world_size)
    _check_experts(expert, tp * cp * dp, pp)
    return TrainLayout(tp=tp, cp=cp, dp=dp, pp=pp, vpp=sizes["v"], ep=expert["e"], etp=expert["t"])


def rollout_layout(text: str, part: Part, world_size: int | None = None) -> RolloutLayout:
    """Return the layout of a rollout engine.

    Args:
        text: The string that the part stands in.
        part: Of a backend that generates.
        world_size: Ranks that it must have; a missing d follows from it.

    Raises:
        ConfigError: Sizes that do not fit the backend, each other or the ranks.
    """
    backend = part.backend or ""
    if part.expert_sizes is not None:
        what = f"the rollout side has one list; write {backend}:d2t4"
        raise AllocationError(text, part.joint_at + 1, what)
    sizes = _sizes(text, part.sizes, BACKENDS[backend].letters, backend)
    dp = _replicas(sizes, "pt", world_size)
    tp, ep = sizes["t"], sizes["e"]
    if ep > 1 and (ep % tp or tp * dp % ep):
        near = ", ".join(str(tp * copies) for copies in range(1, dp + 1) if dp % copies == 0)
        raise sizes.error("e", f"e must be 1, or t={tp} times a divisor of d={dp}: {near}")
    return RolloutLayout(tp=tp, pp=sizes["p"], dp=dp, ep=ep)


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """One list of dimensions, and where each stands in the text."""

    text: str
    of: Mapping[str, int]
    at: Mapping[str, int]

    def __getitem__(self, letter: str) -> int:
        return self.of.get(letter, 1)

    def error(self, letter: str, what: str) -> AllocationError:
        """Point at a dimension."""
        return AllocationError(self.text, self.at[letter], what)


def _sizes(text: str, dimensions: tuple[Dimension, ...], letters: str, place: str) -> _Sizes:
    """Judge a list of dimensions one by one."""
    of: dict[str, int] = {}
    at: dict[str, int] = {}
    for each in dimensions:
        letter, digits = each.letter, each.digits
        # One rank along a dimension is none: it is as if left out, whatever the backend has.
        if letter not in letters and (letter not in LETTERS or digits != "1"):
            raise unknown_dimension(text, each.at, place, letters)
        if letter in of:
            raise AllocationError(text, each.at, f"{letter} is given twice; leave one out")
        plain = digits.lstrip("0")
        if not 0 < len(digits) <= _MOST_DIGITS or plain != digits:
            example = f"{letter}{plain if 0 < len(plain) <= _MOST_DIGITS else 2}"
            what = f"{letter} needs a size of 1 to 99999, as in {example}"
            raise AllocationError(text, each.at + 1, what)
        of[letter], at[letter] = int(digits), each.at
    return _Sizes(text=text, of=of, at=at)


def _replicas(sizes: _Sizes, others: str, world_size: int | None) -> int:
    """Return d, as stated or as it follows from the ranks."""
    rest = prod(sizes[letter] for letter in others)
    if world_size is None:
        return sizes["d"]
    if "d" not in sizes.of:
        spelled = " x ".join(letter for letter in others if letter in sizes.of)
        for finding in must_divide(f"{sizes.text}: {spelled}", rest, "the ranks", world_size):
            raise ConfigError(str(finding))
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
        raise expert.error(named[-1], str(finding))
    copies = ranks_of_stage // shared
    if "d" in expert.of and expert["d"] != copies:
        raise expert.error("d", f"{ranks_of_stage} ranks of a stage leave d{copies}; write that")
