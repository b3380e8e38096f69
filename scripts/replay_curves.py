"""Train the tiny mixture in bfloat16 with and without router replay, with several seeds.

    bash scripts/quickstart_moe.sh        # makes the model
    python scripts/replay_curves.py [--seeds 1 2 3] [--steps 20] [--json FILE] [key=value ...]

Prints a line per mode: how far the trainer's log-probs are from the engine's, the share of choices
that replay changed, the reward, and the seconds of a step per 1,000 response tokens, from the third
step on. Runs that are already in the JSON file are not repeated.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median

from rich.console import Console
from rich.table import Table
from tiny_runs import STEPS_ALONE, kept, recorded, trained

MODES = ("none", "R2", "R3")
IN_BFLOAT16 = (
    *("--config-name", "grpo_tiny_moe_cpu", "megatron_training.bf16=true"),
    *("generate_config.dtype=bfloat16", "rl_config.max_logprob_gap=null"),
    # Several updates per step, so that the old log-probs are those of a pass of their own.
    *("rl_config.mini_batch_size=8", "rl_config.old_log_probs=recompute"),
)
SKIPPED = 2
"""Steps of each run that include work that is done once."""
MEAN, LARGEST = "logprob_gap/mean", "logprob_gap/max"
DIFFERING, REWARD = "update/differing_routes", "reward/mean"
SECONDS = "seconds of 1,000 tokens"


def main() -> None:
    """Run missing runs and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="file that keeps the figures")
    options, overrides = parser.parse_known_args()

    def figures(mode: str, seed: int) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            more = (f"actor_config.router_replay={mode}", f"megatron_training.seed={seed}")
            steps = f"megatron_training.train_iters={options.steps}"
            trained(Path(folder), *IN_BFLOAT16, *STEPS_ALONE, *more, steps, *overrides)
            rows = recorded(Path(folder))
        return {
            MEAN: mean(row[MEAN] for row in rows),
            LARGEST: max(row[LARGEST] for row in rows),
            DIFFERING: mean(row.get(DIFFERING, 0.0) for row in rows),
            REWARD: mean(row[REWARD] for row in rows[-5:]),
            SECONDS: median(
                1000 * row["seconds/step"] / row["rollout/response_tokens"]
                for row in rows[SKIPPED:]
            ),
        }

    turns = [(mode, seed) for seed in options.seeds for mode in MODES]
    found = kept(turns, figures, options.json)
    show({mode: [found[mode, seed] for seed in options.seeds] for mode in MODES})


def show(figures: dict[str, Sequence[dict[str, float]]]) -> None:
    """Print the mean over the seeds, and of the largest gap each seed's."""
    gaps = ("mean gap", "largest gap of each seed")
    table = Table("replay", *gaps, "replayed otherwise", "reward", SECONDS)
    for mode, each in figures.items():
        table.add_row(
            mode,
            f"{mean(seed[MEAN] for seed in each):.2e}",
            ", ".join(f"{seed[LARGEST]:.3f}" for seed in each),
            f"{mean(seed[DIFFERING] for seed in each):.4f}",
            f"{mean(seed[REWARD] for seed in each):.3f}",
            f"{mean(seed[SECONDS] for seed in each):.3f}",
        )
    Console(width=110, highlight=False).print(table)


if __name__ == "__main__":
    main()
