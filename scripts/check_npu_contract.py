"""Search every name that mindrl's NPU code uses in the published sources of the pinned versions.

Published files are read, not imported or installed. Files of the package index are downloaded once
and kept. MindSpeed is published only in its repository.

    python scripts/check_npu_contract.py
    python scripts/check_npu_contract.py --source mindspeed=../MindSpeed --json
    python scripts/check_npu_contract.py --newer          vllm-ascend 0.30 and its vLLM

Exit codes: 0 all names found; 1 a name is missing; 2 wrong options; 3 a package cannot be read, and
the others lack no name.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from npu_contract.check import as_values, check_contract, matrix
from npu_contract.contract import ENTRIES
from npu_contract.newer_generation import NEWER_ENTRIES, NEWER_PINS
from npu_contract.sources import CHECKED_PINS, contract_sources

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tests" / "unit" / "npu_contract"
RESULT, NEWER_RESULT = RESULTS / "npu_contract.json", RESULTS / "npu_contract_newer.json"

MISSING = 1
NOT_CHECKED = 3


def named_path(text: str) -> tuple[str, Path]:
    """Read NAME=PATH."""
    name, _, path = text.partition("=")
    names = [pin.distribution for pin in CHECKED_PINS]
    if name not in names or not path:
        raise argparse.ArgumentTypeError(f"{text} must be NAME=PATH; names: {', '.join(names)}")
    if not Path(path).exists():
        raise argparse.ArgumentTypeError(f"{path}: no such file or folder")
    return name, Path(path)


def parser() -> argparse.ArgumentParser:
    """Return the reader of the command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--source",
        metavar="NAME=PATH",
        action="append",
        default=[],
        type=named_path,
        help="read a package from a wheel, an archive, a folder or, at the pinned commit, a git "
        "repository",
    )
    made.add_argument(
        "--cache",
        type=Path,
        default=ROOT / ".cache" / "npu-contract",
        help="folder for downloaded files (default: .cache/npu-contract)",
    )
    made.add_argument("--index", help="address of the package index (default: pip's)")
    newer = "check the newer release of vllm-ascend with which the engine is tested"
    made.add_argument("--newer", action="store_true", help=newer)
    made.add_argument("--json", action="store_true", help="print the rows as JSON")
    write = f"update the result in {RESULTS.relative_to(ROOT)}"
    made.add_argument("--write", action="store_true", help=write)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, print, and return the exit code."""
    options = parser().parse_args(arguments)
    entries, pins = (NEWER_ENTRIES, NEWER_PINS) if options.newer else (ENTRIES, CHECKED_PINS)
    given = dict(options.source)
    sources = contract_sources(options.cache, given=given, index=options.index, pins=pins)
    checked = check_contract(entries, sources)
    if options.json:
        print(json.dumps({"rows": as_values(checked.rows), "not_checked": checked.not_checked}))
    else:
        print(matrix(checked.rows))
    for line in [*checked.findings(), *checked.notes()]:
        print(f"error: {line}", file=sys.stderr)
    if checked.findings():
        return MISSING
    if checked.not_checked:
        return NOT_CHECKED
    if options.write:
        result = NEWER_RESULT if options.newer else RESULT
        result.write_text(json.dumps(as_values(checked.rows), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
