"""Convert allocation strings in a configuration into sizes.

`actor_config.backend: megatron:d4p2t2` sets four keys. After this conversion those keys have their
values, whichever form the user wrote.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from mindrl.allocation.grammar import AllocationError
from mindrl.allocation.meaning import AllocationMode, ModelAllocation, parse_backend, parse_mode
from mindrl.config.backends import BACKENDS, ROLLOUT_BACKEND, SERVED_BACKENDS, TRAINING_BACKEND
from mindrl.config.finding import Finding
from mindrl.config.layout_keys import (
    DEVICES,
    RESOURCES,
    ROLLOUT_DEVICES,
    ROLLOUT_SIZE_KEYS,
    SIZE_KEYS,
)
from mindrl.config.role_places import end_of
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError

ENGINES = ("rollout", "actor", "critic", "ref", "reward", "teacher")
SECTIONS = {"rollout": "generate_config"} | {role: f"{role}_config" for role in ENGINES[1:]}
"""Configuration section with the engine's `backend`."""
FOLLOWERS = frozenset({"critic", "ref", "teacher"})
"""Engines that use the actor's string if their own is empty."""
_MODE = "rl_config.allocation_mode"
_BACKEND = "backend"
_COUNT = "num_npus"

Sections = dict[str, Any]


def with_sizes(values: Mapping[str, Any]) -> Sections:
    """Return the sections of a configuration with the sizes of their allocation strings.

    A size that is None or absent is unset.

    Raises:
        ConfigError: A string cannot be parsed or run here, or contradicts another setting.
    """
    sections = deepcopy(dict(values))
    mode = _mode(sections)
    if mode is not None:
        _write_backends(sections, mode)
    fields = {engine: _section(sections, name).get(_BACKEND) for engine, name in SECTIONS.items()}
    written = {engine: text for engine, text in fields.items() if isinstance(text, str) and text}
    allocations = read_engines(written, SECTIONS)
    for engine, allocation in allocations.items():
        _write_sizes(sections, engine, allocation)
    _write_devices(sections, allocations)
    _leave_unset_out(sections)
    return sections


def without_unset(values: Mapping[str, Any]) -> Sections:
    """Return the sections of a configuration without unset sizes."""
    sections = deepcopy(dict(values))
    _leave_unset_out(sections)
    return sections


def deprecation(values: Mapping[str, Any]) -> str | None:
    """Return what to write in place of `rl_config.allocation_mode`; None if it is unset.

    `values` must have passed `with_sizes`.
    """
    mode = _mode(values)
    if mode is None:
        return None
    written = mode.backends.items()
    fields = ", ".join(f"{SECTIONS[role]}.{_BACKEND}={each}" for role, each in written)
    return f"{_MODE} is deprecated; write {fields}"


def in_words_of_backend(config: RunConfig, finding: Finding) -> Finding:
    """Rewrite a finding about a size for the allocation string that set it, if one did.

    Legal values become strings with the same number of ranks.
    """
    section, _, key = finding.field.rpartition(".")
    engine = next((each for each, name in SECTIONS.items() if name == section), "")
    names = {each: name for name, each in _side(engine)[1].items()}
    field = f"{section}.{_BACKEND}"
    text = config.value_of(field) if engine and key in names else None
    if not isinstance(text, str) or not text:
        return finding
    allocation = replace(parse_backend(text), name=None)
    if names[key] in _separate_sizes(allocation):
        return finding
    sizes = [{names[key]: size} for size in finding.legal if isinstance(size, int)]
    strings = (_of_ranks(allocation, allocation.world_size, **size) for size in sizes)
    legal = tuple(string for string in strings if string is not None)
    return replace(finding, text=f"{field}={text}: {finding}", field=field, value=text, legal=legal)


def read_engines(
    backends: Mapping[str, str], sections: Mapping[str, str] | None = None
) -> Mapping[str, ModelAllocation]:
    """Parse the backend field of each engine of a run, in the order of `ENGINES`.

    Those of `FOLLOWERS` may be empty. `sections` maps engines to section names in errors; by
    default the engine's name is used.

    Raises:
        ConfigError: An unknown engine, an empty field without a default, a string that cannot be
            parsed, or a backend of the wrong side.
    """
    for engine in backends:
        if engine not in ENGINES:
            near = ", ".join(get_close_matches(engine, ENGINES, n=1) or ENGINES)
            raise ConfigError(f"{engine}.backend: unknown engine; known: {near}")
    fields = {engine: f"{(sections or {}).get(engine, engine)}.backend" for engine in ENGINES}
    read = {}
    for engine in (each for each in ENGINES if each in backends):
        source = "actor" if engine in FOLLOWERS and not backends[engine] else engine
        text, field = backends.get(source, ""), fields[source]
        if source != engine and not text:
            raise ConfigError(f"{fields[engine]} is empty; move {field} there")
        with _errors_of(field):
            read[engine] = _read_engine(text, engine, source)
    return read


def _read_engine(text: str, engine: str, source: str) -> ModelAllocation:
    """Parse the field of `source`, for an engine of the same side."""
    allocation = parse_backend(text, _side(engine)[0])
    if allocation.trains == (engine == "rollout"):
        does = "generate" if allocation.trains else "train"
        *names, last = (name for name, of in BACKENDS.items() if of.trains != allocation.trains)
        what = f"{allocation.backend} does not {does}; write {', '.join(names)} or {last}"
        raise AllocationError(text, 0, what)
    if allocation.name not in (None, engine) and source == engine:
        what = f"the field already names {engine}; remove [{allocation.name}]"
        raise AllocationError(text, text.index("["), what)
    return replace(allocation, name=None)


@contextmanager
def _errors_of(field: str) -> Iterator[None]:
    """Add the field's name to parse errors."""
    try:
        yield
    except AllocationError as error:
        raise AllocationError(error.text, error.at, error.what, field) from None


def _of_ranks(allocation: ModelAllocation, ranks: int, **sizes: int) -> str | None:
    """Return an allocation with other sizes and the replicas that make `ranks` ranks, or None."""
    layout = allocation.layout
    now = {name: getattr(layout, name, 1) for name in ("tp", "pp", "cp", "ep", "etp")} | sizes
    dp, rest = divmod(ranks, now["tp"] * now["pp"] * now["cp"])
    of_a_stage, experts = now["tp"] * now["cp"] * dp, now["ep"] * now["etp"]
    whole = allocation.trains or now["ep"] == 1 or now["ep"] % now["tp"] == 0
    if rest or of_a_stage % experts or not whole:
        return None
    changes: dict[str, Any] = {**sizes, "dp": dp}
    return str(replace(allocation, layout=replace(layout, **changes)))


def _side(engine: str) -> tuple[str, Mapping[str, str]]:
    """Return the default backend of an engine, and the configuration keys of its sizes."""
    rollout, training = (ROLLOUT_BACKEND, ROLLOUT_SIZE_KEYS), (TRAINING_BACKEND, SIZE_KEYS)
    return rollout if engine == "rollout" else training


def _separate_sizes(allocation: ModelAllocation) -> frozenset[str]:
    """Return the sizes that have their own keys: chunks, if the backend has no `v`."""
    return frozenset({"vpp"} if "v" in BACKENDS[allocation.backend].own_keys else ())


def _section(sections: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return a section; empty if it is not a dict, which later validation refuses."""
    found: Any = sections
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _mode(sections: Mapping[str, Any]) -> AllocationMode | None:
    text = _section(sections, "rl_config").get("allocation_mode")
    if not isinstance(text, str):
        return None
    with _errors_of(_MODE):
        return parse_mode(text)


def _write_backends(sections: Sections, mode: AllocationMode) -> None:
    """Write the parts of `allocation_mode` into the engines' sections."""
    _write_places(sections, mode)
    for role, allocation in mode.backends.items():
        section = SECTIONS.get(role, "")
        if not isinstance(sections.get(section), dict):
            raise ConfigError(f"{_MODE}={mode}: this run has no {role}; remove it")
        own, written = sections[section].get(_BACKEND), str(allocation)
        if own and own != written:
            raise ConfigError(
                f"{section}.{_BACKEND}={own} and {_MODE}={mode} differ; remove {_MODE}"
            )
        sections[section][_BACKEND] = written


def _write_places(sections: Sections, mode: AllocationMode) -> None:
    """Set whether the rollout has its own devices, and if so, which side comes first."""
    rl = sections["rl_config"]
    if len(mode.groups) == 1:
        if rl.get("use_integrated_worker") is False and len(mode.backends) > 1:
            raise ConfigError(
                f"{_MODE}={mode} shares the devices, but "
                "rl_config.use_integrated_worker=false gives the rollout its own; write "
                f"{'+'.join(map(str, mode))}"
            )
        return
    apart = [group for group in mode.groups if {each.role for each in group} == {"rollout"}]
    if len(mode.groups) > 2 or len(apart) != 1:
        others = "|".join(str(each) for each in mode if each.role != "rollout")
        rollout = mode.backends.get("rollout", f"{ROLLOUT_BACKEND}:d4")
        raise ConfigError(
            f"{_MODE}={mode}: only the rollout can have its own devices; write "
            f"{rollout}+{others}, with equal numbers of ranks on both sides of each |"
        )
    rl["use_integrated_worker"] = False
    resource = rl.get("rollout_resource")
    rl["rollout_resource"] = resource = resource if isinstance(resource, dict) else {}
    resource["first"] = mode.groups[0] == apart[0]


def _write_sizes(sections: Sections, engine: str, allocation: ModelAllocation) -> None:
    section, (runs, keys) = SECTIONS[engine], _side(engine)
    field = f"{section}.{_BACKEND}={allocation}"
    servers = sections[section].get("servers") or sections[section].get("servers_file")
    is_served = allocation.backend in SERVED_BACKENDS and servers
    if not allocation.trains and allocation.backend != runs and not is_served:
        nearest, served = replace(allocation, backend=runs), ", ".join(SERVED_BACKENDS)
        raise ConfigError(
            f"{field}: a run starts only {runs} engines, and {served} needs "
            f"generate_config.servers; nearest: {nearest}"
        )
    own_keys = _separate_sizes(allocation)
    for name, key in keys.items():
        size, given = getattr(allocation.layout, name), sections[section].get(key)
        if name in own_keys and (given is not None or allocation.layout.pp > 1):
            continue
        if given not in (None, size):
            raise ConfigError(
                f"{section}.{key}={given} differs from {size} in {field}; remove "
                f"{section}.{key} or set it to null"
            )
        sections[section][key] = size


def _write_devices(sections: Sections, allocations: Mapping[str, ModelAllocation]) -> None:
    """Check the engines' ranks against their devices, or set the device count from the first."""
    train = dict(allocations)
    if _section(sections, "rl_config").get("use_integrated_worker") is False:
        generate = train.pop("rollout", None)
        _write_count(sections, ROLLOUT_DEVICES, {"rollout": generate} if generate else {})
    for role, section in RESOURCES.items():
        if role in train and role != "actor" and _section(sections, section).get(_COUNT):
            _write_count(sections, f"{section}.{_COUNT}", {role: train.pop(role)})
    places = {role: _section(sections, section) for role, section in RESOURCES.items()}
    own = [
        each
        for role, each in places.items()
        if role != "actor" and any(size is not None for size in each.values())
    ]
    generate = train.pop("rollout", None) if own else None
    _write_count(sections, DEVICES, train)
    if generate is not None:
        actors = _section(sections, RESOURCES["actor"])
        ends = (end_of(each, actors) for each in (actors, *own))
        written = _described(sections, "rollout", generate)
        _require_ranks(written, generate, "the number of devices of all roles", max(ends))


def _write_count(
    sections: Sections, field: str, allocations: Mapping[str, ModelAllocation]
) -> None:
    *path, key = field.split(".")
    place: Any = sections
    for name in path:
        place = place.setdefault(name, {}) if isinstance(place, dict) else None
    if not allocations or not isinstance(place, dict):
        return
    if place.get(key) is None:
        first = next(iter(allocations.values()))
        place[key] = allocations.get("actor", first).world_size
    devices = place[key]
    # The configuration's count may be that of shared devices.
    is_apart = _section(sections, "rl_config").get("use_integrated_worker") is False
    is_one = is_apart and len({each.world_size for each in allocations.values()}) == 1
    for engine, allocation in allocations.items():
        if isinstance(devices, int):
            written = _described(sections, engine, allocation)
            _require_ranks(written, allocation, field, devices, offers_count=is_one)


def _described(sections: Sections, engine: str, allocation: ModelAllocation) -> str:
    """Return an allocation with the key that sets it."""
    if (mode := _mode(sections)) is not None and engine in mode.backends:
        return f"{_MODE}={mode}: {allocation}"
    return f"{SECTIONS[engine]}.{_BACKEND}={allocation}"


def _require_ranks(
    written: str,
    allocation: ModelAllocation,
    field: str,
    devices: int,
    *,
    offers_count: bool = False,
) -> None:
    ranks = allocation.world_size
    if ranks != devices:
        fitting = _of_ranks(allocation, devices)
        ways = " or ".join(filter(None, [f"{field}={ranks}" if offers_count else None, fitting]))
        fix = f"write {ways}" if ways else f"{ranks // allocation.layout.dp} must divide {devices}"
        raise ConfigError(
            f"{written} has {ranks} rank{'s' * (ranks > 1)}, and {field}={devices}; {fix}"
        )


def _leave_unset_out(sections: Sections) -> None:
    """Remove unset sizes, so that the configuration's defaults apply."""
    resource, _, devices = DEVICES.rpartition(".")
    actor, rollout = SIZE_KEYS.values(), ROLLOUT_SIZE_KEYS.values()
    keys = {SECTIONS["actor"]: actor, SECTIONS["rollout"]: rollout, resource: (devices,)}
    for path, names in keys.items():
        section = _section(sections, path)
        for name in names:
            if section.get(name, "given") is None:
                del section[name]
