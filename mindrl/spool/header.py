"""Values on which the jobs of a spool must agree: written by the first job, compared by others."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

from mindrl.errors import SpoolError
from mindrl.spool.files import sealed, unsealed, write_new

FORMAT = 2
CONTENT = "content of "
"""Prefix of the names of fingerprints, which a spool of an earlier version lacks.

A job whose `megatron_training.resume_allow` contains a key leaves its fingerprint out.
"""
_NAME = "spool.json"
_ID = "id"


def agree(root: Path, ours: Mapping[str, Any]) -> str:
    """Write the header of a new spool, or compare with the existing one; return the spool's id.

    `ours` are JSON values, each under the name by which the user changes it. The id is random.

    Raises:
        SpoolError: Names each value that differs.
        OSError: The folder cannot be written.
    """
    path, asked = root / _NAME, json.loads(json.dumps({"format": FORMAT, **ours}))
    header = {_ID: token_hex(8), **asked}
    if write_new(path, sealed(json.dumps(header, indent=2).encode("ascii"))):
        return str(header[_ID])
    found = json.loads(unsealed(path))
    identity = str(found.pop(_ID, ""))
    lines = [*_differences(found, asked)]
    if lines:
        raise SpoolError(f"{root} is the spool of other jobs:\n" + "\n".join(lines))
    return identity


def _differences(found: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterable[str]:
    for name in sorted(found.keys() | asked.keys()):
        # A section that is off, another mapping, and another version have other names.
        has_one = name not in found or name not in asked
        if has_one and name.startswith(CONTENT):
            continue
        if has_one or found[name] != asked[name]:
            ours, theirs = (
                json.dumps(each[name]) if name in each else "none" for each in (asked, found)
            )
            # The blank continues the reason above.
            yield f" {name} is {ours} here, but the spool was started with {theirs}"
