"""Provenance of a run: seed, versions, commit."""

import platform
import subprocess
from pathlib import Path

from mindrl.config.run import RunConfig
from mindrl.doctor.declared import declared, installed_version

_CHECKOUT = Path(__file__).resolve().parents[2]
_GIT_SECONDS = 10.0


def provenance(config: RunConfig) -> dict[str, object]:
    """Return the facts needed to repeat a run, except configuration and data."""
    needed = declared()
    wanted = [*needed.own]
    for extra, requirements in needed.extras.items():
        wanted += requirements if extra != "dev" else ()
    found = {name: installed_version(name) for name in ("mindrl", *(each.name for each in wanted))}
    installed = {name: version for name, version in found.items() if version is not None}
    return {
        "seed": config.megatron_training.seed,
        "commit": commit(_CHECKOUT),
        "versions": {"python": platform.python_version()} | installed,
    }


def commit(checkout: Path) -> str | None:
    """Return the commit of a checkout, with `-dirty` if files differ; None if it is no checkout."""
    if not (checkout / ".git").exists():
        return None
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    command = ["git", "-C", str(checkout), *describe]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
