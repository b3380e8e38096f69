"""The model of the first run: a small Qwen2 or Qwen3-MoE that adds two-digit numbers carelessly.

It has a tokenizer, a chat template and one or two million weights. A
supervised run teaches it three habits, mixed as a web corpus would mix them
(arithmetic.py). Forgetting the carry is the commonest, so greedy answers are
right about one time in three; the careful habit is rarer, and is there for
reinforcement learning to find.

The same arguments on the same machine always give the same weights. A folder
that was made by the same recipe is left alone.
"""

import dataclasses
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mindrl.config.section_types import SectionArguments
from mindrl.errors import DataError, ModelError
from mindrl.observability.output_files import output_errors
from mindrl.observability.terminal import say
from mindrl.tiny.arithmetic import Question
from mindrl.tiny.questions import read_questions
from mindrl.tiny.recipe import RECIPE_FILE, Recipe, Skills, TaughtRow, is_up_to_date, recipe_record


@dataclasses.dataclass(frozen=True, kw_only=True)
class Teacher:
    """A supervised run, which is started above this room."""

    config: Path
    """File of the configuration that it begins with."""
    run: Callable[[Iterator[TaughtRow], SectionArguments], Path]
    """Learns from rows in their order, with changed sections; returns the folder of the model."""


def make_model(output: Path, data: Path, seed: int, recipe: Recipe, teacher: Teacher) -> bool:
    """Make a model folder unless the same recipe has made it; returns whether it did.

    Raises:
        MindrlError: The data cannot be used, the folder is not one of ours, or a run failed.
    """
    record = recipe_record(data, seed, recipe, teacher.config)
    if is_up_to_date(output, record):
        return False
    questions = _enough_questions(data / "train.jsonl", recipe)
    with new_folder(output, record) as built:
        skills = _build(built, questions, seed, recipe, teacher)
        record["result"] = dataclasses.asdict(skills)
    return True


def _enough_questions(path: Path, recipe: Recipe) -> list[Question]:
    """Read the questions of a recipe; raises DataError where there are too few."""
    questions = read_questions(path)
    if len(questions) < 2 * recipe.held_out:
        need = f"needed: at least {2 * recipe.held_out}"
        raise DataError(f"{path} has {len(questions)} questions; {need}")
    return questions


def _build(
    folder: Path, questions: Sequence[Question], seed: int, recipe: Recipe, teacher: Teacher
) -> Skills:
    """Leave a model in a folder; returns what it can do.

    Where one run is not enough another goes on from what it has learned.

    Raises:
        ModelError: No run made what was asked for.
    """
    # Imported late: they take longer than to find that all is up to date.
    from transformers import AutoModelForCausalLM  # noqa: PLC0415
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

    from mindrl.tiny.chat_model import (  # noqa: PLC0415
        build_model,
        build_tokenizer,
        careful_skill,
        greedy_accuracy,
    )

    disable_progress_bar()
    tokenizer, rng = build_tokenizer(), random.Random(seed)
    held_out, learned = recipe.dealt(questions, seed)
    build_model(tokenizer, seed, recipe.family, recipe.layers).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for _ in range(recipe.most_runs):
        exported = teacher.run(recipe.lessons(learned, rng), recipe.sections(folder))
        shutil.rmtree(folder)
        shutil.copytree(exported, folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        skills = Skills(
            accuracy=greedy_accuracy(model, tokenizer, held_out),
            skill=careful_skill(model, tokenizer, held_out),
        )
        say(recipe.described(skills))
        if recipe.passes(skills):
            return skills
    raise ModelError(f"seed {seed} never met the recipe's targets; the last was {skills}")


@contextmanager
def new_folder(output: Path, record: Mapping[str, object]) -> Iterator[Path]:
    """Yield the place of a new model folder; at the end it gets its record and replaces `output`.

    Raises:
        OutputError: A file cannot be written.
    """
    with output_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".tiny-model-") as scratch:
            built = Path(scratch) / "model"
            yield built
            (built / RECIPE_FILE).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
            swap_in(built, output)


def swap_in(built: Path, output: Path) -> None:
    """Put the finished folder in place; no reader ever sees half of it."""
    retired = built.with_name("retired")
    if output.exists():
        output.rename(retired)
    built.rename(output)
    shutil.rmtree(retired, ignore_errors=True)
