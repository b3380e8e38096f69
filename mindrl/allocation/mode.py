"""The old `allocation_mode`: all engines of a run in one string, in both of its generations.

`sglang:d4t2+fsdp:d8` puts two engines on devices of their own, first the first; `a|b` puts both on
the same devices and binds tighter. The older `sglang.d2t2p1+d1t4p1` has points for colons, and
sizes without a backend for the engine that trains.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from mindrl.allocation.device_map import DeviceMap, map_groups
from mindrl.allocation.engines import sharing_finding
from mindrl.allocation.grammar import Part, read_mode
from mindrl.allocation.model_allocation import ModelAllocation, allocation_of
from mindrl.allocation.refusals import AllocationError, missing_backend

_OLD_TRAINER = "megatron"
"""What trained where the oldest form named no backend."""


@dataclass(frozen=True, kw_only=True)
class AllocationMode:
    """What an `allocation_mode` says; `str` spells it in its newer form, canonically."""

    groups: tuple[tuple[ModelAllocation, ...], ...]
    """Those of a group share devices; no role stands twice."""

    def __iter__(self) -> Iterator[ModelAllocation]:
        return chain.from_iterable(self.groups)

    def __getitem__(self, role: str) -> ModelAllocation:
        return {allocation.role: allocation for allocation in self}[role]

    def __str__(self) -> str:
        return "+".join("|".join(map(str, group)) for group in self.groups)

    @property
    def world_size(self) -> int:
        """Devices in all; those that are shared count once."""
        return sum(group[0].world_size for group in self.groups)

    @property
    def device_map(self) -> DeviceMap:
        """Every role on its devices."""
        return map_groups([{each.role: each for each in group} for group in self.groups])

    @property
    def backends(self) -> Mapping[str, ModelAllocation]:
        """What the `backend` field of each role would say."""
        return {each.role: replace(each, name=None) for each in self}

    @property
    def deprecation(self) -> str:
        """A note for the user: the fields that say the same."""
        fields = ", ".join(f"{role}.backend: {each}" for role, each in self.backends.items())
        return f"allocation_mode is deprecated; write {fields}"


def parse_mode(text: str) -> AllocationMode:
    """Read an `allocation_mode`.

    Args:
        text: For example `vllm:d4t2|megatron:d2p2t2`.

    Raises:
        AllocationError: The text is none, or its parts do not fit each other.
    """
    groups = read_mode(text, _OLD_TRAINER)
    parts = list(chain.from_iterable(groups))
    old = any(part.joint == "." for part in parts)
    for part in parts:
        if part.backend is None and not old:
            raise missing_backend(text, part.at, _OLD_TRAINER)
        if part.name is None and len(parts) > 2:
            what = "of three engines or more each has a name, as in fsdp[critic]:d4"
            raise AllocationError(text, part.at, what)
    read = tuple(
        tuple(allocation_of(text, part, _OLD_TRAINER) for part in group) for group in groups
    )
    _check_roles(text, parts, list(chain.from_iterable(read)))
    for group, allocations in zip(groups, read, strict=True):
        _check_sharing(text, group, allocations)
    return AllocationMode(groups=read)


def _check_roles(text: str, parts: list[Part], allocations: list[ModelAllocation]) -> None:
    seen: set[str] = set()
    for part, allocation in zip(parts, allocations, strict=True):
        if allocation.role in seen:
            fix = "change one" if part.name else f"name them, as in {allocation.backend}[critic]:d4"
            at = part.name_at if part.name else part.at
            raise AllocationError(text, at, f"two engines are {allocation.role!r}; {fix}")
        seen.add(allocation.role)


def _check_sharing(
    text: str, parts: tuple[Part, ...], allocations: tuple[ModelAllocation, ...]
) -> None:
    first = allocations[0]
    for part, allocation in zip(parts, allocations, strict=True):
        what = sharing_finding(allocation, first.role, first)
        if what:
            raise AllocationError(text, part.at, what)
