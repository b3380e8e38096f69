"""Measure what partial rollout gains on answers with a long tail of lengths, and what it costs.

    python scripts/make_long_tail.py --output .cache/tiny/tail
    python scripts/bench_partial.py [--seeds 1 2 3] [--steps 40] [--json FILE] [key=value ...]

The plain run, and partial rollout at staleness 0, 1 and 2, in turns, from equal seeds: the same
prompts are begun in the same order. Seconds are those of whole steps behind the second. An engine
step draws a token of each sequence; how many are taken does not depend on what else the machine
does. Useful is the share of the rows of a plain step's batch in which an engine step draws a token
that is trained on. Runs that are in the JSON file already are not run again.
"""

import sys
from collections.abc import Mapping, Sequence
from statistics import mean

from tail_runs import PROMPTS, SAMPLES, SKIPPED, Figures, compare

ROUND_STEPS = 16
PARTIAL = ("rl_config.partial_rollout=true", f"rl_config.rollout_round_steps={ROUND_STEPS}")
WAYS: dict[str, tuple[str, ...]] = {
    "plain": (),
    **{f"staleness {age}": (*PARTIAL, f"rl_config.max_staleness={age}") for age in (0, 1, 2)},
}


def main() -> int:
    """Run and print; returns the exit code."""
    ratios = ("sequences a second", "engine steps of a step", "useful")
    return compare(__doc__.splitlines()[0], WAYS, of_run, steps=40, ratios=ratios)


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


if __name__ == "__main__":
    sys.exit(main())
