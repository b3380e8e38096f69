"""Compare a complete GRPO step with TRL's.

    python scripts/bench_step.py [--works short ...] [--rounds 3] [--json FILE] [override ...]

The same model, prompts, lengths and data type, in turn on this machine: mindrl with two workers;
bare generation by vLLM and a bare update by transformers, in two processes (step_bare.py);
TRL with the generation of transformers, and with vLLM inside its process, each as one process with
two threads and as two processes with one thread; the faster counts. The learning rate is almost
zero, so the lengths of the answers do not change. The first two steps of each start do not count.
Works: `short` is the quickstart; `long prompts` has 416 tokens before up to 64; `long tail` answers
of 24 tokens in the mean and up to 192; `larger` a model of 9 million weights.
Needs the data and the model of scripts/quickstart.sh, and TRL, which is not among mindrl's
packages:

    pip install --no-deps --target .cache/trl trl accelerate
    PYTHONPATH=.cache/trl python scripts/bench_step.py
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from step_works import Work, works
from tiny_runs import CHECKOUT, STEPS_ALONE, recorded, trained

_BARE, _RIVAL = "scripts/step_bare.py", "scripts/step_rivals.py"
SKIPPED = 2
"""Steps of each start that include work that is done once."""
Steps = list[dict[str, float]]


def main() -> int:
    """Run all in turn and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ("short", "long prompts", "long tail", "larger")
    parser.add_argument("--works", nargs="+", choices=names, default=names, help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--steps", type=int, default=8, help="steps per start (default: %(default)s)"
    )
    parser.add_argument("--json", help="also write the figures to this file")
    options, overrides = parser.parse_known_args()
    if find_spec("trl") is None:
        print("error: TRL is not installed; see the first lines of this file", file=sys.stderr)
    found: dict[str, dict[str, Steps]] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = works(Path(folder))
        for name in options.works:
            found[name] = measured(made[name], options, overrides)
            shown(name, found[name])
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def measured(work: Work, options: argparse.Namespace, overrides: Sequence[str]) -> dict[str, Steps]:
    """Run one work with all trainers in turn; return the steps of each."""
    ways: dict[str, Callable[[], Steps]] = {
        "mindrl": lambda: ours(work, options.steps, overrides),
        "bare": lambda: theirs(work, [_BARE], 2, options.steps),
    }
    if find_spec("trl") is not None:
        ways |= {
            f"{name}, {count} process(es)": partial(
                theirs, work, [_RIVAL, way], count, options.steps
            )
            for name, way in (("TRL", "transformers"), ("TRL with vLLM", "vllm"))
            for count in (1, 2)
        }
    found: dict[str, Steps] = defaultdict(list)
    turns = [name for _ in range(options.rounds) for name in ways]
    for name in track(turns, "in turns", console=Console(stderr=True)):
        found[name] += ways[name]()[SKIPPED:]
    return found


def ours(work: Work, steps: int, overrides: Sequence[str]) -> Steps:
    """Run mindrl's program."""
    keys = [
        *("actor_config.lr=1e-12", f"megatron_training.train_iters={steps}"),
        *(*work.overrides(), *overrides),
    ]
    with tempfile.TemporaryDirectory() as folder:
        trained(Path(folder), *STEPS_ALONE, *keys)
        rows = recorded(Path(folder))
    return [
        {
            "seconds": row["seconds/step"],
            "tokens": row["rollout/response_tokens"],
            **{name: value for name, value in row.items() if name.startswith("seconds/")},
        }
        for row in rows
    ]


def theirs(work: Work, program: Sequence[str], processes: int, steps: int) -> Steps:
    """Run the steps of another program in a number of processes."""
    threads = max(1, (os.cpu_count() or 1) // processes)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)),
        *("--standalone", *program),
        json.dumps(work.of_rival(steps=steps + 1, seed=1)),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(program)} failed:\n{done.stderr[-4000:]}")
    return [dict(each) for each in json.loads(done.stdout.splitlines()[-1])]


def median(steps: Sequence[Mapping[str, float]], name: str = "seconds") -> float:
    """Return the median over the steps; a missing value counts as 0."""
    return statistics.median(step.get(name, 0.0) for step in steps)


def shown(name: str, found: Mapping[str, Steps]) -> None:
    """Print the steps of a work, the ratios, and the stages of mindrl's step."""
    console = Console(width=110, highlight=False)
    mindrl = found["mindrl"]
    whole = median(mindrl)
    table = Table(name, "steps", "seconds of a step", "tokens of a step", "over mindrl")
    for way, steps in found.items():
        seconds, tokens = median(steps), median(steps, "tokens")
        table.add_row(
            *(way, str(len(steps)), f"{seconds:.2f}", f"{tokens:.0f}", f"{seconds / whole:.2f}")
        )
    console.print(table)
    stages: dict[str, Any] = {
        key.removeprefix("seconds/"): median(mindrl, key)
        for key in sorted({key for step in mindrl for key in step if "seconds/" in key})
    }
    console.print({name: f"{seconds:.3f}" for name, seconds in stages.items()})
    own = whole / (stages["generate"] + stages["update"])
    bare = whole / median(found["bare"])
    console.print(f"mindrl's step takes {own:.2f} times its generation and its update")
    console.print(f"mindrl's step takes {bare:.2f} times bare generation and a bare update")


if __name__ == "__main__":
    sys.exit(main())
