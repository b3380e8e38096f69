"""Which role lies on which devices, and where each device stands in the grids of its roles.

A device has one number, and for each role that lies on it a rank of that role with coordinates
of its own: tensor rank 1 of the actor may be tensor rank 0 of the reference.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mindrl.allocation.model_allocation import ModelAllocation
from mindrl.errors import ConfigError
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.layouts.rank_order import RankOrder

DIMENSIONS = ("tp", "cp", "dp", "pp", "etp", "ep", "edp")
"""The last three of the experts, the others of all else; edp are the copies of each expert."""


def dense_grid(layout: TrainLayout | RolloutLayout) -> RankOrder:
    """Return how the ranks lie over tp, cp, dp and pp, the fastest first."""
    if isinstance(layout, TrainLayout):
        return layout.dense_order
    return RankOrder(digits=(("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp)))


def expert_grid(layout: TrainLayout | RolloutLayout) -> RankOrder:
    """Return how the ranks lie over etp, ep, edp (the copies of each expert) and pp."""
    if isinstance(layout, TrainLayout):
        digits = layout.experts_order.digits
        return RankOrder(
            digits=tuple(("edp" if name == "dp" else name, size) for name, size in digits)
        )
    if layout.ep == 1:
        return RankOrder(digits=(("etp", layout.tp), ("pp", layout.pp), ("edp", layout.dp)))
    replicas = layout.ep // layout.tp
    return RankOrder(
        digits=(
            ("ep", layout.tp),
            ("pp", layout.pp),
            ("ep", replicas),
            ("edp", layout.dp // replicas),
        )
    )


@dataclass(frozen=True, kw_only=True)
class MappedRole:
    """A role on its devices."""

    role: str
    allocation: ModelAllocation
    devices: range
    """Rank 0 of the role is the first of them."""

    @cached_property
    def dense(self) -> RankOrder:
        """The grid of all but the experts."""
        return dense_grid(self.allocation.layout)

    @cached_property
    def expert(self) -> RankOrder:
        """The grid of the experts."""
        return expert_grid(self.allocation.layout)

    def grid_of(self, dimension: str) -> RankOrder:
        """Return the grid that has a dimension.

        Raises:
            ConfigError: Not one of `DIMENSIONS`.
        """
        if dimension not in DIMENSIONS:
            raise ConfigError(f"{dimension!r} is no dimension; known: {', '.join(DIMENSIONS)}")
        return self.expert if dimension in DIMENSIONS[4:] else self.dense

    def groups(self, dimension: str) -> list[list[int]]:
        """List the groups of devices that differ in this dimension only."""
        first = self.devices.start
        groups = self.grid_of(dimension).groups({dimension})
        return [[first + rank for rank in group] for group in groups]

    @property
    def leaders(self) -> list[int]:
        """The first device of each replica's last stage, in the order of the replicas."""
        return [self.devices.start + rank for rank in self.allocation.layout.leaders]


@dataclass(frozen=True, kw_only=True)
class RoleScope:
    """One device's view of one role."""

    placed: MappedRole
    device: int

    @property
    def rank(self) -> int:
        """The device's rank among those of the role."""
        return self.device - self.placed.devices.start

    @property
    def world_size(self) -> int:
        """Ranks of the role."""
        return len(self.placed.devices)

    def rank_in(self, dimension: str) -> int:
        """Return the device's place in a dimension: tp, cp, dp, pp, etp, ep or edp."""
        return self._place(dimension).get(dimension, 0)

    def group(self, dimension: str) -> list[int]:
        """Return the devices that differ from this one in this dimension only, itself included."""
        here = {**self._place(dimension), dimension: 0}
        places = self.placed.grid_of(dimension).coordinates
        first = self.placed.devices.start
        return [
            first + rank for rank, place in enumerate(places) if {**place, dimension: 0} == here
        ]

    def size_of(self, dimension: str) -> int:
        """Return the number of devices in this device's group."""
        return len(self.group(dimension))

    def _place(self, dimension: str) -> Mapping[str, int]:
        return self.placed.grid_of(dimension).coordinates[self.rank]


@dataclass(frozen=True, kw_only=True)
class DeviceMap:
    """Every role on its devices; roles may share devices, in whole or in part."""

    roles: Mapping[str, MappedRole]

    @property
    def devices(self) -> int:
        """Devices in all, numbered from 0."""
        return max((placed.devices.stop for placed in self.roles.values()), default=0)

    def scope(self, role: str, *, device: int) -> RoleScope:
        """Return a device's own ranks and groups under a role.

        Raises:
            ConfigError: The device_map has no such role, or not on this device.
        """
        placed = self._placed(role)
        if device not in placed.devices:
            devices = placed.devices
            raise ConfigError(
                f"device {device} holds no part of {role}; "
                f"that lies on devices {devices[0]} to {devices[-1]}"
            )
        return RoleScope(placed=placed, device=device)

    def roles_of(self, device: int) -> list[str]:
        """List the roles that lie on a device."""
        return [role for role, placed in self.roles.items() if device in placed.devices]

    def transfer_group(self, source: str, target: str) -> list[int]:
        """List the devices that speak for the replicas of two roles, to hand over a batch."""
        return sorted({*self._placed(source).leaders, *self._placed(target).leaders})

    def _placed(self, role: str) -> MappedRole:
        if role not in self.roles:
            raise ConfigError(f"there is no {role!r}; known: {', '.join(self.roles)}")
        return self.roles[role]


def map_roles(roles: Iterable[tuple[str, ModelAllocation, range]]) -> DeviceMap:
    """Put roles on devices that the caller chooses.

    Args:
        roles: Role, allocation and devices, which may overlap.

    Raises:
        ConfigError: A role twice, or on more or fewer devices than its layout has ranks.
    """
    placed: dict[str, MappedRole] = {}
    for role, allocation, devices in roles:
        if role in placed:
            raise ConfigError(f"{role} is placed twice; leave one out")
        ranks = allocation.world_size
        if devices != range(devices.start, devices.start + ranks) or devices.start < 0:
            raise ConfigError(
                f"{role}={allocation} cannot lie on {devices}; "
                f"it takes {ranks} devices one behind the other"
            )
        placed[role] = MappedRole(role=role, allocation=allocation, devices=devices)
    return DeviceMap(roles=placed)


def map_groups(groups: Sequence[Mapping[str, ModelAllocation]]) -> DeviceMap:
    """Put groups on devices one behind the other; the roles of a group share theirs.

    Args:
        groups: Allocations by role; those of a group have equally many ranks.

    Raises:
        ConfigError: A role stands in two groups, or the ranks of a group differ.
    """
    roles = []
    first = 0
    for group in groups:
        after = first + next(iter(group.values())).world_size
        roles += [(role, each, range(first, after)) for role, each in group.items()]
        first = after
    return map_roles(roles)
