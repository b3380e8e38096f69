"""The `mindrl` command: finds the program that the command line names, and starts it."""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from mindrl.programs.early_signals import handle_early_signals
from mindrl.programs.version import version_line

START = "from mindrl.programs.entry import main; main()"
"""Source of the command, for a program that starts another."""
_HELP = ("-h", "--help")


def main() -> None:
    """Start a program by its name: `mindrl train --config-name NAME [key=value ...]`."""
    handle_early_signals()
    sys.exit(start())


def start(*words: str) -> int:
    """Run the program that the words, followed by `sys.argv`, name; returns the exit code."""
    given = [*words, *sys.argv[1:]] or ["--help"]
    other = OTHER_NAMES.get(given[0])
    name, found = given[0], [*(other or given[0]).split(), *given[1:]]
    if "--version" in (found[: found.index("--")] if "--" in found else found):
        sys.stdout.write(f"{version_line()}\n")
        return 0
    for length in (2, 1):
        if (program := " ".join(found[:length])) in PROGRAMS:
            sys.argv[1:] = found[length:]
            module = import_module(f"mindrl.programs.{PROGRAMS[program][0]}")
            code: int = module.PROGRAM(f"mindrl {name if other else program}")
            return code
    group, *more = found
    those = {name: does for name, (_, does) in PROGRAMS.items() if name.startswith(f"{group} ")}
    if {*(more if those else (group,))} <= {*_HELP}:
        return _list_programs(group, those, wants_help=bool(more) or not those)
    return _no_program(found[: 2 if those else 1], those)


def _no_program(words: Sequence[str], those: Mapping[str, str]) -> int:
    """Print that words name no program, of a group or of all, and the nearest one; returns 2."""
    # Imported late: no other start needs them.
    from mindrl.config.finding import did_you_mean  # noqa: PLC0415
    from mindrl.programs.exits import BAD_CONFIG, report  # noqa: PLC0415

    group = "".join(f"{word} " for word in words[:-1])
    known = [name.removeprefix(group) for name in those or (*PROGRAMS, *OTHER_NAMES)]
    text = f"{group}{words[-1]} is not a program; mindrl {group}--help lists them"
    return report([f"{text}{did_you_mean(words[-1], known)}"], BAD_CONFIG)


def _list_programs(group: str, those: Mapping[str, str], *, wants_help: bool) -> int:
    """Print the programs of a group, such as `plan`, or all; returns 2 if none was asked for."""
    kind, example = (f"{group} PROGRAM", next(iter(those))) if those else ("PROGRAM", "train")
    lines = [f"usage: mindrl {kind} [arguments]", "", "programs:"]
    lines += _listed(those or {name: does for name, (_, does) in PROGRAMS.items()})
    if not those:
        lines += ["", "other names:", *_listed(OTHER_NAMES)]
    lines += ["", f"mindrl PROGRAM --help explains a program, for example: mindrl {example} --help"]
    lines += ["mindrl --version prints the version", ""]
    (sys.stdout if wants_help else sys.stderr).write("\n".join(lines))
    return 0 if wants_help else 2


def _listed(lines: Mapping[str, str]) -> list[str]:
    width = max(map(len, PROGRAMS))
    return [f"  {name:{width}}  {text}" for name, text in lines.items()]


PROGRAMS: Mapping[str, tuple[str, str]] = {
    "quickstart": ("quickstart", "make a tiny model and its data, and train on them"),
    "tiny": ("tiny", "create a tiny model and data to try the other programs"),
    "doctor": ("doctor", "check this machine: versions, devices, memory, limits, ports, disks"),
    "plan check": ("check", "check a configuration without starting the run"),
    "plan explain": ("explain", "print the derived numbers of a run"),
    "plan memory": ("memory", "memory of each device in each phase of a step, and whether it fits"),
    "plan reshard": ("reshard", "bytes and time of a reshard from a training to a rollout layout"),
    "plan run": ("propose", "propose layouts and settings for a model and a number of devices"),
    "plan placement": ("placement", "compare orders of steps on shared and separate devices"),
    "import-config": ("import_config", "convert a configuration of MindSpeed-RL or verl"),
    "convert-ckpt": ("convert", "convert a model folder into rank files of a layout, and back"),
    "train": ("train", "train with any configuration: GRPO, PPO, fine-tuning and others"),
    "job train": ("train", "train on the responses of rollout jobs that share a folder"),
    "job rollout": ("train", "generate responses for a train job"),
    "job schedule": ("schedule", "start a train job and rollout jobs, watch and restart them"),
    "serve": (
        "serve",
        "serve a model or the model of a run with vLLM, or start a replica",
    ),
    "report": ("report", "write a page about runs, show it live, or list all runs"),
    "generate": ("generate", "ask a model or the model of a run, once or in a conversation"),
    "evaluate": (
        "evaluate",
        "evaluate a model or the model of a run, or rate rows of data",
    ),
    "replay": ("replay", "repeat a recorded step and compare every number"),
    "schema": ("schema", "print a JSON schema of configuration files, for editors"),
    "completion": ("completion", "print a script that completes commands in bash, zsh or fish"),
}
"""By name: the module with its `PROGRAM`, and a one-line description."""
OTHER_NAMES: Mapping[str, str] = {
    "check": "plan check",
    "train-grpo": "train",
    "train-ppo": "train",
    "train-sft": "train",
    "watch": "report --live",
    "runs": "report --list",
    "pass-rates": "evaluate --write-column=pass_rate",
}
"""Programs with options by the names of earlier versions; `train` assumes an algorithm by them."""
