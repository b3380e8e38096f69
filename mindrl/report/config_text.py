"""What was configured: each key with its value, and where runs differ."""

from collections.abc import Iterator, Mapping, Sequence

from mindrl.observability.output_files import json_text


def flat(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each key by dots with its value as JSON."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, json_text(value)


def differences(configs: Sequence[Mapping[str, object]]) -> list[tuple[str, list[str | None]]]:
    """Return each key that is not alike in all, with the value of each; None is no such key."""
    flats = [dict(flat(config)) for config in configs]
    keys = dict.fromkeys(key for each in flats for key in each)
    rows = [(key, [each.get(key) for each in flats]) for key in keys]
    return [(key, values) for key, values in rows if len({*values}) > 1]
