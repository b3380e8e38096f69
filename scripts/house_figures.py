"""Measure the house: its size, its rooms, and what of it a run uses, at any revision.

    python scripts/house_figures.py                              # the working tree
    python scripts/house_figures.py b87699c HEAD                 # a column each
    python scripts/house_figures.py b87699c --only lines rooms   # seconds instead of minutes
    python scripts/house_figures.py --json

lines     lines and files of mindrl/**/*.py, as `wc -l` counts
rooms     the largest folder of mindrl, in percent of all lines
engines   files that name Megatron or vLLM (code, docstring or comment) outside the engine's room,
          which is training/ and rollout/, or training/megatron/ and rollout/vllm/ where they exist.
          A backend string such as `megatron:d4t2` and a key such as `megatron_training` name no
          engine; platform/, patches/, migrate/ and mindspeed_rl*.py may name all.
cycles    sets of modules that import one another; every import counts, typing's too
types     public classes and type aliases of one name in two folders of mindrl
files     files that name a key, without those that read MindSpeed-RL's files and without generated
          stubs (.pyi); files with the formula `/ (std + epsilon)`
prose     phrases that plain English avoids, per 10,000 words of docstrings and comments, and of
          texts: other strings of at least four words
names     functions, classes, parameters and fields whose names plain English avoids
modes     lines of code that ask which mode a run has
documents words of README.md and docs/
executed  lines of the functions that two steps of the quickstart enter (GRPO with a reference; in
          the driver, the workers and the reward processes), in percent of those of all functions.
          Outermost functions and methods count, each from `def` to its last line, entered or not.
union     the same for two steps of each of eight runs: GRPO, PPO, a mixture of experts, SFT, LoRA,
          PyTorch's engine, DAPO with checkpoints, and asynchronous
calls     calls of each planner function in these two steps: the most that one process makes
check     CPU seconds (user and system, the least of 3) of the check of a shipped run, and the ratio
          of a refusal by cli/train_grpo.py to one of the same values by cli/check.py
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from house_names import name_figures
from house_prose import prose_figures
from house_run import check_figures, run_figures
from house_text import Figure, read_sources, text_figures
from revisions import checkout, make_tiny_models
from rich.console import Console
from rich.table import Table

CONSOLE = Console(highlight=False, soft_wrap=True)
OF_TEXT = (
    *("lines", "rooms", "engines", "cycles", "types", "files"),
    *("prose", "names", "modes", "documents"),
)
OF_RUNS = ("executed", "calls", "union")
GROUPS = (*OF_TEXT, *OF_RUNS, "check")


def main() -> None:
    """Measure every revision and print what was asked for."""
    options = _options()
    groups = options.only or GROUPS
    if {*groups} - {*OF_TEXT}:
        make_tiny_models()
    columns: dict[str, list[Figure]] = {}
    for revision in options.revisions or [None]:
        with (
            tempfile.TemporaryDirectory() as work,
            checkout(revision, Path(work) / "code") as code,
        ):
            columns[revision or "working tree"] = [*_measured(code, Path(work), groups)]
    if options.json:
        listed = {name: [asdict(figure) for figure in found] for name, found in columns.items()}
        print(json.dumps(listed, indent=1))
        return
    CONSOLE.print(_table(columns))
    for name, found in columns.items():
        _print_details(name, found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("revisions", nargs="*", metavar="REVISION", help="default: working tree")
    parser.add_argument("--only", nargs="+", choices=GROUPS, help="default: all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_intermixed_args()


def _measured(code: Path, work: Path, groups: Sequence[str]) -> Iterator[Figure]:
    sources = read_sources(code)
    figures = (*text_figures(sources), *prose_figures(sources, code), *name_figures(sources))
    yield from (figure for figure in figures if figure.group in groups)
    if {*groups} & {*OF_RUNS}:
        yield from run_figures(code, work, groups)
    if "check" in groups:
        yield from check_figures(code, work)


def _table(columns: dict[str, list[Figure]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    table.add_column("at most", justify="right")
    for row in zip(*columns.values(), strict=True):
        table.add_row(row[0].name, *(_cell(figure) for figure in row), row[0].target)
    return table


def _cell(figure: Figure) -> str:
    if figure.value is None:
        return "-"
    return figure.shown or f"{figure.value:g}{figure.unit}"


def _print_details(name: str, figures: list[Figure]) -> None:
    for figure in figures:
        if figure.details:
            CONSOLE.print(f"\n{name}: {figure.name}", style="dim")
        for line in figure.details:
            CONSOLE.print(f"  {line}", markup=False)


if __name__ == "__main__":
    main()
