"""Check a configuration without starting anything: `mindrl plan check`. Needs no torch."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from mindrl.config.finding import Finding, Value, spelled
from mindrl.observability.terminal import note, say
from mindrl.platform.device import planned_platform
from mindrl.platform.garbage import planning
from mindrl.preflight.checks import Checked, checked_with_legal_values
from mindrl.preflight.memory_plan import Capacity
from mindrl.preflight.shipped import note_shipped_sizes, shipped_sizes
from mindrl.programs.arguments import Program, gib
from mindrl.programs.exits import FAILED, MOST_SHOWN, counted, print_json, report, rest_of
from mindrl.programs.plan_options import add_run_options, chosen_config, device_bytes
from mindrl.tracking.opened import tracking_text

_EXAMPLE = """\
examples:
  mindrl check --config-name grpo_tiny_cpu
  mindrl check --config-name grpo_qwen25_7b --elsewhere --host-memory-gib 1024 --json

The exit code is 1 with findings, 2 if the configuration cannot be read.
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add_run_options(parser)
    add = parser.add_argument
    elsewhere = (
        "the run is for another machine: skip missing devices and files, and use the shipped sizes "
        "of missing models"
    )
    add("--elsewhere", action="store_true", help=elsewhere)
    host = "host memory of one machine that the run may use for offloading"
    add("--all", action="store_true", help="print all findings, not only the first ten")
    add("--host-memory-gib", type=gib, dest="host_bytes", metavar="N", help=host)


@planning()
def _check(options: argparse.Namespace) -> int:
    config = chosen_config(options)
    devices, platform = device_bytes(config, options), planned_platform(config.rl_config.device)
    capacity = Capacity(device_bytes=devices, host_bytes=options.host_bytes)
    here = not options.elsewhere
    checked = checked_with_legal_values(config, platform, capacity, needs_files=here, here=here)
    if options.json:
        answer = {
            "config": options.config_name,
            "findings": _as_json(checked.findings),
            "warnings": _as_json(checked.warnings),
            "not_checked": _as_json(checked.not_checked),
            "memory_checked": checked.memory_checked,
            "metrics_go_to": tracking_text(config),
            "shipped_sizes": shipped_sizes(config) if options.elsewhere else {},
        }
        print_json(answer)
    else:
        if options.elsewhere:
            note_shipped_sizes(config)
        _print_findings(checked.findings, shows_all=options.all)
        if here and not checked.findings:
            say("rows and rewards are not checked: use mindrl train --dry-run")
        _print(options.config_name, checked, capacity, tracking_text(config))
    return FAILED if checked.findings else 0


def _as_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    keys = ("field", "value", "need", "legal", "doc", "text")
    return [{key: getattr(finding, key) for key in keys} for finding in findings]


def _print_findings(findings: Sequence[Finding], *, shows_all: bool) -> None:
    """Print findings in the format of errors, each followed by legal values and a document."""
    shown = findings if shows_all else findings[:MOST_SHOWN]
    for each in shown:
        way = f"legal: {each.field}={' or '.join(map(_on_command_line, each.legal))}; "
        report([str(each)], FAILED)
        say(f"       {way if each.legal else ''}see {each.doc}", to_stderr=True)
    if len(shown) < len(findings):
        report([f" {rest_of(len(findings))}"], FAILED)


def _print(name: str, checked: Checked, capacity: Capacity, places: str) -> None:
    """Print what was not checked, the warnings, and the number of findings."""
    say(*(f"missing here, so not checked: {missing}" for missing in checked.not_checked))
    for warning in checked.warnings:
        note(str(warning))
    if not checked.memory_checked:
        remedy = "the model is missing or rl_config.check_memory=false"
        if capacity.device_bytes is None:
            remedy = "set --device-memory-gib N or --device NAME"
        elif checked.findings:
            remedy = "it is checked after the other findings are fixed"
        say(f"device memory not checked: {remedy}")
    if places:
        say(f"metrics go to: {places}")
    say(f"{name}: {counted(len(checked.findings), 'finding')}")


def _on_command_line(value: Value) -> str:
    text = spelled(value)
    return f"[{text}]" if isinstance(value, tuple) else text


PROGRAM = Program(
    about="Check a configuration without starting the run: print each problem with its key, the "
    "requirement and the nearest legal values.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_check,
    shows_all=lambda options: options.all or options.json,
)
