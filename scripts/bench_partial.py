"""Measure what partial rollout gains on answers with a long tail of lengths, and what it costs.

    python scripts/make_long_tail.py --output .cache/tiny/tail
    python scripts/bench_partial.py [--seeds 1 2 3] [--steps 40] [--json FILE] [key=value ...]

The plain run, and partial rollout at staleness 0, 1 and 2, in turns, from equal seeds: the same
prompts are begun in the same order. Seconds are those of whole steps behind the second. An engine
step draws a token of each sequence; how many are taken does not depend on what else the machine
does. Useful is the share of the rows of a plain step's batch in which an engine step draws a token
that is trained on. Runs that are in the JSON file already are not run again.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table
from tiny_runs import kept, recorded, trained

PROMPTS, SAMPLES, ROUND_STEPS, SKIPPED = 16, 4, 16, 2
TASK = (
    "actor_config.load=.cache/tiny/tail/model",
    "megatron_training.data_path=.cache/tiny/tail/train.jsonl",
    "megatron_training.test_data_path=.cache/tiny/tail/test.jsonl",
    *("megatron_training.seq_length=512", "generate_config.max_model_len=512"),
    *("rl_config.max_prompt_length=24", "generate_config.sampling_config.max_tokens=480"),
    f"megatron_training.global_batch_size={PROMPTS}",
    *(f"rl_config.mini_batch_size={PROMPTS}", f"rl_config.n_samples_per_prompt={SAMPLES}"),
    *("rl_config.test_freq=0", "rl_config.memory_timeline_steps=0"),
)
PARTIAL = ("rl_config.partial_rollout=true", f"rl_config.rollout_round_steps={ROUND_STEPS}")
WAYS: dict[str, tuple[str, ...]] = {
    "plain": (),
    **{f"staleness {age}": (*PARTIAL, f"rl_config.max_staleness={age}") for age in (0, 1, 2)},
}
Figures = dict[str, float]


def main() -> int:
    """Run what is not there yet, in turns, and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", choices=sorted(WAYS), default=list(WAYS))
    parser.add_argument("--steps", type=int, default=40, help="of each run; default: %(default)s")
    parser.add_argument("--json", type=Path, help="figures are kept there, and read again")
    options, overrides = parser.parse_known_args()

    def measured(way: str, seed: int) -> Figures:
        key = "megatron_training"
        own = (f"{key}.seed={seed}", f"{key}.train_iters={options.steps}")
        return figures([*WAYS[way], *own, *overrides])

    turns = [(way, seed) for seed in options.seeds for way in options.only]
    found = kept(turns, measured, options.json)
    shown({way: [found[way, seed] for seed in options.seeds] for way in options.only})
    return 0


def figures(overrides: Sequence[str]) -> Figures:
    """Train once; returns what it took."""
    with tempfile.TemporaryDirectory() as folder:
        trained(Path(folder), *TASK, "megatron_training.export_interval=0", *overrides)
        return of_run(recorded(Path(folder), "step"))


def of_run(rows: Sequence[Mapping[str, float]]) -> Figures:
    """Say what a run took by the lines of its metrics."""
    before, *_, after = (row["evaluation/accuracy"] for row in rows if "evaluation/accuracy" in row)
    every = [row for row in rows if "seconds/step" in row]
    engine_steps = sum(map(steps_of_engine, every))
    tokens, steps = sum(row["rollout/response_tokens"] for row in every), every[SKIPPED:]
    seconds = mean(row["seconds/step"] for row in steps)
    return {
        "seconds of a step": seconds,
        "of the rollout": mean(row["seconds/rollout"] for row in steps),
        "of the update": mean(row["seconds/update"] for row in steps),
        "sequences a second": PROMPTS * SAMPLES / seconds,
        "engine steps of a step": engine_steps / len(every),
        "useful": tokens / engine_steps / (PROMPTS * SAMPLES),
        "tokens of a response": tokens / len(every) / (PROMPTS * SAMPLES),
        "tokens of earlier weights": mean(row.get("staleness/stale_tokens", 0) for row in every),
        "accuracy before": before,
        "accuracy behind": after,
        "accuracy gained a minute": (after - before) / (seconds * len(every) / 60),
    }


def steps_of_engine(row: Mapping[str, float]) -> float:
    """Return the steps that the engines took: by rounds, or until the longest response."""
    rounds = row.get("staleness/rounds")
    return row["rollout/response_length_max"] if rounds is None else rounds * ROUND_STEPS


def shown(found: Mapping[str, Sequence[Figures]]) -> None:
    """Print the means over the seeds, and what is gained over the plain run."""
    ways = list(found)
    table = Table("mean over the seeds", *ways)
    for name in found[ways[0]][0]:
        table.add_row(name, *(f"{mean(each[name] for each in found[way]):.3g}" for way in ways))
    for name in ("sequences a second", "engine steps of a step", "useful"):
        base = [each[name] for each in found[ways[0]]]
        cells = []
        for way in ways:
            ratios = [each[name] / plain for each, plain in zip(found[way], base, strict=True)]
            cells.append(f"{mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        table.add_row(f"{name}, over {ways[0]}", *cells)
    Console(width=120, highlight=False).print(table)


if __name__ == "__main__":
    sys.exit(main())
