"""Which releases of MindSpeed-RL a file may be of."""

from collections.abc import Iterable

from mindrl.migrate.keys import KEYS, NEWEST, RELEASES


def releases_of(key: str) -> range:
    """Return which of `RELEASES` have a key: `rl_config.clip_ratio`, or `role.key` of a model."""
    return KEYS.get(key, range(NEWEST + 1))


def looks_like(keys: Iterable[str]) -> str:
    """Say which releases have all of some keys: `2.0`, `2.1 to 2.2`, `2.3 or later`."""
    known = list(keys)
    newest = max(known, key=lambda key: releases_of(key).start, default="")
    oldest = min(known, key=lambda key: releases_of(key).stop, default="")
    first, last = releases_of(newest).start, releases_of(oldest).stop - 1
    if first > last:
        return (
            f"of no one release: {oldest.partition('.')[2]} went with {RELEASES[last]}, "
            f"{newest.partition('.')[2]} came with {RELEASES[first]}"
        )
    if first == last:
        return RELEASES[first]
    return f"{RELEASES[first]} {'or later' if last == NEWEST else f'to {RELEASES[last]}'}"
