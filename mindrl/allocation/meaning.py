"""Layouts as one word: `megatron:d4p2t2`, `megatron:(attn:d4t2|ffn:d2e4)`, `vllm:d2t4`.

A dimension is a letter and its size: d data, p pipeline, t tensor, c context, e expert, v virtual
pipeline chunks. An omitted size is 1; d may follow from the number of ranks instead. In the short
form experts are whole; after `ffn:` t cuts each expert, and d, the copies of each expert, follows
from the others.

The old `allocation_mode` has all engines of a run in one string: `sglang:d4t2+fsdp:d8` places two
on separate devices, in this order; `a|b` places both on the same devices and binds tighter. The
older `sglang.d2t2p1+d1t4p1` uses points instead of colons, and sizes without a backend for the
training engine.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

from mindrl.allocation.grammar import (
    AS_AREAL,
    AllocationError,
    EngineSpec,
    WrittenSizes,
    missing_backend,
    read,
    unknown_backend,
    unknown_dimension,
)
from mindrl.config.backends import (
    BACKENDS,
    LETTERS,
    ROLLOUT_BACKEND,
    TRAINING_BACKEND,
    TRAINING_BACKENDS,
)
from mindrl.config.finding import must_divide
from mindrl.errors import ConfigError
from mindrl.layouts.layout import RolloutLayout, TrainLayout

_MOST_DIGITS = 5


@dataclass(frozen=True, kw_only=True)
class ModelAllocation:
    """The parsed string of one engine; `str` returns its canonical form."""

    backend: str
    """A key of `BACKENDS`."""
    layout: TrainLayout | RolloutLayout
    """`TrainLayout` for a backend that trains, `RolloutLayout` for one that generates."""
    name: str | None = None
    """Name in brackets after the backend."""

    def __post_init__(self) -> None:
        """Assert that the backend and the layout are of the same side."""
        assert isinstance(self.layout, TrainLayout) == self.trains, self

    @property
    def trains(self) -> bool:
        """Whether the backend trains; otherwise it generates."""
        return BACKENDS[self.backend].trains

    @property
    def world_size(self) -> int:
        """Number of devices; expert parallelism adds none."""
        return self.layout.world_size

    @property
    def role(self) -> str:
        """The name, or the default for the backend's side: `actor` or `rollout`."""
        return self.name or ("actor" if self.trains else "rollout")

    def __str__(self) -> str:
        engine = f"{self.backend}[{self.name}]" if self.name else self.backend
        return layout_string(self.layout, engine)


@dataclass(frozen=True, kw_only=True)
class AllocationMode:
    """A parsed `allocation_mode`; `str` returns its canonical newer form."""

    groups: tuple[tuple[ModelAllocation, ...], ...]
    """Engines of a group share devices; each role appears once."""

    def __iter__(self) -> Iterator[ModelAllocation]:
        return chain.from_iterable(self.groups)

    def __str__(self) -> str:
        return "+".join("|".join(map(str, group)) for group in self.groups)

    @property
    def backends(self) -> Mapping[str, ModelAllocation]:
        """Value of each role's `backend` field."""
        return {each.role: replace(each, name=None) for each in self}


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Raise parse errors as one line without the caret."""
    try:
        yield
    except AllocationError as error:
        raise ConfigError(error.sentence) from error


@_in_one_line()
def parse_training(text: str, world_size: int | None = None) -> TrainLayout:
    """Parse a training layout, such as `archon:p2t2`; a missing d follows from `world_size`.

    Raises:
        ConfigError: The text is not a training layout, or not one with `world_size` ranks.
    """
    spec = _read_one(text, TRAINING_BACKEND, TRAINING_BACKENDS)
    assert spec.backend is not None, "mappings without one are refused"
    return _training_layout(text, spec, spec.backend.text, world_size)


@_in_one_line()
def parse_rollout(text: str, world_size: int | None = None) -> RolloutLayout:
    """Parse a rollout layout, such as `vllm:d2t4`; see `parse_training`."""
    spec = _read_one(text, ROLLOUT_BACKEND, (ROLLOUT_BACKEND,))
    return _rollout_layout(text, spec, ROLLOUT_BACKEND, world_size)


def parse_backend(text: str, suggested: str = TRAINING_BACKEND) -> ModelAllocation:
    """Parse the string of one engine, such as `megatron:(attn:d4p2t2c2|ffn:t4e2)`.

    Raises:
        AllocationError: The text cannot be parsed, or its sizes do not fit; without a backend, the
            error proposes `suggested`.
    """
    return _allocation(text, _read_one(text, suggested))


def parse_mode(text: str) -> AllocationMode:
    """Parse an `allocation_mode`, such as `vllm:d4t2|megatron:d2p2t2`.

    Raises:
        AllocationError: The text cannot be parsed, or its engines do not fit each other.
    """
    groups = read(text, "mode", AS_AREAL)
    specs = [*chain.from_iterable(groups)]
    old = any(spec.joint.text == "." for spec in specs)
    for spec in specs:
        if spec.backend is None and not old:
            raise missing_backend(text, spec.at, AS_AREAL)
        if spec.name is None and len(specs) > 2:
            what = "three or more engines need names, as in fsdp[critic]:d4"
            raise AllocationError(text, spec.at, what)
    # Specs have different positions, so no two are equal.
    engines = {spec: _allocation(text, spec) for spec in specs}
    _check_roles(text, engines)
    for first, *others in groups:
        for spec in others:
            _check_sharing(text, spec.at, engines[spec], engines[first])
    return AllocationMode(groups=tuple(tuple(engines[each] for each in group) for group in groups))


def layout_string(layout: TrainLayout | RolloutLayout, engine: str | None = None) -> str:
    """Return the string of a layout, for mindrl's default engine if `engine` is None.

    Rank orders and layers per chunk cannot be written, nor can chunks of a backend without `v`.
    """
    if isinstance(layout, RolloutLayout):
        sizes = {"d": layout.dp, "p": layout.pp, "t": layout.tp, "e": layout.ep}
        return f"{engine or ROLLOUT_BACKEND}:{_spell(sizes)}"
    engine = engine or TRAINING_BACKEND
    dense = {"d": layout.dp, "p": layout.pp, "t": layout.tp, "c": layout.cp}
    chunks = layout.vpp if "v" in BACKENDS[engine.partition("[")[0]].letters else 1
    if layout.etp == 1:
        return f"{engine}:{_spell({**dense, 'e': layout.ep, 'v': chunks})}"
    expert = {"d": layout.expert_dp, "p": layout.pp, "t": layout.etp, "e": layout.ep}
    return f"{engine}:(attn:{_spell({**dense, 'v': chunks})}|ffn:{_spell(expert)})"


def states_replicas(text: str) -> bool:
    """Return whether a layout has d, so that its number of ranks is known."""
    return re.search(r"[:\d]d\d", text) is not None


def _spell(sizes: Mapping[str, int]) -> str:
    return "".join(f"{name}{size}" for name, size in sizes.items() if size > 1 or name == "d")


def _read_one(text: str, suggested: str, only: Collection[str] = ()) -> EngineSpec:
    """Parse one engine; `only` restricts it to these backends, without a name."""
    ((spec,),) = read(text, "one", suggested)
    if spec.backend is None:
        raise missing_backend(text, spec.at, suggested)
    before, tail = text[: spec.joint.at], text[spec.joint.at + 1 :]
    if only and spec.backend.text not in only:
        what = f"{spec.backend.text!r} cannot be used on this side; write {suggested}:{tail}"
        raise AllocationError(text, spec.at, what)
    if only and spec.name:
        what = f"remove the name; write {spec.backend.text}:{tail}"
        raise AllocationError(text, spec.name.at - 1, what)
    if spec.joint.text == ".":
        what = f"'.' is the old form; write {before}:{tail}"
        raise AllocationError(text, spec.joint.at, what)
    return spec


def _allocation(text: str, spec: EngineSpec) -> ModelAllocation:
    """Check one engine of a string and return its allocation."""
    backend = spec.backend.text if spec.backend else TRAINING_BACKEND
    if backend not in BACKENDS:
        raise unknown_backend(text, spec.at, backend)
    judge = _training_layout if BACKENDS[backend].trains else _rollout_layout
    layout = judge(text, spec, backend)
    return ModelAllocation(backend=backend, layout=layout, name=spec.name and spec.name.text)


def _check_roles(text: str, engines: Mapping[EngineSpec, ModelAllocation]) -> None:
    seen: set[str] = set()
    for spec, allocation in engines.items():
        if allocation.role in seen:
            fix = "change one" if spec.name else f"name them, as in {allocation.backend}[critic]:d4"
            at = spec.name.at if spec.name else spec.at
            raise AllocationError(text, at, f"two engines are {allocation.role!r}; {fix}")
        seen.add(allocation.role)


def _check_sharing(text: str, at: int, allocation: ModelAllocation, other: ModelAllocation) -> None:
    """Refuse an engine whose number of ranks differs from one on the same devices."""
    ranks, needed = allocation.world_size, other.world_size
    if ranks == needed:
        return
    layout = allocation.layout
    of_a_replica = ranks // layout.dp
    if needed % of_a_replica:
        fix = f"{of_a_replica} ranks of a replica do not divide {needed}; change the sizes"
    elif isinstance(layout, TrainLayout) and layout.etp > 1:
        fix = f"write d{needed // of_a_replica} after attn and no d after ffn"
    else:
        fix = f"write d{needed // of_a_replica}"
    what = f"this engine has {ranks} ranks and {other.role}, on the same devices, has {needed}"
    raise AllocationError(text, at, f"{what}; {fix}")


def _training_layout(
    text: str, spec: EngineSpec, backend: str, world_size: int | None = None
) -> TrainLayout:
    rules = BACKENDS[backend]
    if spec.expert_sizes is None:
        sizes = _sizes(text, spec.sizes, rules.letters, backend)
        expert = replace(sizes, of={"e": sizes["e"]})
    elif rules.attn:
        sizes = _sizes(text, spec.sizes, rules.attn, "attn")
        expert = _sizes(text, spec.expert_sizes, rules.ffn, "ffn")
    else:
        what = f"{backend} takes one list of sizes; write {TRAINING_BACKEND}{text[spec.joint.at :]}"
        raise AllocationError(text, spec.joint.at + 1, what)
    tp, cp, pp = sizes["t"], sizes["c"], sizes["p"]
    if world_size is None and "d" in expert.of and "d" not in sizes.of:
        world_size = expert["d"] * expert["t"] * expert["e"] * pp
    dp = _replicas(sizes, "ptc", world_size)
    _check_experts(expert, tp * cp * dp, pp)
    return TrainLayout(tp=tp, cp=cp, dp=dp, pp=pp, vpp=sizes["v"], ep=expert["e"], etp=expert["t"])


def _rollout_layout(
    text: str, spec: EngineSpec, backend: str, world_size: int | None = None
) -> RolloutLayout:
    if spec.expert_sizes is not None:
        what = f"the rollout side takes one list of sizes; write {backend}:d2t4"
        raise AllocationError(text, spec.joint.at + 1, what)
    sizes = _sizes(text, spec.sizes, BACKENDS[backend].letters, backend)
    dp = _replicas(sizes, "pt", world_size)
    tp, ep = sizes["t"], sizes["e"]
    if ep > 1 and (ep % tp or tp * dp % ep):
        near = ", ".join(str(tp * copies) for copies in range(1, dp + 1) if dp % copies == 0)
        raise sizes.error("e", f"e must be 1, or t={tp} times a divisor of d={dp}: {near}")
    return RolloutLayout(tp=tp, pp=sizes["p"], dp=dp, ep=ep)


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """One list of dimensions, and the position of each in the text."""

    text: str
    of: Mapping[str, int]
    at: Mapping[str, int]

    def __getitem__(self, letter: str) -> int:
        return self.of.get(letter, 1)

    def error(self, letter: str, what: str) -> AllocationError:
        """Return an error that points at a dimension."""
        return AllocationError(self.text, self.at[letter], what)


def _sizes(text: str, written: WrittenSizes, letters: str, place: str) -> _Sizes:
    """Check a list of dimensions one by one."""
    of: dict[str, int] = {}
    at: dict[str, int] = {}
    for (letter, where), (digits, tail) in written:
        # A size of 1 is allowed for every known dimension: it is the same as omitting it.
        if letter not in letters and (letter not in LETTERS or digits != "1"):
            raise unknown_dimension(text, where, place, letters)
        if letter in of:
            raise AllocationError(text, where, f"{letter} is given twice; remove one")
        plain = digits.lstrip("0")
        if plain != digits or len(digits) > _MOST_DIGITS:
            example = plain if 0 < len(plain) <= _MOST_DIGITS else "2"
            what = f"{letter} needs a size from 1 to 99999, such as {letter}{example}"
            raise AllocationError(text, tail, what)
        of[letter], at[letter] = int(digits), where
    return _Sizes(text=text, of=of, at=at)


def _replicas(sizes: _Sizes, others: str, world_size: int | None) -> int:
    """Return d, as written or as it follows from the ranks."""
    dp, rest = sizes["d"], prod(sizes[letter] for letter in others)
    if world_size is None or world_size == dp * rest:
        return dp
    if "d" in sizes.of:
        fix = f"write d{world_size // rest}" if world_size % rest == 0 else "change the sizes"
        raise sizes.error("d", f"this layout has {dp * rest} ranks, not {world_size}; {fix}")
    spelled = " x ".join(letter for letter in others if letter in sizes.of)
    for finding in must_divide(f"{sizes.text}: {spelled}", rest, "the ranks", world_size):
        raise ConfigError(str(finding))
    return world_size // rest


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
