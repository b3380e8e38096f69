"""Measured runs of the tiny model: their common overrides, and their recorded metrics.

They need the data and the model of scripts/quickstart.sh.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

CHECKOUT = Path(__file__).parents[1]
STEPS_ALONE = (
    *("rl_config.test_freq=0", "megatron_training.test_data_path=null"),
    *("megatron_training.export_interval=0", "rl_config.memory_timeline_steps=0"),
    "profiler_config.trace_steps=0",
)
"""Overrides that restrict a run to its steps and one export at its end."""


def command(folder: Path, *overrides: str, program: str = "cli/train_grpo.py") -> list[str]:
    """Return the command line of a run in a folder."""
    return [sys.executable, program, f"hydra.run.dir={folder}", *overrides]


def trained(folder: Path, *overrides: str, program: str = "cli/train_grpo.py") -> None:
    """Train to the end without output."""
    line = command(folder, *overrides, program=program)
    subprocess.run(line, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL)


def recorded(folder: Path, metric: str = "seconds/step") -> list[dict[str, Any]]:
    """Return the recorded lines with a metric so far; by default those of steps."""
    path = folder / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if metric in row]


def kept(
    turns: Iterable[tuple[str, int]],
    run: Callable[[str, int], dict[str, float]],
    file: Path | None,
) -> dict[tuple[str, int], dict[str, float]]:
    """Run each method with each seed in this order, and store the results in a JSON file.

    Runs that are already in the file are not repeated.
    """
    stored = json.loads(file.read_text()) if file and file.exists() else {}
    found: dict[tuple[str, int], dict[str, float]] = {}
    for way, seed in track([*turns], "runs", console=Console(stderr=True)):
        name = f"{way} {seed}"
        if name not in stored:
            stored[name] = run(way, seed)
            if file:
                file.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
        found[way, seed] = stored[name]
    return found
