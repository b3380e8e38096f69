"""Check this machine before a run: `mindrl doctor`.

Neither needs nor imports torch: versions are read from pip's metadata.
"""

import argparse
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from mindrl.doctor.facts import Facts, Observation, Verdict, gather
from mindrl.doctor.findings import DEVICE_FINDINGS, PACKAGE_FINDINGS
from mindrl.doctor.host_findings import HOST_FINDINGS, NETWORK_FINDINGS, disks
from mindrl.observability.terminal import printable
from mindrl.platform.device import PLATFORMS, choose_platform
from mindrl.programs.arguments import Program, port_number, refuse_unless
from mindrl.programs.exits import FAILED, counted, print_json

_EXAMPLE = """\
examples:
  mindrl doctor
  mindrl doctor --device cpu --port 6379 --outputs /shared/runs
  mindrl doctor --address 192.0.2.10:6379 --json
  mindrl doctor --self-test
  mindrl doctor --self-test --eager

The exit code is 1 with problems, 2 if the command line is wrong. The doctor changes nothing.
"""
_STYLES: dict[Verdict, str] = {"ok": "green", "note": "yellow", "problem": "bold red"}
_WIDTH = 9


def _doctor(options: argparse.Namespace) -> int:
    other = ("--port", "--address", "--outputs")
    refuse_unless(not options.self_test, "without --self-test", options, other)
    refuse_unless(options.self_test, "with --self-test", options, ("--eager",))
    kind = choose_platform("auto").kind if options.device == "auto" else options.device
    if options.self_test:
        # Imported late: the other checks only read files and run tools.
        from mindrl.programs.self_test import self_test  # noqa: PLC0415

        return self_test(kind, as_json=options.json, eager=options.eager)
    outputs = options.outputs or Path("outputs")
    facts = gather(kind, outputs=outputs, port=options.port, head=options.address)
    observations = examine(facts)
    counts = Counter(each.verdict for each in observations)
    if options.json:
        answer = {
            "device": kind,
            "problems": counts["problem"],
            "notes": counts["note"],
            "observations": [asdict(each) for each in observations],
        }
        print_json(answer)
    else:
        _print(kind, observations, counts)
    return FAILED if counts["problem"] else 0


def examine(facts: Facts) -> list[Observation]:
    """Return the findings for the facts, in the order in which a person would fix them."""
    looks = (*PACKAGE_FINDINGS, *DEVICE_FINDINGS, *HOST_FINDINGS, *NETWORK_FINDINGS, disks)
    return [found for look in looks for found in look(facts)]


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    kind = "kind of device of the runs (default: the best one of this machine)"
    add("--device", choices=("auto", *PLATFORMS), default="auto", help=kind)
    free = "check that this port is free, for a Ray head"
    add("--port", type=port_number, metavar="N", help=free)
    head = "check that this Ray head responds and that its token is on this machine"
    add("--address", type=_address, metavar="HOST:PORT", help=head)
    runs = "folder of the runs (default: outputs)"
    add("--outputs", type=Path, metavar="DIR", help=runs)
    add("--json", action="store_true", help="print one JSON object")
    tried = "try all devices with a tiny model instead, for a few minutes: collectives, copies, "
    tried += "offload and onload, a reshard, log-probs of trainer and engine"
    add("--self-test", action="store_true", help=tried)
    eager = "with --self-test: decode without graphs, if a capture fails or keeps old weights"
    add("--eager", action="store_true", help=eager)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host:
        raise argparse.ArgumentTypeError(f"{text} must be HOST:PORT, such as 192.0.2.10:6379")
    return host.strip("[]"), port_number(port)


def _print(kind: str, observations: list[Observation], counts: Counter[Verdict]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for each in observations:
        line = Text(f"{each.verdict:<{_WIDTH}}", style=_STYLES[each.verdict])
        line.append(printable(f"{each.what}: {each.found}"), style="default")
        console.print(line)
        if each.advice:
            console.print(Text(printable(f"{'':<{_WIDTH}}-> {each.advice}")))
    problems, notes = counts["problem"], counts["note"]
    console.print(f"{kind}: {counted(problems, 'problem')}, {counted(notes, 'note')}")


PROGRAM = Program(
    about="Check this machine: package versions, devices, memory, limits, ports and disks. Print a "
    "remedy for each finding.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_doctor,
)
