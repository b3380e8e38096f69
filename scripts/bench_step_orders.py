"""Measure the gain of generating ahead on separate rollout devices, with a long tail of lengths.

    python scripts/make_long_tail.py --output .cache/tiny/tail
    python scripts/bench_step_orders.py [--seeds 1 2 3] [--steps 20] [--json FILE] [--keep FOLDER]
        [--device-seconds ENGINE_STEP UPDATE] [key=value ...]

One training process and one rollout process in each order of steps, in turn, from equal seeds.
Seconds are those of complete steps from the third on, without the last ones, in which the rollout
has no work left. Runs that are already in the JSON file are not repeated.

On few cores both sides slow each other down. With `--device-seconds` an engine step and an update
take at least this time and sleep for the remainder, as on separate devices: only the order of steps
makes a difference. `scripts/simulated_runs.py` compares kept runs with the simulation.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from tail_runs import PROMPTS, SAMPLES, SKIPPED, Figures, compare

APART = (
    "rl_config.use_integrated_worker=false",
    *("rl_config.actor_resource.num_npus=1", "rl_config.rollout_resource.num_npus=1"),
    "rl_config.rollout_round_steps=16",
)
ORDER = "rl_config.step_order"
LAST = 4
"""Steps at the end that do not count: the largest limit of the age."""
WAYS: dict[str, tuple[str, ...]] = {
    "in turns": APART,
    "one step off": (*APART, f"{ORDER}=one_step_off"),
    **{
        f"asynchronous {age}": (
            *APART,
            f"{ORDER}=asynchronous",
            f"rl_config.max_staleness={age}",
        )
        for age in (1, 2, 4)
    },
}


_CALLS = (
    "vllm.v1.engine.llm_engine:LLMEngine.step",
    "mindrl.workers.training_worker:TrainingWorker.update",
)
"""Engine step, and update."""


def main() -> int:
    """Run and print; return the exit code."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device-seconds", nargs=2, type=float)
    options, sys.argv[1:] = parser.parse_known_args()
    if options.device_seconds:
        os.environ["MINDRL_BENCH_LEAST_SECONDS"] = json.dumps(
            dict(zip(_CALLS, options.device_seconds, strict=True))
        )
        os.environ["PYTHONPATH"] = str(Path(__file__).parent / "lib" / "device_times")
    ratios = ("sequences a second",)
    return compare(__doc__.splitlines()[0], WAYS, of_run, steps=20, ratios=ratios)


def of_run(rows: Sequence[Mapping[str, float]]) -> Figures:
    """Return the figures of a run from the lines of its metrics."""
    accuracies = [row["evaluation/accuracy"] for row in rows if "evaluation/accuracy" in row]
    steps = [row for row in rows if "seconds/step" in row][SKIPPED:-LAST]
    seconds = mean(row["seconds/step"] for row in steps)
    return {
        "seconds of a step": seconds,
        "of waiting for responses": mean(row["seconds/rollout"] for row in steps),
        "of the update": mean(row["seconds/update"] for row in steps),
        "sequences a second": PROMPTS * SAMPLES / seconds,
        "tokens of a response": mean(row["rollout/response_length_mean"] for row in steps),
        "longest response": mean(row["rollout/response_length_max"] for row in steps),
        "mean age of a token": mean(row.get("staleness/mean", 0) for row in steps),
        "accuracy before": accuracies[0],
        "accuracy behind": accuracies[-1],
    }


if __name__ == "__main__":
    sys.exit(main())
