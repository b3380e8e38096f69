"""The `backend` field of each engine: what an empty one takes, and who shares devices."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from mindrl.allocation.device_map import DeviceMap, map_groups
from mindrl.allocation.model_allocation import ModelAllocation, parse_backend
from mindrl.allocation.refusals import AllocationError
from mindrl.errors import ConfigError
from mindrl.layouts.layout import TrainLayout

ENGINES = ("rollout", "actor", "critic", "ref", "reward", "teacher")
SECTIONS = {
    "rollout": "generate_config",
    "actor": "actor_config",
    "critic": "critic_config",
    "ref": "ref_config",
    "reward": "reward_config",
}
"""The section of a run's configuration that has the engine's `backend`."""
FOLLOWERS = frozenset({"critic", "ref"})
"""Engines whose empty field takes the actor's."""


def read_engines(
    backends: Mapping[str, str], sections: Mapping[str, str] | None = None
) -> Mapping[str, ModelAllocation]:
    """Read the backend fields of a run.

    Args:
        backends: The field of each engine that the run has; critic and ref may be empty.
        sections: What errors call the section of an engine; by default the engine's own name.

    Returns:
        The allocation of each engine, in the order of `ENGINES`.

    Raises:
        ConfigError: An unknown engine, an empty field that takes no other's, a string that
            cannot be read, or a backend of the wrong side.
    """
    for engine in backends:
        if engine not in ENGINES:
            near = get_close_matches(engine, ENGINES, n=1) or ENGINES
            raise ConfigError(
                f"{engine}.backend: there is no such engine; known: {', '.join(near)}"
            )
    named = {engine: f"{(sections or {}).get(engine, engine)}.backend" for engine in ENGINES}
    return {
        engine: _read_engine(engine, backends, named) for engine in ENGINES if engine in backends
    }


def map_engines(
    engines: Mapping[str, ModelAllocation], *, rollout_apart: bool = False
) -> DeviceMap:
    """Put engines on devices.

    Args:
        engines: As `read_engines` returns them.
        rollout_apart: The rollout takes the first devices for itself and the others share those
            behind; otherwise all share the same ones.

    Raises:
        ConfigError: Engines that share devices have different numbers of ranks.
    """
    apart = rollout_apart and "rollout" in engines
    sharing = {role: each for role, each in engines.items() if not apart or role != "rollout"}
    check_sharing(sharing)
    groups = [{"rollout": engines["rollout"]}, sharing] if apart else [sharing]
    return map_groups([group for group in groups if group])


def check_sharing(engines: Mapping[str, ModelAllocation]) -> None:
    """Refuse engines that share devices and have different numbers of ranks."""
    anchor = "actor" if "actor" in engines else next(iter(engines), "")
    for engine, allocation in engines.items():
        what = sharing_finding(allocation, anchor, engines[anchor])
        if what:
            raise ConfigError(f"{engine}.backend={allocation}: {what}")


def sharing_finding(allocation: ModelAllocation, other: str, others: ModelAllocation) -> str | None:
    """Say what is off where two engines share devices and their ranks differ; else None."""
    ranks, needed = allocation.world_size, others.world_size
    if ranks == needed:
        return None
    layout = allocation.layout
    of_a_replica = ranks // layout.dp
    if needed % of_a_replica:
        fix = f"{of_a_replica} ranks of a replica do not divide {needed}; change the sizes"
    elif isinstance(layout, TrainLayout) and layout.etp > 1:
        fix = f"write d{needed // of_a_replica} behind attn and no d behind ffn"
    else:
        fix = f"write d{needed // of_a_replica}"
    return f"this engine has {ranks} ranks and {other}, on the same devices, has {needed}; {fix}"


def _read_engine(
    engine: str, backends: Mapping[str, str], fields: Mapping[str, str]
) -> ModelAllocation:
    text, field = backends[engine], fields[engine]
    if not text and engine in FOLLOWERS:
        text, field = backends.get("actor", ""), fields["actor"]
        if not text:
            raise ConfigError(f"{fields[engine]} is empty and takes {field}; write that")
    suggested = "vllm" if engine == "rollout" else "megatron"
    try:
        allocation = parse_backend(text, suggested)
    except AllocationError as error:
        raise AllocationError(error.text, error.at, error.what, field) from None
    if allocation.trains == (engine == "rollout"):
        known = "vllm or sglang" if engine == "rollout" else "megatron, archon or fsdp"
        does = "generate" if engine == "rollout" else "train"
        what = f"{allocation.backend} does not {does}; write {known}"
        raise AllocationError(text, 0, what, field)
    if allocation.name not in (None, engine) and field == fields[engine]:
        at = text.index("[")
        what = f"the field says {engine} already; leave [{allocation.name}] out"
        raise AllocationError(text, at, what, field)
    return replace(allocation, name=None)
