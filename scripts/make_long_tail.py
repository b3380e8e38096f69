r"""Train the tiny model on a task with a long tail of answer lengths, and write its questions.

    python scripts/make_long_tail.py --output .cache/tiny/tail [--every 16]

Most questions are those of make_tiny_data.py. One in sixteen ends in a number, "47+38=? 118", and
its answer starts with a count down to 1: "118, 117, ..., 1, 7+8=15, 4+3=7, \boxed{75}". Such an
answer has about 20 times the tokens of another. It keeps the style of the tiny model, but after a
long count the model has often lost the numbers of the question. Needs the data and the model of
scripts/quickstart.sh. The same arguments on the same machine give the same bytes.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.progress import track
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from mindrl.tiny.arithmetic import Question
from mindrl.tiny.chat_model import IGNORED_LABEL, TinyModel, encode_batch
from mindrl.tiny.questions import read_questions, write_if_changed
from mindrl.tiny.recipe import Recipe

CHECKOUT = Path(__file__).parents[1]
TINY = CHECKOUT / ".cache/tiny"
COUNTS = range(96, 127)
POSITIONS = 512
STEPS, ANSWERS, LONG_ANSWERS, LEARNING_RATE = 400, 24, 3, 1e-3
LEAST_SHARE = 0.9
"""Required share of held-out counts that the model completes with the most likely tokens."""


class Counted(NamedTuple):
    """A question that requires a count down first."""

    question: Question
    count: int

    @property
    def prompt(self) -> str:
        """The question of the user."""
        return f"{self.question.prompt} {self.count}"

    @property
    def down(self) -> str:
        """The text before the answer."""
        return "".join(f"{number}, " for number in range(self.count, 0, -1))


def rows(questions: Sequence[Question], every: int, rng: random.Random) -> Iterator[str]:
    """Yield one JSON line per question; one in `every` requires a count."""
    for question in questions:
        asked = Counted(question, rng.choice(COUNTS)) if rng.random() < 1 / every else question
        messages = [{"role": "user", "content": asked.prompt}]
        yield json.dumps({"messages": messages, "answer": str(question.sum)}) + "\n"


def learn(
    model: TinyModel, tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question]
) -> None:
    """Train on the long answers, and keep the style of the short ones."""
    rng, recipe = random.Random(0), Recipe()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    for step in track(range(STEPS), "warm start", disable=not sys.stdout.isatty()):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min(1, step / 20) * (1 - step / STEPS)
        short = rng.sample(questions, ANSWERS)
        long = [Counted(each, rng.choice(COUNTS)) for each in rng.sample(questions, LONG_ANSWERS)]
        told = [each.down + recipe.draw_habit(rng)(each.question) for each in long]
        answers = [recipe.draw_habit(rng)(question) for question in short]
        for asked, said in ((short, answers), (long, told)):
            ids_BT, labels_BT = encode_batch(tokenizer, asked, said)
            (model(input_ids=ids_BT, labels=labels_BT).loss / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def share_counted(
    model: TinyModel, tokenizer: PreTrainedTokenizerFast, questions: Sequence[Question]
) -> float:
    """Return the share of counts whose tokens are all the most likely ones."""
    asked = [Counted(each, COUNTS[row % len(COUNTS)]) for row, each in enumerate(questions)]
    ids_BT, labels_BT = encode_batch(tokenizer, asked, [each.down for each in asked])
    labels_BT[labels_BT == tokenizer.eos_token_id] = IGNORED_LABEL
    guesses_BT = model(input_ids=ids_BT).logits[:, :-1].argmax(dim=-1)
    wrong_BT = (labels_BT[:, 1:] != IGNORED_LABEL) & (guesses_BT != labels_BT[:, 1:])
    return float((~wrong_BT.any(dim=1)).float().mean())


def main() -> int:
    """Write the questions and the model; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for questions and model")
    parser.add_argument("--every", type=int, default=16, help="questions per count")
    options = parser.parse_args()
    for number, name in enumerate(("train", "test")):
        questions = read_questions(TINY / f"data/{name}.jsonl")
        text = "".join(rows(questions, options.every, random.Random(number)))
        write_if_changed(options.output / f"{name}.jsonl", text.encode())
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(TINY / "model", model_max_length=POSITIONS)
    model = AutoModelForCausalLM.from_pretrained(
        TINY / "model", max_position_embeddings=POSITIONS, dtype=torch.float32
    )
    learn(model, tokenizer, read_questions(TINY / "data/train.jsonl"))
    share = share_counted(model, tokenizer, read_questions(TINY / "data/test.jsonl")[:62])
    print(f"{share:.3f} of the counts are completed")
    if share < LEAST_SHARE:
        return 1
    model.save_pretrained(options.output / "model")
    tokenizer.save_pretrained(options.output / "model")
    return 0


if __name__ == "__main__":
    sys.exit(main())
