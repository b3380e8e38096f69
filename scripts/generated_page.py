"""What the scripts that make a page of docs/reference share: options, comparison, answer."""

import argparse
import sys
from pathlib import Path

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"


def write_or_check(page: Path, wanted: str, *, source: str, description: str) -> int:
    """Write a page, or compare it with the file, as the command line asks.

    Args:
        page: Where it belongs, unless the command line names another file.
        wanted: Its text.
        source: Folder that it is made from.
        description: Of the program.

    Returns:
        The exit status: 1 where the file differs and nothing is to be written.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it differs")
    parser.add_argument("--output", type=Path, default=page, help="the page (default: %(default)s)")
    options = parser.parse_args()
    output: Path = options.output
    if output.is_file() and output.read_text(encoding="utf-8") == wanted:
        print(f"{output}: up to date")
        return 0
    if options.check:
        print(
            f"{output} differs from {source}; run python scripts/{parser.prog}",
            file=sys.stderr,
        )
        return 1
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(wanted, encoding="utf-8")
    print(f"{output}: written")
    return 0
