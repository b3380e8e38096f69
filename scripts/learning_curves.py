"""Train the tiny model with each algorithm and several seeds, and check that the accuracy rises.

    python scripts/learning_curves.py [--only gspo rloo] [--seeds 1 2 3] [--json FILE] [key=value]

Prints one line per algorithm: the accuracy on held-out prompts before, during and after training,
the mean over the seeds, and the minimum gain of a seed. The exit code is 1 if a gain is less than
0.35. Runs that are already in the JSON file are not repeated. With one update per rollout all
policy losses are equal: `rl_config.mini_batch_size=8` makes four. Needs the data and the model of
scripts/quickstart.sh.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table
from tiny_runs import CHECKOUT, kept, recorded, trained

LEAST_GAIN = 0.35
GRPO = "cli/train_grpo.py"
APART = (
    "rl_config.use_integrated_worker=false",
    *("rl_config.actor_resource.num_npus=1", "rl_config.rollout_resource.num_npus=1"),
)
ASYNCHRONOUS = (GRPO, *APART, "rl_config.step_order=asynchronous")
WAYS: dict[str, tuple[str, ...]] = {
    "grpo": (GRPO,),
    **{
        path.stem: (GRPO, f"+recipe={path.stem}")
        for path in sorted(CHECKOUT.glob("configs/recipe/*.yaml"))
    },
    **{
        name: (GRPO, f"rl_config.adv_estimator={name}")
        for name in ("group_mean", "opo", "pass_at_k", "reinforce_plus_plus_baseline")
    },
    **{
        name: (GRPO, f"rl_config.policy_loss={name}")
        for name in ("dual_clip", "gmpo", "sapo", "plain")
    },
    "ppo": ("cli/train_ppo.py",),
    "int8": (GRPO, "generate_config.quantization=int8", "rl_config.max_logprob_gap=null"),
    "in_turns": (GRPO, *APART),
    "one_step_off": (GRPO, *APART, "rl_config.step_order=one_step_off"),
    **{
        f"asynchronous_{age}": (*ASYNCHRONOUS, f"rl_config.max_staleness={age}")
        for age in (1, 2, 4)
    },
}
"""Program and overrides of each algorithm."""
Curve = dict[str, float]
"""Step, and the accuracy after it."""


def main() -> int:
    """Run missing runs and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sorted(WAYS), default=list(WAYS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--json", type=Path, help="file that keeps the curves")
    options, overrides = parser.parse_known_args()

    def learned(way: str, seed: int) -> Curve:
        return curve(*WAYS[way], f"megatron_training.seed={seed}", *overrides)

    turns = [(way, seed) for way in options.only for seed in options.seeds]
    found = kept(turns, learned, options.json)
    gains = shown({way: [found[way, seed] for seed in options.seeds] for way in options.only})
    return int(min(gains) < LEAST_GAIN)


def curve(program: str, *overrides: str) -> Curve:
    """Train once; return the accuracy by step."""
    with tempfile.TemporaryDirectory() as folder:
        trained(Path(folder), *overrides, "megatron_training.export_interval=0", program=program)
        rows = recorded(Path(folder), _ACCURACY)
    return {str(row["step"]): row[_ACCURACY] for row in rows}


_ACCURACY = "evaluation/accuracy"


def shown(curves: Mapping[str, Sequence[Curve]]) -> list[float]:
    """Print a line per algorithm; return the minimum gain of each."""
    steps = sorted({step for each in curves.values() for curve in each for step in curve}, key=int)
    table = Table("accuracy after step", *steps, "minimum gain")
    gains = []
    for way, each in curves.items():
        gains.append(min(_last(curve) - curve["0"] for curve in each))
        means = [f"{mean(curve.get(step, 0.0) for curve in each):.3f}" for step in steps]
        table.add_row(way, *means, f"{gains[-1]:.3f}")
    Console(width=110, highlight=False).print(table)
    return gains


def _last(curve: Curve) -> float:
    return curve[max(curve, key=int)]


if __name__ == "__main__":
    sys.exit(main())
