"""Placement of roles on devices. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from mindrl.config.layout_keys import DEVICES, RESOURCES, Role
from mindrl.config.run import RunConfig


def devices_key(config: RunConfig, role: Role) -> str:
    """Return the key of a role's number of devices: its own, or the actor's."""
    own = f"{RESOURCES[role]}.num_npus"
    return own if config.value_of(own) else DEVICES


def places(config: RunConfig) -> tuple[tuple[Role, ...], ...]:
    """Return the roles of each training device; empty if each has all of them."""
    if not config.is_spread:
        return ()
    devices = {role: config.role_devices(role) for role in config.roles}
    return tuple(
        tuple(role for role in devices if rank in devices[role])
        for rank in range(config.world_size)
    )


def train_concurrently(config: RunConfig) -> bool:
    """Return whether actor and critic may train concurrently: no shared device, no NaN `stop`."""
    both = {*config.role_devices("actor")} & {*config.role_devices("critic")}
    return not both and config.megatron_training.on_nonfinite != "stop"


def end_of(place: Mapping[str, Any], actors: Mapping[str, Any]) -> int:
    """Return the index after the last device of a role, from its section and the actor's."""
    first = place.get("first_npu")
    begin = actors.get("first_npu") if first is None else first
    return int(begin or 0) + int(place.get("num_npus") or actors.get("num_npus") or 1)
