"""Write a small arithmetic data set: two-digit additions with their answers.

`mindrl tiny` writes it together with the model; this script has options for the numbers of rows.
"""

import argparse
import sys
from pathlib import Path

from mindrl.programs.arguments import count
from mindrl.programs.exits import exit_code
from mindrl.tiny.questions import TEST_ROWS, TRAINING_ROWS, write_questions


def main(arguments: list[str] | None = None) -> int:
    """Write both files and return the exit status."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n", maxsplit=1)[0],
        epilog="example: make_tiny_data.py --output /tmp/tiny/data --seed 1",
    )
    add = parser.add_argument
    add("--output", type=Path, required=True, help="folder for the two files")
    add("--seed", type=int, default=0, help="seed of the questions (default: 0)")
    for name, rows in (("train", TRAINING_ROWS), ("test", TEST_ROWS)):
        add(f"--{name}", type=count, default=rows, help=f"rows of {name}.jsonl (default: {rows})")
    return exit_code(lambda: _write(parser.parse_args(arguments)))


def _write(options: argparse.Namespace) -> int:
    for line in write_questions(
        options.output, seed=options.seed, train=options.train, test=options.test
    ):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
