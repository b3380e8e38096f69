"""The program that checks a configuration and starts nothing: `python cli/check.py`.

Needs no torch.
"""

import argparse
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape

from mindrl.config.finding import Finding, Value, spelled
from mindrl.config.run import RunConfig
from mindrl.observability.notes import note
from mindrl.platform.device import planned_platform
from mindrl.platform.garbage import planning
from mindrl.preflight.checks import Checked
from mindrl.preflight.legal_values import checked_with_legal_values
from mindrl.preflight.memory_checks import Capacity
from mindrl.preflight.shipped import note_shipped_sizes, shipped_sizes
from mindrl.programs.arguments import gib, parser_of
from mindrl.programs.exits import FAILED, exit_code, print_json, report
from mindrl.programs.plan_options import add_run_options, asked_config, device_bytes

_EXAMPLE = """\
examples:
  python cli/check.py --config-name grpo_tiny_cpu
  python cli/check.py --config-name grpo_qwen25_7b --elsewhere --host-memory-gib 1024 --json

The exit code is 1 where there are findings, 2 where the configuration cannot be read.
"""


@dataclass(frozen=True)
class _Answer:
    """What the program says."""

    config: str
    shipped_sizes: dict[str, str]
    """Of which model folders, not here, which sizes were taken."""
    checked: Checked
    memory_unknown: bool
    """Nothing says what a device has."""


def check_config(name: str = "check.py") -> int:
    """Check what the command line asks for; returns the exit code.

    Args:
        name: Of the program, as its help calls it.
    """
    options = _parser(name).parse_intermixed_args()
    with planning():
        return exit_code(lambda: _check(options))


def _check(options: argparse.Namespace) -> int:
    config = asked_config(options)
    devices = device_bytes(config, options)
    capacity = Capacity(device_bytes=devices, host_bytes=options.host_bytes)
    answer = _Answer(
        config=options.config_name,
        shipped_sizes=shipped_sizes(config) if options.elsewhere else {},
        checked=_checked(config, capacity, elsewhere=options.elsewhere),
        memory_unknown=capacity.device_bytes is None,
    )
    if options.json:
        print_json(_as_json(answer))
    else:
        if options.elsewhere:
            note_shipped_sizes(config)
        _print(answer)
    return FAILED if answer.checked.findings else 0


def _parser(name: str) -> argparse.ArgumentParser:
    about = (
        "Find everything that keeps a run from working before anything is started: "
        "each finding with its key, its need and the nearest legal values."
    )
    parser = parser_of(name, about, _EXAMPLE)
    add_run_options(parser)
    add = parser.add_argument
    add(
        "--elsewhere",
        action="store_true",
        help="the run is for another machine: files that are not here are no finding, and of "
        "models that are not here the shipped sizes are taken",
    )
    add(
        "--host-memory-gib",
        type=gib,
        dest="host_bytes",
        metavar="N",
        help="memory of one machine that the run may take for what leaves its devices",
    )
    return parser


def _checked(config: RunConfig, capacity: Capacity, *, elsewhere: bool) -> Checked:
    platform = planned_platform(config.rl_config.device)
    return checked_with_legal_values(config, platform, capacity, needs_files=not elsewhere)


def _as_json(answer: _Answer) -> dict[str, Any]:
    return {
        "config": answer.config,
        "findings": [_finding(each) for each in answer.checked.findings],
        "warnings": [_finding(each) for each in answer.checked.warnings],
        "not_checked": [_finding(each) for each in answer.checked.not_checked],
        "memory_checked": answer.checked.memory_checked,
        "shipped_sizes": answer.shipped_sizes,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "field": finding.field,
        "value": finding.value,
        "need": finding.need,
        "legal": finding.legal,
        "doc": finding.doc,
        "text": finding.text,
    }


def _print(answer: _Answer) -> None:
    """Print findings as every program prints errors, each with its way out below it."""
    console, errors = Console(), Console(stderr=True)
    for each in answer.checked.findings:
        report([str(each)], FAILED)
        ways = " or ".join(map(_on_command_line, each.legal))
        way = f"legal: {each.field}={ways}; " if ways else ""
        line = escape(f"       {way}see {each.doc}")
        errors.print(line, soft_wrap=True, highlight=False)
    for missing in answer.checked.not_checked:
        console.print(f"not here, so not checked: {escape(str(missing))}", soft_wrap=True)
    for warning in answer.checked.warnings:
        note(str(warning))
    if not answer.checked.memory_checked:
        console.print(f"memory of the devices not checked{_remedy(answer)}", soft_wrap=True)
    count = len(answer.checked.findings)
    console.print(f"{answer.config}: {count or 'no'} finding{'' if count == 1 else 's'}")


def _remedy(answer: _Answer) -> str:
    """Say what memory of the devices would be judged with."""
    if answer.memory_unknown:
        return ": say --device-memory-gib N, or --device NAME"
    if answer.checked.findings:
        return ": it is, once nothing else is found"
    return ": the model or rl_config.check_memory=false keeps it from that"


def _on_command_line(value: Value) -> str:
    text = spelled(value)
    return f"[{text}]" if isinstance(value, tuple) else text
