"""Measure gain and cost of partial rollout on answers with a long tail of lengths.

    python scripts/make_long_tail.py --output .cache/tiny/tail
    python scripts/bench_partial.py [--seeds 1 2 3] [--steps 40] [--json FILE] [key=value ...]

Runs without partial rollout, and with it at staleness 0, 1 and 2, in turn and from equal seeds: the
same prompts start in the same order. Seconds are those of complete steps from the third on. An
engine step generates one token per sequence; the number of engine steps does not depend on the load
of the machine. Useful is the share of rows of a plain step's batch for which an engine step
generates a token that is trained on. Runs that are already in the JSON file are not repeated.
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
    """Run and print; return the exit code."""
    ratios = ("sequences a second", "engine steps of a step", "useful")
    return compare(__doc__.splitlines()[0], WAYS, of_run, steps=40, ratios=ratios)


def of_run(rows: Sequence[Mapping[str, float]]) -> Figures:
    """Return the figures of a run from the lines of its metrics."""
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
    """Return the number of engine steps: by rounds, or up to the longest response."""
    rounds = row.get("staleness/rounds")
    return row["rollout/response_length_max"] if rounds is None else rounds * ROUND_STEPS


if __name__ == "__main__":
    sys.exit(main())
