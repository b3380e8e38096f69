"""Create a small Qwen2 or Qwen3-MoE chat model that adds two-digit numbers with errors.

`mindrl tiny` creates it together with its data; this script has options for both folders. The
questions come from train.jsonl of make_tiny_data.py. A folder of the same recipe is not changed.
"""

import argparse
import sys
from pathlib import Path

from mindrl.programs.exits import exit_code
from mindrl.programs.tiny import FAMILY, add_model_options, made_model


def main(arguments: list[str] | None = None) -> int:
    """Create the model unless it exists; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="model folder to write")
    parser.add_argument("--data", type=Path, required=True, help="folder of make_tiny_data.py")
    add_model_options(parser, seed=0)
    return exit_code(lambda: _make(parser.parse_args(arguments)))


def _make(options: argparse.Namespace) -> int:
    print(
        made_model(options.output.absolute(), options.data, options.seed, options.family or FAMILY)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
