"""Measure the share of its time that a run with faults spends in steps that are kept.

    python scripts/bench_recovery.py [--steps 30] [--every 10] [--json results.json] [override ...]

A run of the tiny model writes a checkpoint after every step. Once per `--every` steps, at a random
time, a worker is killed. The useful time is that of an undisturbed run for the same steps: the
median of the steps without a fault, after the first ones, times their number. The share is the
useful time divided by the time after the first step. The cost of a fault is split into the start of
the workers and the lost part of a step. A start takes equally long for every length of a step:
`rl_config.n_samples_per_prompt=192` makes steps of half a minute, which is short for a real run.
Needs the data and the model of scripts/quickstart.sh.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from tiny_runs import CHECKOUT, STEPS_ALONE, command, recorded


def main() -> int:
    """Run, kill workers and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--every", type=int, default=10, help="steps per fault")
    parser.add_argument("--json", help="write the figures there")
    options, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        own = f"megatron_training.train_iters={options.steps}", "megatron_training.save_interval=1"
        steps = range(options.every // 2, options.steps, options.every)
        line = command(Path(folder), *STEPS_ALONE, *own, *overrides)
        seconds = disturbed(line, Path(folder), steps, options.steps)
        found = figures(Path(folder), seconds)
    for name, value in found.items():
        print(f"{name:<38} {value:.4g}")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def disturbed(line: Sequence[str], folder: Path, steps: Sequence[int], last: int) -> float:
    """Run, and kill a worker at a random time of the step after each of these.

    Returns:
        Seconds from the end of the first step to that of the last.
    """
    draw = random.Random(14)
    run = subprocess.Popen(line, cwd=CHECKOUT, stdout=subprocess.DEVNULL)
    one_step = wait_for_step(1, folder, run)
    began = time.monotonic()
    for step in steps:
        wait_for_step(step, folder, run)
        time.sleep(draw.random() * one_step)
        workers = [each for each in psutil.Process(run.pid).children(recursive=True) if ours(each)]
        draw.choice(workers).kill()
    wait_for_step(last, folder, run)
    seconds = time.monotonic() - began
    assert run.wait() == 0, f"exit code {run.returncode}"
    return seconds


def wait_for_step(step: int, folder: Path, run: subprocess.Popen[bytes]) -> float:
    """Wait until a step is recorded; return its duration."""
    while len(lines := recorded(folder)) < step:
        assert run.poll() is None, "the run ended too early"
        time.sleep(0.05)
    seconds: float = lines[-1]["seconds/step"]
    return seconds


def ours(process: psutil.Process) -> bool:
    """Return whether a process is a worker."""
    try:
        return "WorkerProcess" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def figures(folder: Path, seconds: float) -> dict[str, float]:
    """Return how the time after the first step was spent."""
    lines = recorded(folder)
    first, *starts = (line["seconds/start"] for line in lines if "seconds/start" in line)
    calm = [line["seconds/step"] for line in lines[2:] if "seconds/start" not in line]
    faults, step = len(starts), statistics.median(calm)
    useful = (len(lines) - 1) * step
    return {
        "steps": len(lines),
        "faults": faults,
        "seconds of a step": step,
        "seconds of the first start": first,
        "seconds of a start behind a fault": statistics.median(starts),
        "seconds lost of steps, a fault": (seconds - useful - sum(starts)) / faults,
        "useful share of the time": useful / seconds,
        "useful share of the time without starts": useful / (seconds - sum(starts)),
    }


if __name__ == "__main__":
    sys.exit(main())
