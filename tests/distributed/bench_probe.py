"""What the test of the memory benchmark calls in a prepared process; see forked_workers.run."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def measured(algorithm: str, folder: str) -> dict[str, Any]:
    """Run the benchmark's steps with its tiny model, one of each way."""
    # The scripts lie beside the tests, and import each other by name.
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
    runs = import_module("memory_runs")
    return runs.measure(algorithm, folder, quick=True, repeats=1)  # type: ignore[no-any-return]
