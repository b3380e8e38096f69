"""Make a small Qwen2 or Qwen3-MoE chat model that adds two-digit numbers, but carelessly.

The model has a tokenizer, a chat template and one or two million weights. A
short warm start teaches it three habits, mixed as a web corpus would mix them
(see tiny_arithmetic.py). Forgetting the carry is the commonest, so greedy
answers are right about one time in three; the careful habit is rarer, and is
there for reinforcement learning to find.

The questions come from train.jsonl of make_tiny_data.py. The same arguments
on the same machine always give the same weights. An output folder that was
made by the same recipe is left alone. One thread does the work, so that other
programs on the machine slow it little.
"""

import argparse
import dataclasses
import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import get_args

import tokenizers
import torch
import transformers
from rich.progress import Progress
from tiny_arithmetic import (
    Question,
    boxed,
    careful_answer,
    careless_answer,
    hasty_answer,
    parse_prompt,
)
from tiny_chat_model import (
    IGNORED_LABEL,
    Family,
    TinyModel,
    build_model,
    build_tokenizer,
    encode_batch,
    encode_prompt,
    greedy_answers,
)
from transformers import PreTrainedTokenizerFast

# Shape letters: B sequences, T token positions.

RECIPE_FILE = "recipe.json"
SOURCES = ("make_tiny_model.py", "tiny_arithmetic.py", "tiny_chat_model.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One measurement on the held-out questions."""

    step: int
    loss: float
    accuracy: float
    """Share of greedy answers that box the right sum."""
    skill: float
    """Share of careful answers that the model can follow to the end."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the weights depend on, besides the seed and the questions."""

    family: Family = "qwen2"
    careful_share: float = 0.25
    careless_share: float = 0.55
    """The rest of the answers are hasty."""
    answers_per_step: int = 48
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    decay_steps: int = 250
    """The learning rate falls to a twentieth over this many steps, and stays."""
    max_steps: int = 600
    steps_per_check: int = 25
    held_out: int = 256
    """Questions that are measured and never learned from."""
    skill_target: float = 0.93
    accuracy_band: tuple[float, float] = (0.20, 0.50)

    def passes(self, check: Check) -> bool:
        """Tell whether the model is able enough, and careless enough, to stop."""
        low, high = self.accuracy_band
        return check.skill >= self.skill_target and low <= check.accuracy <= high

    def learning_rate_at(self, step: int) -> float:
        """Rise linearly, then fall linearly to a twentieth; steps count from 1."""
        rise = min(1.0, step / self.warmup_steps)
        fall = 1.0 - 0.95 * min(1.0, step / self.decay_steps)
        return self.learning_rate * rise * fall

    def draw_habit(self, rng: random.Random) -> Callable[[Question], str]:
        """Draw one of the three habits of answering."""
        draw = rng.random()
        if draw < self.careful_share:
            return careful_answer
        return careless_answer if draw < self.careful_share + self.careless_share else hasty_answer


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStart:
    """A supervised training run that ends when the held-out check passes."""

    model: TinyModel
    tokenizer: PreTrainedTokenizerFast
    recipe: Recipe

    def run(self, questions: Sequence[Question], seed: int) -> Iterator[Check]:
        """Train until a check passes, or to the last step; yield every check."""
        rng = random.Random(seed)
        shuffled = rng.sample(questions, len(questions))
        held_out, learned = shuffled[: self.recipe.held_out], shuffled[self.recipe.held_out :]
        optimizers = self._build_optimizers()
        for step in range(1, self.recipe.max_steps + 1):
            chosen = rng.sample(learned, self.recipe.answers_per_step)
            loss = self._accumulate_gradients(self._draw_batches(chosen, rng))
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = self.recipe.learning_rate_at(step)
                optimizer.step()
                optimizer.zero_grad()
            if step % self.recipe.steps_per_check:
                continue
            check = Check(
                step=step,
                loss=loss,
                accuracy=self.greedy_accuracy(held_out),
                skill=self.careful_skill(held_out),
            )
            yield check
            if self.recipe.passes(check):
                return

    def greedy_accuracy(self, questions: Sequence[Question]) -> float:
        """Share of questions whose greedy answer boxes the right sum."""
        answers = greedy_answers(self.model, self.tokenizer, questions)
        pairs = zip(questions, answers, strict=True)
        return sum(boxed(question.sum) in answer for question, answer in pairs) / len(questions)

    @torch.no_grad()
    def careful_skill(self, questions: Sequence[Question]) -> float:
        """Share of questions whose careful answer the model can follow to the end.

        Each token must be the likeliest one, save the two that choose the habit:
        the first, and the last plus sign, where careless answers have "=".
        """
        ids_BT, labels_BT = encode_batch(
            self.tokenizer, questions, [careful_answer(question) for question in questions]
        )
        guesses_BT = self.model(input_ids=ids_BT).logits[:, :-1].argmax(dim=-1)
        targets_BT = labels_BT[:, 1:]
        plus = self.tokenizer.convert_tokens_to_ids("+")
        plus_BT = targets_BT == plus
        last_plus_BT = plus_BT & (plus_BT.cumsum(dim=-1) == 3)
        judged_BT = targets_BT != IGNORED_LABEL
        judged_BT[:, len(encode_prompt(self.tokenizer, questions[0])) - 1] = False
        wrong_BT = judged_BT & ~last_plus_BT & (guesses_BT != targets_BT)
        return float((~wrong_BT.any(dim=-1)).float().mean())

    def _build_optimizers(self) -> list[torch.optim.Optimizer]:
        """Give the matrices inside the layers to Muon, which needs a third fewer steps here.

        It takes single matrices, so stacks of experts stay with AdamW, and their router too.
        """
        inner: list[torch.nn.Parameter] = []
        outer: list[torch.nn.Parameter] = []
        for name, parameter in self.model.named_parameters():
            is_router = name.endswith(".mlp.gate.weight")
            is_inner = parameter.dim() == 2 and ".layers." in name and not is_router
            (inner if is_inner else outer).append(parameter)
        return [
            torch.optim.AdamW(outer, betas=(0.9, 0.98), weight_decay=0.01),
            torch.optim.Muon(inner, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        ]

    def _draw_batches(
        self, questions: Sequence[Question], rng: random.Random
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Answer each question by some habit; short and long answers apart, to save padding."""
        answers = [self.recipe.draw_habit(rng)(question) for question in questions]
        batches = []
        for is_short in (True, False):
            rows = [row for row, text in enumerate(answers) if text.startswith("\\") == is_short]
            if rows:
                part = [questions[row] for row in rows], [answers[row] for row in rows]
                batches.append(encode_batch(self.tokenizer, *part))
        return batches

    def _accumulate_gradients(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        """Add the gradient of the mean loss over all labelled tokens; return that loss, in nats."""
        counts = [int((labels_BT != IGNORED_LABEL).sum()) for _, labels_BT in batches]
        total = 0.0
        for (ids_BT, labels_BT), count in zip(batches, counts, strict=True):
            loss = self.model(input_ids=ids_BT, labels=labels_BT).loss * (count / sum(counts))
            loss.backward()
            total += loss.item()
        return total


def recipe_record(data: Path, seed: int, recipe: Recipe) -> dict[str, object]:
    """State everything the weights depend on, with one hash over all of it.

    Raises:
        OSError: The training file cannot be read.
    """
    record: dict[str, object] = {
        "seed": seed,
        "train_sha256": _sha256((data / "train.jsonl").read_bytes()),
        "sources_sha256": [
            _sha256(Path(__file__).with_name(name).read_bytes()) for name in SOURCES
        ],
        "versions": {
            module.__name__: module.__version__ for module in (torch, transformers, tokenizers)
        },
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


def train_and_save(data: Path, seed: int, recipe: Recipe, folder: Path) -> Check:
    """Train, print each check, and save a Hugging Face folder.

    Raises:
        ValueError: There are too few questions, or no check passed.
    """
    questions = read_questions(data / "train.jsonl")
    if len(questions) < 2 * recipe.held_out:
        raise ValueError(
            f"{data / 'train.jsonl'} has {len(questions)} questions; "
            f"needed: at least {2 * recipe.held_out}"
        )
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    transformers.utils.logging.disable_progress_bar()
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed, recipe.family)
    training = WarmStart(model=model, tokenizer=tokenizer, recipe=recipe)
    started = time.monotonic()
    check = None
    with Progress(disable=not sys.stdout.isatty(), transient=True) as progress:
        task = progress.add_task("warm start", total=recipe.max_steps)
        for check in training.run(questions, seed):
            progress.update(task, completed=check.step)
            progress.console.print(
                f"step {check.step:3d}  {time.monotonic() - started:3.0f} s  "
                f"loss {check.loss:.3f}  greedy accuracy {check.accuracy:.3f}  "
                f"careful skill {check.skill:.3f}",
                highlight=False,
            )
    if check is None or not recipe.passes(check):
        raise ValueError(f"--seed {seed} never met the recipe's targets; the last was {check}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    return check


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="model folder to write")
    parser.add_argument("--data", type=Path, required=True, help="folder of make_tiny_data.py")
    parser.add_argument("--seed", type=int, default=0, help="of weights and answers (default 0)")
    parser.add_argument(
        "--family", choices=get_args(Family), default="qwen2", help="of the network (default qwen2)"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Make the model unless it is there, and return the exit status."""
    options = parse_arguments(arguments)
    recipe = Recipe(family=options.family)
    output: Path = options.output.absolute()
    try:
        record = recipe_record(options.data, options.seed, recipe)
        if is_up_to_date(output, record):
            print(f"{output}: up to date")
            return 0
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".tiny-model-") as scratch:
            built = Path(scratch) / "model"
            check = train_and_save(options.data, options.seed, recipe, built)
            record["result"] = dataclasses.asdict(check)
            (built / RECIPE_FILE).write_text(json.dumps(record, indent=2) + "\n")
            swap_in(built, output)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{output}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
