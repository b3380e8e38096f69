"""Write a small arithmetic data set: two-digit additions with their answers.

Two questions in three need a carry out of the units column, so a model that
adds column by column and forgets the carry is right about one time in three.
No question of the test file appears in the training file, in either order
of its operands. The same arguments always give the same bytes.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tiny_arithmetic import OPERANDS, Question

CARRY_SHARE = 2 / 3


def draw_splits(*, train: int, test: int, seed: int) -> tuple[list[Question], list[Question]]:
    """Draw training and test questions with the stated share of carries in each.

    Raises:
        ValueError: More questions are asked for than two-digit additions can give.
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
            raise ValueError(
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


def rows(questions: list[Question]) -> Iterator[str]:
    """Yield one JSON line per question."""
    for question in questions:
        messages = [{"role": "user", "content": question.prompt}]
        yield json.dumps({"messages": messages, "answer": str(question.sum)}) + "\n"


def write_if_changed(path: Path, content: bytes) -> bool:
    """Replace a file in one move; leave it alone, and return False, where it is the same."""
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as part:
        try:
            part.write(content)
            part.flush()
            os.fsync(part.fileno())
            Path(part.name).chmod(0o644)
            Path(part.name).replace(path)
        except OSError:
            Path(part.name).unlink(missing_ok=True)
            raise
    return True


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number of questions")
    return value


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n", maxsplit=1)[0],
        epilog="example: make_tiny_data.py --output /tmp/tiny/data --seed 1",
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for the two files")
    parser.add_argument("--seed", type=int, default=0, help="draws the questions (default 0)")
    parser.add_argument("--train", type=_count, default=4096, help="training rows (default 4096)")
    parser.add_argument("--test", type=_count, default=256, help="test rows (default 256)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Write both files and return the exit status."""
    options = parse_arguments(arguments)
    try:
        splits = draw_splits(train=options.train, test=options.test, seed=options.seed)
        for name, questions in zip(("train", "test"), splits, strict=True):
            path = options.output / f"{name}.jsonl"
            written = write_if_changed(path, "".join(rows(questions)).encode())
            state = "written" if written else "up to date"
            print(f"{path}: {len(questions)} rows, {state}")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
