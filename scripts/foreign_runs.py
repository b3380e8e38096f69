"""Train the tiny model in environments of SkyRL-Gym, reasoning-gym and Gymnasium.

    mindrl tiny --output .cache/tiny
    python scripts/foreign_runs.py [--steps 20] [--json FILE] [key=value ...]

Needs skyrl-gym, reasoning-gym and gymnasium beside mindrl. The model first sees 60 updates of
demonstrations in the form that an environment reads: sums of which half are wrong, moves at
random. Then GRPO takes the steps. A line has the mean reward and turns of the first and last
steps, and the largest gap between the log-probs of engine and trainer.
"""

import argparse
import json
import random
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table
from tiny_runs import CHECKOUT, STEPS_ALONE, recorded, trained

TINY = CHECKOUT / ".cache/tiny"
ADAPTERS = "mindrl.environments.adapters"
ROWS, FEW = 1024, 3
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Game:
    """An environment, its rows, and answers in its form."""

    environment: str
    arguments: str
    row: Callable[[random.Random, int], Row]
    answer: Callable[[random.Random, str], str]
    """Of a demonstration, to a question."""


def sum_row(rng: random.Random, _: int) -> Row:
    """Return a sum as SkyRL-Gym's gsm8k has its questions."""
    left, right = rng.randint(1, 9), rng.randint(1, 9)
    asked = [{"role": "user", "content": f"{left}+{right}=?"}]
    return {"prompt": asked, "reward_spec": {"ground_truth": str(left + right)}}


def seeded_row(_: random.Random, number: int) -> Row:
    """Return a row whose environment begins by its seed."""
    return {"prompt": [{"role": "user", "content": "Play."}], "seed": number}


def half_right(rng: random.Random, question: str) -> int:
    """Return the sum of the numbers in a question, or another one."""
    return sum(map(int, re.findall(r"\d+", question))) + rng.choice((0, 0, -1, 1))


GAMES = {
    "SkyRL-Gym gsm8k_multi_turn": Game(
        environment=f"{ADAPTERS}.skyrl_gym:SkyrlGym",
        arguments="{name: gsm8k_multi_turn, max_turns: 2}",
        row=sum_row,
        answer=lambda rng, question: f"#### {half_right(rng, question)}",
    ),
    "reasoning-gym basic_arithmetic": Game(
        environment=f"{ADAPTERS}.reasoning_gym:ReasoningGym",
        arguments="{name: basic_arithmetic, attempts: 3, options: {min_terms: 2, max_terms: 2, "
        "min_digits: 1, max_digits: 1, operators: [+], allow_parentheses: false, "
        "allow_negation: false}}",
        row=seeded_row,
        answer=lambda rng, question: str(half_right(rng, question)),
    ),
    "Gymnasium Blackjack": Game(
        environment=f"{ADAPTERS}.gymnasium:Gymnasium",
        arguments="{name: Blackjack-v1, actions: {stick: 0, hit: 1}}",
        row=seeded_row,
        answer=lambda rng, _: rng.choice(["stick", "hit"]),
    ),
}


def main() -> int:
    """Train in all games; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options, overrides = parser.parse_known_args()
    if not (TINY / "model").is_dir():
        print(f"error: {TINY}/model is missing; see the first lines of this file", file=sys.stderr)
        return 2
    found = {}
    with tempfile.TemporaryDirectory() as work:
        for name in track(GAMES, "environments", console=Console(stderr=True)):
            folder = Path(work, name.split()[0])
            folder.mkdir()
            found[name] = of_game(GAMES[name], folder, options.steps, overrides)
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


def of_game(game: Game, folder: Path, steps: int, overrides: list[str]) -> dict[str, float]:
    """Teach the form, train, and return the figures."""
    rng = random.Random(1)
    rows = [game.row(rng, number) for number in range(ROWS)]
    data, model = folder / "rows.jsonl", folder / "taught"
    write(data, rows)
    write(folder / "shown.jsonl", [shown(game, rng, row) for row in rows])
    teach = [
        *("--config-name", "sft_tiny_cpu", f"actor_config.save={model}", "rl_config.test_freq=0"),
        *(f"megatron_training.data_path={folder}/shown.jsonl", "megatron_training.seq_length=256"),
        *("megatron_training.test_data_path=null", "megatron_training.train_iters=60"),
        *("sft_config.response_column=null", "megatron_training.prompt_column=messages"),
    ]
    trained(folder / "teaching", *teach, program="cli/train.py")
    learn = [
        *("--config-name", "grpo_tools_tiny_cpu", *STEPS_ALONE, f"actor_config.load={model}"),
        *(f"megatron_training.data_path={data}", "megatron_training.prompt_column=prompt"),
        *(f"megatron_training.train_iters={steps}", "environment_config.tools=[]"),
        f"environment_config.environment={game.environment}",
        f"+environment_config.arguments={game.arguments}",
        *("environment_config.reward_weight=1.0", "rl_config.verifier_function=[]"),
        "megatron_training.answer_column=null",
        *("rl_config.verifier_weight=[]", "environment_config.max_turn_tokens=32"),
        *("megatron_training.seq_length=256", "generate_config.max_model_len=256"),
        *("generate_config.sampling_config.max_tokens=192", "rl_config.max_prompt_length=64"),
    ]
    trained(folder / "run", *learn, *overrides, program="cli/train.py")
    return figures(recorded(folder / "run"))


def shown(game: Game, rng: random.Random, row: Row) -> Row:
    """Return a demonstration: the opening of the environment, and a random answer in its form."""
    module, name = game.environment.split(":")
    yaml = import_module("yaml")
    opening = getattr(import_module(module), name)(**yaml.safe_load(game.arguments)).reset(**row)
    (asked,) = row["prompt"]
    content = asked["content"] if opening is None else f"{asked['content']}\n{opening}"
    answer = {"role": "assistant", "content": game.answer(rng, content)}
    return {"messages": [{"role": "user", "content": content}, answer]}


def write(path: Path, rows: list[Row]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def figures(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of a run."""

    def ends(metric: str) -> tuple[float, float]:
        values = [step[metric] for step in steps]
        return mean(values[:FEW]), mean(values[-FEW:])

    (first, last), turns = ends("reward/mean"), ends("turns/mean")
    return {
        "first reward": first,
        "last reward": last,
        "first turns": turns[0],
        "last turns": turns[1],
        "largest gap": max(step["logprob_gap/max"] for step in steps),
        "failed": max(step["turns/ended_failed"] for step in steps),
    }


def show(found: dict[str, dict[str, float]]) -> None:
    """Print a line for each environment."""
    names = [*next(iter(found.values()))]
    table = Table("environment", *names)
    for game, values in found.items():
        cells = [
            f"{values[name]:.1e}" if name == "largest gap" else f"{values[name]:.3f}"
            for name in names
        ]
        table.add_row(game, *cells)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
