"""Train a student with half of the layers by distillation and by GRPO, and count the responses.

    bash scripts/quickstart.sh        # makes the data and the model
    python scripts/distillation_curves.py [--seeds 1 2 3] [--json FILE] [key=value ...]

The teacher is the quickstart's model after GRPO; the student learns the same habits of answering
in two layers. Prints, for each way and seed, the accuracies on held-out prompts, and the number of
sampled responses after which the student is within three points of its teacher. Runs that are
already in the JSON file are not repeated.
"""

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tiny_runs import CHECKOUT, kept, recorded, trained

from mindrl.programs.tiny import teacher
from mindrl.tiny.making import make_model
from mindrl.tiny.recipe import Recipe

TINY = CHECKOUT / ".cache/tiny"
STUDENT, TEACHER = TINY / "student", TINY / "teacher"
STEPS, EVERY, PROMPTS = 60, 2, 32
WAYS = {
    f"{name}, {responses} of each prompt": (config, responses)
    for name, config, each in (
        ("distillation", "distill_tiny_cpu", (1, 4)),
        ("GRPO", "grpo_tiny_cpu", (4, 8)),
    )
    for responses in each
}
"""Configuration, and responses to a prompt."""
ACCURACY, WITHIN = "evaluation/accuracy", 0.03


def main() -> None:
    """Make teacher and student if they are missing, run what is missing, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--json", type=Path, help="file that keeps the curves")
    options, overrides = parser.parse_known_args()
    goal = taught() - WITHIN
    make_model(STUDENT, TINY / "data", 1, Recipe(layers=2), teacher(STUDENT))

    def curve(way: str, seed: int) -> dict[str, float]:
        name, responses = WAYS[way]
        with tempfile.TemporaryDirectory() as folder:
            trained(
                Path(folder),
                *("--config-name", name, f"actor_config.load={STUDENT}"),
                *(f"megatron_training.seed={seed}", f"megatron_training.train_iters={STEPS}"),
                *(f"rl_config.n_samples_per_prompt={responses}", f"rl_config.test_freq={EVERY}"),
                f"megatron_training.global_batch_size={PROMPTS}",
                *("megatron_training.export_interval=0", *overrides),
            )
            rows = recorded(Path(folder), ACCURACY)
        return {str(row["step"] * PROMPTS * responses): row[ACCURACY] for row in rows}

    turns = [(way, seed) for seed in options.seeds for way in WAYS]
    show(kept(turns, curve, options.json), goal)


def taught() -> float:
    """Return the accuracy of the teacher, which is trained if it is missing."""
    record = TEACHER / "accuracy.json"
    if not record.exists():
        with tempfile.TemporaryDirectory() as folder:
            trained(Path(folder), "--config-name", "grpo_tiny_cpu", f"actor_config.save={TEACHER}")
            last = recorded(Path(folder), ACCURACY)[-1]
        record.write_text(json.dumps({ACCURACY: last[ACCURACY]}))
    return float(json.loads(record.read_text())[ACCURACY])


def show(curves: dict[tuple[str, int], dict[str, float]], goal: float) -> None:
    """Print a line per run."""
    table = Table("way", "seed", "first", "best", f"responses until {goal:.3f}")
    for (way, seed), curve in sorted(curves.items()):
        reached = [int(count) for count, accuracy in curve.items() if accuracy >= goal]
        values = [*curve.values()]
        shown = f"{min(reached):,}" if reached else "not reached"
        table.add_row(way, str(seed), f"{values[0]:.3f}", f"{max(values):.3f}", shown)
    Console(width=100, highlight=False).print(table)


if __name__ == "__main__":
    main()
