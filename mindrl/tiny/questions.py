"""The data of the first run: files of two-digit additions, drawn from a seed.

Two questions in three need a carry out of the units column, so a model that
adds column by column and forgets the carry is right about one time in three.
No question of the test file appears in the training file, in either order
of its operands. The same arguments always give the same bytes.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path

from mindrl.errors import ConfigError, DataError
from mindrl.observability.output_files import output_errors, replace_file
from mindrl.tiny.arithmetic import OPERANDS, Question, columns, parse_prompt

TRAINING_ROWS, TEST_ROWS = 4096, 256
CARRY_SHARE = 2 / 3


def draw_splits(*, train: int, test: int, seed: int) -> tuple[list[Question], list[Question]]:
    """Draw training and test questions with the stated share of carries in each.

    Raises:
        ConfigError: More questions are asked for than two-digit additions can give.
    """
    rng = random.Random(seed)
    train_questions: list[Question] = []
    test_questions: list[Question] = []
    for carry in (True, False):
        # A pair stands for both orders of its operands: they go to the same file.
        pairs = [
            question
            for left in OPERANDS
            for right in OPERANDS
            if left <= right and (question := Question(left, right)).needs_carry == carry
        ]
        rng.shuffle(pairs)
        test_part, train_part = _share(test, carry=carry), _share(train, carry=carry)
        test_questions += [rng.choice([pair, _swapped(pair)]) for pair in pairs[:test_part]]
        rest = sorted({each for pair in pairs[test_part:] for each in (pair, _swapped(pair))})
        if len(pairs) < test_part or len(rest) < train_part:
            kind = "with" if carry else "without"
            raise ConfigError(
                f"--train {train} and --test {test} need {train_part} and {test_part} additions "
                f"{kind} a carry; there are {len(pairs)} pairs, and {len(rest)} questions left "
                "after the test file"
            )
        train_questions += rng.sample(rest, train_part)
    rng.shuffle(train_questions)
    rng.shuffle(test_questions)
    return train_questions, test_questions


def _share(count: int, *, carry: bool) -> int:
    with_carry = round(count * CARRY_SHARE)
    return with_carry if carry else count - with_carry


def _swapped(question: Question) -> Question:
    return Question(question.right, question.left)


def write_questions(
    folder: Path, *, seed: int, train: int = TRAINING_ROWS, test: int = TEST_ROWS
) -> Iterator[str]:
    """Write train.jsonl and test.jsonl, pairs of answers, and answers in steps.

    Yields a line about each file.

    Raises:
        ConfigError: More questions are asked for than there are.
        OutputError: A file cannot be written.
    """
    splits = draw_splits(train=train, test=test, seed=seed)
    for name, questions in zip(("train", "test"), splits, strict=True):
        files = {"": _rows, "_pairs": _pair_rows, "_steps": _step_rows}
        for suffix, made in files.items():
            file, rows = folder / f"{name}{suffix}.jsonl", [*made(questions)]
            written = write_if_changed(file, "".join(rows).encode())
            yield f"{file}: {len(rows)} rows, {'written' if written else 'up to date'}"


def _pair_rows(questions: list[Question]) -> Iterator[str]:
    """Yield one JSON line per question: the sum is chosen, that with the wrong carry rejected."""
    for question in questions:
        wrong = question.sum + (-10 if question.needs_carry else 10)
        row = {"prompt": question.prompt, "chosen": str(question.sum), "rejected": str(wrong)}
        yield json.dumps(row) + "\n"


def _step_rows(questions: list[Question]) -> Iterator[str]:
    """Yield two JSON lines per question: added column by column, with each carry."""
    for question in questions:
        for carry in (0, 1):
            is_right = carry == question.units // 10
            labels = [True, is_right, is_right]
            steps = columns(question, carry=carry)
            row = {"prompt": question.prompt, "completions": steps, "labels": labels}
            yield json.dumps(row) + "\n"


def _rows(questions: list[Question]) -> Iterator[str]:
    """Yield one JSON line per question."""
    for question in questions:
        messages = [{"role": "user", "content": question.prompt}]
        yield json.dumps({"messages": messages, "answer": str(question.sum)}) + "\n"


def write_if_changed(path: Path, content: bytes) -> bool:
    """Replace a file atomically; leave it alone, and return False, where it is the same.

    Raises:
        OutputError: It cannot be written.
    """
    with output_errors(path):
        if path.is_file() and path.read_bytes() == content:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    return True


def read_questions(path: Path) -> list[Question]:
    """Read the questions of a file that `write_questions` wrote.

    Raises:
        DataError: The file cannot be read, or a row is not one of its questions.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    questions = []
    for number, line in enumerate(lines, 1):
        try:
            questions.append(parse_prompt(json.loads(line)["messages"][-1]["content"]))
        except (ValueError, LookupError, TypeError) as error:
            raise DataError(f"{path}:{number}: {error}") from error
    return questions
