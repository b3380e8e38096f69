"""Make a small Qwen2 or Qwen3-MoE chat model that adds two-digit numbers, but carelessly.

The model has a tokenizer, a chat template and one or two million weights. A
warm start, supervised fine-tuning as `mindrl train-sft` does it, teaches it
three habits, mixed as a web corpus would mix them (see tiny_arithmetic.py).
Forgetting the carry is the commonest, so greedy answers are right about one
time in three; the careful habit is rarer, and is there for reinforcement
learning to find.

The questions come from train.jsonl of make_tiny_data.py. The same arguments
on the same machine always give the same weights. An output folder that was
made by the same recipe is left alone.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tiny_arithmetic import (
    Question,
    careful_answer,
    careless_answer,
    hasty_answer,
    parse_prompt,
)

from mindrl import train
from mindrl.errors import MindrlError

# Importing torch takes longer than to find that all is up to date.
if TYPE_CHECKING:
    from tiny_chat_model import Family

RECIPE_FILE = "recipe.json"
CONFIG = "sft_tiny_cpu"
SOURCES = (
    "make_tiny_model.py",
    "tiny_arithmetic.py",
    "tiny_chat_model.py",
    f"../configs/{CONFIG}.yaml",
)
UPDATES: "dict[Family, int]" = {"qwen2": 460, "qwen3_moe": 320}
PACKAGES = ("torch", "transformers", "tokenizers", "megatron-core")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """What a model can do, by the held-out questions."""

    accuracy: float
    """Share of greedy answers that box the right sum."""
    skill: float
    """Share of careful answers that the model can follow to the end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the weights depend on, besides the seed and the questions."""

    family: "Family" = "qwen2"
    careful_share: float = 0.25
    careless_share: float = 0.55
    """The rest of the answers are hasty."""
    updates: int = UPDATES["qwen2"]
    early: float = 0.8
    """Share of the updates that have more careful answers, which are the hardest to learn."""
    early_careful_share: float = 0.7
    answers_per_update: int = 32
    updates_per_step: int = 10
    learning_rate: float = 3e-3
    """It falls to a twentieth."""
    warmup: float = 0.05
    """Share of the updates."""
    most_runs: int = 3
    held_out: int = 256
    """Questions that are measured and never learned from."""
    skill_target: float = 0.93
    accuracy_band: tuple[float, float] = (0.20, 0.50)

    def passes(self, check: Check) -> bool:
        """Tell whether the model is able enough, and careless enough."""
        low, high = self.accuracy_band
        return check.skill >= self.skill_target and low <= check.accuracy <= high

    def draw_habit(
        self, rng: random.Random, *, is_early: bool = False
    ) -> Callable[[Question], str]:
        """Draw a habit of answering; what is not careful is careless or hasty as it always is."""
        if rng.random() < (self.early_careful_share if is_early else self.careful_share):
            return careful_answer
        is_careless = rng.random() < self.careless_share / (1 - self.careful_share)
        return careless_answer if is_careless else hasty_answer

    def lessons(
        self, questions: Sequence[Question], rng: random.Random
    ) -> Iterator[dict[str, object]]:
        """Yield rows to learn from, one update behind the other."""
        for update in range(self.updates):
            is_early = update < self.early * self.updates
            for question in rng.sample(questions, self.answers_per_update):
                habit = self.draw_habit(rng, is_early=is_early)
                yield {"messages": question.prompt, "answer": habit(question)}


def read_questions(path: Path) -> list[Question]:
    """Read each question of a file of make_tiny_data.py.

    Raises:
        OSError: The file cannot be read.
        ValueError: A row is not one of its questions.
    """
    questions = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            questions.append(parse_prompt(json.loads(line)["messages"][-1]["content"]))
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path}:{number}: {error}") from error
    return questions


def enough_questions(path: Path, recipe: Recipe) -> list[Question]:
    """Read the questions of a recipe; raises as above, and where there are too few."""
    questions = read_questions(path)
    if len(questions) < 2 * recipe.held_out:
        raise ValueError(
            f"{path} has {len(questions)} questions; needed: at least {2 * recipe.held_out}"
        )
    return questions


def dealt(
    questions: Sequence[Question], recipe: Recipe, seed: int
) -> tuple[list[Question], list[Question]]:
    """Part questions into those that are held out and those that are learned from."""
    shuffled = random.Random(seed).sample(questions, len(questions))
    return shuffled[: recipe.held_out], shuffled[recipe.held_out :]


def recipe_record(data: Path, seed: int, recipe: Recipe) -> dict[str, object]:
    """State everything the weights depend on, with one hash over all of it.

    Raises:
        OSError: The training file cannot be read.
    """
    record: dict[str, object] = {
        "seed": seed,
        "train_sha256": _sha256((data / "train.jsonl").read_bytes()),
        "sources_sha256": [
            _sha256((Path(__file__).parent / name).read_bytes()) for name in SOURCES
        ],
        "versions": {name: version(name) for name in PACKAGES},
        "recipe": dataclasses.asdict(recipe),
    }
    return {"hash": _sha256(json.dumps(record, sort_keys=True).encode()), **record}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_up_to_date(output: Path, record: dict[str, object]) -> bool:
    """Tell whether the folder was made by this recipe.

    Raises:
        ValueError: The folder holds something this script did not make.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return False
    try:
        found = json.loads((output / RECIPE_FILE).read_text())["hash"]
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(
            f"--output {output} has no readable {RECIPE_FILE}, so this script did not make it; "
            "name another folder or remove it"
        ) from None
    return bool(found == record["hash"])


def swap_in(built: Path, output: Path) -> None:
    """Put the finished folder in place; no reader ever sees half of it."""
    retired = built.with_name("retired")
    if output.exists():
        output.rename(retired)
    built.rename(output)
    shutil.rmtree(retired, ignore_errors=True)


def made(questions: Sequence[Question], seed: int, recipe: Recipe, scratch: Path) -> Check:
    """Leave a model in `model` of a folder; returns what it can do.

    Where one run is not enough another goes on from what it has learned.

    Raises:
        MindrlError: A run failed.
        ValueError: No run made what was asked for.
    """
    from tiny_chat_model import (  # noqa: PLC0415
        build_model,
        build_tokenizer,
        careful_skill,
        greedy_accuracy,
    )
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    tokenizer, rng = build_tokenizer(), random.Random(seed)
    held_out, learned = dealt(questions, recipe, seed)
    folder = scratch / "model"
    build_model(tokenizer, seed, recipe.family).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for _ in range(recipe.most_runs):
        exported = warm_start(folder, recipe.lessons(learned, rng), recipe)
        shutil.rmtree(folder)
        shutil.copytree(exported, folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        check = Check(
            accuracy=greedy_accuracy(model, tokenizer, held_out),
            skill=careful_skill(model, tokenizer, held_out),
        )
        print(f"greedy accuracy {check.accuracy:.3f}, careful skill {check.skill:.3f}")
        if recipe.passes(check):
            return check
    raise ValueError(f"--seed {seed} never met the recipe's targets; the last was {check}")


def warm_start(first: Path, rows: Iterator[dict[str, object]], recipe: Recipe) -> Path:
    """Fine-tune a model folder on rows, in their order; returns the folder of the result.

    Raises:
        MindrlError: The run failed.
    """
    run = train(
        CONFIG,
        train_dataset=rows,
        megatron_training={
            "train_iters": recipe.updates // recipe.updates_per_step,
            "global_batch_size": recipe.updates_per_step * recipe.answers_per_update,
            "no_shuffle": True,
            "test_data_path": None,
        },
        actor_config={
            "load": str(first),
            "lr": recipe.learning_rate,
            "min_lr": recipe.learning_rate / 20,
            "lr_warmup_fraction": recipe.warmup,
            "adam_beta2": 0.98,
            "weight_decay": 0.01,
        },
        rl_config={
            "mini_batch_size": recipe.answers_per_update,
            "test_freq": 0,
            "actor_resource": {"num_npus": min(2, os.cpu_count() or 1)},
        },
    )
    return Path(run.summary["model"])


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="model folder to write")
    parser.add_argument("--data", type=Path, required=True, help="folder of make_tiny_data.py")
    parser.add_argument("--seed", type=int, default=0, help="of weights and answers (default 0)")
    parser.add_argument(
        "--family", choices=UPDATES, default="qwen2", help="of the network (default qwen2)"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Make the model unless it is there, and return the exit status."""
    options = parse_arguments(arguments)
    recipe = Recipe(family=options.family, updates=UPDATES[options.family])
    output: Path = options.output.absolute()
    try:
        record = recipe_record(options.data, options.seed, recipe)
        if is_up_to_date(output, record):
            print(f"{output}: up to date")
            return 0
        questions = enough_questions(options.data / "train.jsonl", recipe)
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".tiny-model-") as scratch:
            check = made(questions, options.seed, recipe, Path(scratch))
            built = Path(scratch) / "model"
            record["result"] = dataclasses.asdict(check)
            (built / RECIPE_FILE).write_text(json.dumps(record, indent=2) + "\n")
            swap_in(built, output)
    except (MindrlError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{output}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
