"""Train on rows made in Python, with a reward function of this file.

    python examples/own_reward.py

Shows: rows without a data file, a reward that gives part of the score to a near miss, a second
reward by name, a callback that ends the run early, and its result. Takes about two minutes of CPU
time.
First, once: mindrl tiny --output .cache/tiny
"""

import random

from mindrl import train
from mindrl.rewards.functions import last_boxed

ENOUGH = 0.9
"""Accuracy of the training responses at which the run stops."""


def near(response: str, reference: str) -> dict[str, float | bool]:
    """Score 1 for the sum, and up to 0.5 for a number close to it."""
    boxed = last_boxed(response) or ""
    if not boxed.isdecimal():
        return {"score": 0.0, "acc": False}
    miss = abs(int(boxed) - int(reference))
    return {"score": 1.0 if miss == 0 else max(0.0, 0.5 - miss / 40), "acc": miss == 0}


def additions(count: int, seed: int) -> list[dict[str, str]]:
    """Return rows with a prompt and its answer; two seeds may share a row."""
    rng = random.Random(seed)
    pairs = [(rng.randint(10, 99), rng.randint(10, 99)) for _ in range(count)]
    return [{"messages": f"{left}+{right}=?", "answer": str(left + right)} for left, right in pairs]


def main() -> None:
    """Train, then print what changed."""
    run = train(
        "grpo_tiny_cpu",
        megatron_training={"train_iters": 20, "test_data_path": None},
        data_config={"test_overlap_policy": "drop"},
        rl_config={"test_freq": 10},
        reward_functions={near: 1.0, "boxed_format": 0.1},
        train_dataset=additions(4000, seed=1),
        eval_dataset=additions(128, seed=2),
        callbacks=[
            lambda view: view.metrics.get("evaluation/accuracy", 0) > ENOUGH and view.stop()
        ],
    )
    summary = run.summary
    print(
        f"{summary['status']} after {summary['steps']} steps: accuracy "
        f"{summary['accuracy_before']:.3f} -> {summary['accuracy_after']:.3f}"
    )


if __name__ == "__main__":
    main()
