"""Layouts that a configuration writes as strings, turned into the sizes that they say.

`actor_config.backend: megatron:d4p2t2` stands for four keys; from here on those have their values,
whichever way the user wrote them.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from mindrl.allocation.engines import SECTIONS, read_engines
from mindrl.allocation.mode import AllocationMode, parse_mode
from mindrl.allocation.model_allocation import ModelAllocation
from mindrl.allocation.refusals import AllocationError
from mindrl.config.finding import Finding
from mindrl.config.layout_sizes import DEVICES, ROLLOUT_SIZE_KEYS, SIZE_KEYS
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError

_RUNS = {"megatron", "vllm"}
_MODE = "rl_config.allocation_mode"
_BACKEND = "backend"

Sections = dict[str, Any]


def with_sizes(values: Mapping[str, Any]) -> Sections:
    """Return the sections of a configuration with the sizes that their strings say.

    Args:
        values: Nested mappings of plain values; a size that is None, or left out, is not given.

    Raises:
        ConfigError: A string cannot be read or run here, or something else that is given says
            otherwise.
    """
    sections = deepcopy(dict(values))
    mode = _mode(sections)
    if mode is not None:
        _write_backends(sections, mode)
    written = {
        engine: sections[name][_BACKEND]
        for engine, name in SECTIONS.items()
        if isinstance(_part(sections, name).get(_BACKEND), str) and sections[name][_BACKEND]
    }
    allocations = read_engines(written, SECTIONS)
    for engine, allocation in allocations.items():
        _write_sizes(sections, engine, allocation)
    _write_devices(sections, allocations)
    return _without_unset(sections)


def deprecation(values: Mapping[str, Any]) -> str | None:
    """Return what to write in place of `rl_config.allocation_mode`; None where it is not given.

    Args:
        values: As of `with_sizes`, which accepted them.
    """
    mode = _mode(values)
    if mode is None:
        return None
    fields = ", ".join(
        f"{SECTIONS[role]}.{_BACKEND}={each}" for role, each in mode.backends.items()
    )
    return f"{_MODE} is deprecated; write {fields}"


def in_words_of_backend(config: RunConfig, finding: Finding) -> Finding:
    """Say a finding on a size of the string that the size was written in; else as it is.

    Its legal values become strings of as many ranks.
    """
    section, _, key = finding.field.rpartition(".")
    engine = next((each for each, name in SECTIONS.items() if name == section), None)
    text = getattr(getattr(config, section, None), _BACKEND, "")
    if engine is None or not text or key not in _size_keys(engine).values():
        return finding
    field = f"{section}.{_BACKEND}"
    allocation = read_engines({engine: text}, SECTIONS)[engine]
    name = next(name for name, each in _size_keys(engine).items() if each == key)
    ranks = allocation.world_size
    sizes = [{name: size} for size in finding.legal if isinstance(size, int)]
    strings = (_of_ranks(allocation, ranks, **size) for size in sizes)
    legal = tuple(string for string in strings if string is not None)
    return replace(finding, text=f"{field}={text}: {finding}", field=field, value=text, legal=legal)


def _of_ranks(allocation: ModelAllocation, ranks: int, **sizes: int) -> str | None:
    """Spell an allocation with other sizes and so many replicas that its ranks are `ranks`."""
    layout = allocation.layout
    now = {name: getattr(layout, name, 1) for name in ("tp", "pp", "cp", "ep", "etp")} | sizes
    dp, rest = divmod(ranks, now["tp"] * now["pp"] * now["cp"])
    of_a_stage, experts = now["tp"] * now["cp"] * dp, now["ep"] * now["etp"]
    whole = allocation.trains or now["ep"] == 1 or now["ep"] % now["tp"] == 0
    if rest or of_a_stage % experts or not whole:
        return None
    changes: dict[str, Any] = {**sizes, "dp": dp}
    return str(replace(allocation, layout=replace(layout, **changes)))


def _size_keys(engine: str) -> Mapping[str, str]:
    return ROLLOUT_SIZE_KEYS if engine == "rollout" else SIZE_KEYS


def _part(sections: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section; empty where it is none, which the configuration's own rules refuse."""
    found = sections.get(name)
    return found if isinstance(found, dict) else {}


def _mode(sections: Mapping[str, Any]) -> AllocationMode | None:
    text = _part(sections, "rl_config").get("allocation_mode")
    if not isinstance(text, str):
        return None
    try:
        return parse_mode(text)
    except AllocationError as error:
        raise AllocationError(error.text, error.at, error.what, _MODE) from None


def _write_backends(sections: Sections, mode: AllocationMode) -> None:
    """Write what `allocation_mode` says of each engine into that engine's section."""
    if len(mode.groups) > 1:
        shared = "|".join(map(str, mode))
        raise ConfigError(
            f"{_MODE}={mode}: this version runs all engines on the same devices; "
            f"write | for +, with as many ranks on both sides, as in {shared}"
        )
    for role, allocation in mode.backends.items():
        section = SECTIONS.get(role, "")
        if not isinstance(sections.get(section), dict):
            raise ConfigError(f"{_MODE}={mode}: this run has no {role}; leave it out")
        own, said = sections[section].get(_BACKEND), str(allocation)
        if own and own != said:
            raise ConfigError(
                f"{section}.{_BACKEND}={own} and {_MODE}={mode} say different things; "
                f"leave {_MODE} out"
            )
        sections[section][_BACKEND] = said


def _write_sizes(sections: Sections, engine: str, allocation: ModelAllocation) -> None:
    section, layout = SECTIONS[engine], allocation.layout
    field = f"{section}.{_BACKEND}={allocation}"
    if allocation.backend not in _RUNS:
        runs = "vllm" if engine == "rollout" else "megatron"
        raise ConfigError(
            f"{field}: this version {'generates' if engine == 'rollout' else 'trains'} with "
            f"{runs}; nearest: {replace(allocation, backend=runs)}"
        )
    for name, key in _size_keys(engine).items():
        size, given = getattr(layout, name), sections[section].get(key)
        if given not in (None, size):
            raise ConfigError(
                f"{section}.{key}={given} and {field}, which says {size}, differ; "
                f"leave {section}.{key} out, or set it to null"
            )
        sections[section][key] = size


def _write_devices(sections: Sections, allocations: Mapping[str, ModelAllocation]) -> None:
    """Compare the ranks of all engines with the devices, or let the actor's say how many."""
    *path, key = DEVICES.split(".")
    place: Any = sections
    for name in path:
        place = place.setdefault(name, {}) if isinstance(place, dict) else None
    if not allocations or not isinstance(place, dict):
        return
    anchor = "actor" if "actor" in allocations else next(iter(allocations))
    devices = place.get(key)
    if devices is None:
        devices = place[key] = allocations[anchor].world_size
    for engine, allocation in allocations.items():
        if isinstance(devices, int) and allocation.world_size != devices:
            fitting = _of_ranks(allocation, devices)
            of_a_replica = allocation.world_size // allocation.layout.dp
            raise ConfigError(
                f"{SECTIONS[engine]}.{_BACKEND}={allocation} has {allocation.world_size} ranks, "
                f"and {DEVICES}={devices}; "
                + (f"write {fitting}" if fitting else f"{of_a_replica} must divide {devices}")
            )


def _without_unset(sections: Sections) -> Sections:
    """Leave out the sizes that nobody gave: the configuration has defaults for them."""
    for section, keys in (("actor_config", SIZE_KEYS), ("generate_config", ROLLOUT_SIZE_KEYS)):
        for key in keys.values():
            if key in _part(sections, section) and sections[section][key] is None:
                del sections[section][key]
    resource = _part(_part(sections, "rl_config"), "actor_resource")
    if isinstance(resource, dict) and resource.get("num_npus", 1) is None:
        del resource["num_npus"]
    return sections
