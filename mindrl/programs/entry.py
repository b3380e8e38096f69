"""The `mindrl` command: imports and starts the program that is named."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module

from mindrl.programs.early_signals import end_at_sigterm
from mindrl.programs.version import prints_version


def main() -> None:
    """Start a program by its name: `mindrl train-grpo --config-name NAME [key=value ...]`."""
    end_at_sigterm()
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name == "--version":
        sys.exit(0 if prints_version() else 2)
    if name not in PROGRAMS:
        asked_for_help = name in ("-h", "--help")
        (sys.stdout if asked_for_help else sys.stderr).write(_usage())
        sys.exit(0 if asked_for_help else 2)
    del sys.argv[1]
    start, _ = PROGRAMS[name]
    sys.exit(start())


def _usage() -> str:
    width = max(map(len, PROGRAMS))
    programs = "\n".join(f"  {name:{width}}  {does}" for name, (_, does) in PROGRAMS.items())
    return (
        f"usage: mindrl PROGRAM [arguments]\n\nprograms:\n{programs}\n\n"
        "mindrl PROGRAM --help explains a program, for example: mindrl check --help\n"
        "mindrl --version prints the version\n"
    )


def _start(module: str, function: str) -> int:
    code: int = getattr(import_module(f"mindrl.programs.{module}"), function)()
    return code


PROGRAMS: Mapping[str, tuple[Callable[[], int], str]] = {
    "tiny": (
        partial(_start, "tiny", "tiny"),
        "make a tiny model with its data, to try everything else with",
    ),
    "doctor": (
        partial(_start, "doctor", "doctor"),
        "look at this machine: versions, devices, memory, limits, ports, disks",
    ),
    "check": (
        partial(_start, "check", "check_config"),
        "find everything that keeps a run from working, before anything is started",
    ),
    "plan": (
        partial(_start, "plan", "plan"),
        "predict memory, reshard and all derived numbers of a run",
    ),
    "import-config": (
        partial(_start, "import_config", "import_config"),
        "turn a configuration of MindSpeed-RL or verl into one of mindrl",
    ),
    "convert-ckpt": (
        partial(_start, "convert", "convert"),
        "turn a model folder into rank files of a layout, and back",
    ),
    "train-grpo": (partial(_start, "train", "train_grpo"), "train with GRPO"),
    "train-ppo": (partial(_start, "train", "train_ppo"), "train with PPO"),
    "train-sft": (
        partial(_start, "train", "train_sft"),
        "fine-tune on answers that the data has",
    ),
    "job": (
        partial(_start, "job", "job"),
        "train and roll out as two jobs that a folder joins, and schedule them",
    ),
    "serve": (
        partial(_start, "serve", "serve"),
        "serve a model, or that of a run, by vLLM's own server; or start a replica of a run",
    ),
    "report": (
        partial(_start, "report", "report"),
        "write one page about a run, or several beside each other",
    ),
    "watch": (
        partial(_start, "watch", "watch"),
        "show a run in the browser while it goes on",
    ),
    "runs": (
        partial(_start, "runs", "runs"),
        "list runs: how each ended, what it reached, and what differs",
    ),
    "generate": (
        partial(_start, "generate", "generate"),
        "ask a model, or that of a run, once or in a conversation",
    ),
    "evaluate": (
        partial(_start, "evaluate", "evaluate"),
        "measure a model, or that of a run, as a run measures its own",
    ),
    "pass-rates": (
        partial(_start, "pass_rates", "pass_rates"),
        "measure how often a model answers each row of a data file right",
    ),
    "replay": (
        partial(_start, "replay", "replay"),
        "run a recorded step again, and compare every number",
    ),
}
"""By name: the function that starts it, and a one-line description."""
