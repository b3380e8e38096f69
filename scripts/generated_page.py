"""Common part of the scripts that generate pages of docs/reference: options and comparison."""

import argparse
import sys
from pathlib import Path

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"


def write_or_check(page: Path, wanted: str, *, source: str, description: str) -> int:
    """Write a page, or compare it with the file if the command line has `--check`.

    Args:
        page: Default path of the page.
        wanted: Text of the page.
        source: Folder from which it is generated.
        description: Description of the program.

    Returns:
        The exit status: 1 if the file differs with `--check`.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="only compare; fail if it differs")
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
