"""Configurations of runs as dotted keys, and their differences."""

from collections.abc import Iterator, Mapping, Sequence

from mindrl.observability.output_files import json_text


def flat(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each dotted key with its value as JSON."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, json_text(value)


def differences(configs: Sequence[Mapping[str, object]]) -> list[tuple[str, list[str | None]]]:
    """Return each key that differs between runs, with the value of each; None if missing."""
    flats = [dict(flat(config)) for config in configs]
    keys = dict.fromkeys(key for each in flats for key in each)
    rows = [(key, [each.get(key) for each in flats]) for key in keys]
    return [(key, values) for key, values in rows if len({*values}) > 1]
