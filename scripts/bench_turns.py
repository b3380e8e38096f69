"""Compare turns in lock step with continuous ones, with tools of a long tail of latencies.

    mindrl quickstart --config-name grpo_tools_tiny_cpu        # makes the model
    python scripts/bench_turns.py [--rounds 3] [--steps 4] [--json FILE] [key=value ...]

Runs of both kinds in turn, with the same seeds and the same latency of each call. Idle is the part
of the rollout in which no engine has a turn to sample. The number of engine steps does not depend
on the load of the machine. The first step of each run does not count. At last, the overhead of the
processes of environments: the time of a turn of a tool that returns at once.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.progress import track
from rich.table import Table
from tiny_runs import CHECKOUT, STEPS_ALONE, recorded, trained

from mindrl.environments.host import EnvironmentHost, Key, Limits
from mindrl.environments.messages import Action, ToolCall
from mindrl.environments.process import EnvironmentSpec

TOOL = CHECKOUT / "scripts/slow_calculator.py"
MODEL = ".cache/tiny/tools_model"
WAYS = {"continuous": False, "lock step": True}
SKIPPED = 1
Figures = dict[str, float]


def main() -> int:
    """Run all in turn and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=4, help="of each run (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=200, help="of the overhead")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options, overrides = parser.parse_known_args()
    if not (CHECKOUT / MODEL).is_dir():
        print(f"error: {MODEL} is missing; see the first lines of this file", file=sys.stderr)
        return 2
    found: dict[str, list[Figures]] = defaultdict(list)
    plan = [way for _ in range(options.rounds) for way in WAYS]
    for way in track(plan, "runs", console=Console(stderr=True)):
        found[way].append(of_run(WAYS[way], options.steps, overrides))
    figures = {
        way: {name: mean(run[name] for run in runs) for name in runs[0]}
        for way, runs in found.items()
    }
    overhead = milliseconds_of_a_turn(options.turns)
    show(figures, overhead)
    if options.json:
        options.json.write_text(
            json.dumps({**figures, "milliseconds of a turn": overhead}, indent=2)
        )
    return 0


def of_run(lock_step: bool, steps: int, overrides: list[str]) -> Figures:
    """Train, and return the means of the steps that count."""
    with tempfile.TemporaryDirectory() as folder:
        trained(
            Path(folder),
            "--config-name",
            "grpo_tools_tiny_cpu",
            *STEPS_ALONE,
            f"actor_config.load={MODEL}",
            f"environment_config.tools=[{TOOL}:add]",
            f"environment_config.lock_step={str(lock_step).lower()}",
            "environment_config.processes=128",
            f"megatron_training.train_iters={steps}",
            *overrides,
            program="cli/train.py",
        )
        rows = recorded(Path(folder))[SKIPPED:]
    rollout = mean(row["seconds/rollout"] for row in rows)
    idle = mean(row["turns/idle_seconds"] for row in rows)
    return {
        "seconds of a rollout": rollout,
        "idle share": idle / rollout,
        "engine steps": mean(row["throughput/engine_steps"] for row in rows),
        "turns of a conversation": mean(row["turns/mean"] for row in rows),
        "reward": mean(row["reward/mean"] for row in rows),
    }


def milliseconds_of_a_turn(turns: int) -> float:
    """Return the time from a turn to the answer of a tool that does almost nothing."""
    spec = EnvironmentSpec(environment=None, tools=("mindrl.tiny.calculator:add",))
    host = EnvironmentHost(
        spec=spec, limits=Limits(processes=1, start_seconds=60.0, call_seconds=60.0)
    )
    key = Key("bench", 0, 0)
    call = ToolCall(name="add", arguments={"a": 1, "b": 2})
    try:
        host.begin(key, 1, {})
        host.answers("bench", 60.0)
        began = time.perf_counter()
        for _ in range(turns):
            host.act(key, Action(text="", calls=(call,)))
            host.answers("bench", 60.0)
        return (time.perf_counter() - began) / turns * 1000
    finally:
        host.close()


def show(figures: dict[str, Figures], overhead: float) -> None:
    """Print a table."""
    table = Table("", *figures, "ratio")
    for name in next(iter(figures.values())):
        values = [each[name] for each in figures.values()]
        ratio = f"{values[1] / values[0]:.2f}" if values[0] else ""
        table.add_row(name, *(f"{value:.3f}" for value in values), ratio)
    Console().print(table, f"overhead of a turn: {overhead:.2f} ms")


if __name__ == "__main__":
    sys.exit(main())
