"""Compare what `mindrl check` finds in broken configurations with tests/golden/check.yaml.

    python scripts/golden_findings.py            # print what differs; exit code 1 if anything does
    python scripts/golden_findings.py --write    # write the findings of today into the file

The file has a small run without findings (`base`), and `runs`: the `keys` that break each, changes
of its model's config.json (`model`), and what `mindrl check` finds, as it prints that. Edit `keys`
and `model` by hand, never `finds`.
"""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save_file

from mindrl.config.finding import Finding
from mindrl.config.load import load_run_config
from mindrl.config.text import nested, spelled_value
from mindrl.errors import ConfigError
from mindrl.models.decoder import logical_shapes
from mindrl.models.description import read_description
from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import checked_with_legal_values
from mindrl.preflight.memory_plan import Capacity

GOLDEN = Path(__file__).parents[1] / "tests/golden/check.yaml"
HEADER = (
    "# What `mindrl check` finds in broken runs; finds: by scripts/golden_findings.py --write.\n"
)
Keys = Mapping[str, Any]


def main() -> int:
    """Compare or write the findings; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the findings of today")
    golden = read()
    with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
        found = renewed(golden)
    if parser.parse_args().write:
        GOLDEN.write_text(_formatted(found), encoding="utf-8")
        return 0
    changes = differences(golden, found)
    print(*changes, sep="\n", end="\n" if changes else "")
    return bool(changes)


def read() -> dict[str, Any]:
    """Read the golden file."""
    golden: dict[str, Any] = yaml.safe_load(GOLDEN.read_text(encoding="utf-8"))
    return golden


def differences(golden: Keys, found: Keys) -> list[str]:
    """List the runs with other findings than the file has, each with both."""
    pairs = zip(golden["runs"], found["runs"], strict=True)
    return [
        f"{old['keys']}\n-- file\n{old.get('finds')}\n-- found\n{new['finds']}"
        for old, new in pairs
        if old.get("finds") != new["finds"]
    ]


def renewed(golden: Keys) -> dict[str, Any]:
    """Return the golden file with the findings of today; files are made in the current folder."""
    runs = [
        {**run, "finds": findings_of(golden["base"], run["keys"], run.get("model", {}))}
        for run in golden["runs"]
    ]
    return {**golden, "runs": runs}


def findings_of(base: Keys, keys: Keys, changes: Keys) -> str:
    """Return the findings of one run, or the error that stops its configuration from loading."""
    _write_files(base["model"] | changes, base["files"])
    try:
        config = load_run_config(nested({**base["keys"], **keys}))
    except ConfigError as error:
        return f"{error}\n"
    found = checked_with_legal_values(config, PLATFORMS["cpu"], Capacity()).findings
    return "".join(f"{finding}\n{_legal(finding)}" for finding in found)


def _legal(finding: Finding) -> str:
    if not finding.legal:
        return ""
    return f"  legal: {' or '.join(spelled_value(each) for each in finding.legal)}\n"


def _formatted(golden: Keys) -> str:
    """Format the file: one line for the keys of a run, and its findings as they are printed."""
    lines = [HEADER, yaml.safe_dump({"base": golden["base"]}, sort_keys=False, width=100), "runs:"]
    for run in golden["runs"]:
        lines.append(f"- keys: {json.dumps(run['keys'])}")
        if "model" in run:
            lines.append(f"  model: {json.dumps(run['model'])}")
        lines += ["  finds: |", *(f"    {line}" for line in run["finds"].splitlines())]
    return "\n".join(lines) + "\n"


def _write_files(sizes: Keys, files: list[str]) -> None:
    """Make the data files, and a model folder with one byte for a weight."""
    for file in files:
        Path(file).touch()
    folder = Path("model")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    shapes = logical_shapes(read_description(str(folder)))
    weights = {name: np.zeros(shape, np.uint8) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")


if __name__ == "__main__":
    raise SystemExit(main())
