r"""Measure how many answers a second `math_verify` compares on one core, by kind of answer.

    python scripts/bench_rewards.py [--count 40] [--json FILE]

CPU seconds of one process, which a loaded machine changes little. Each answer and each reference
is new, as none is in the cache. Reading is the part in which LaTeX becomes an expression; the rest
compares expressions.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from mindrl.rewards.answers import _parsed, mean_the_same

CORES = 16
Kind = Callable[[int], tuple[str, str]]
"""Returns an answer and its reference, by a number from 1."""
KINDS: Mapping[str, tuple[Kind, bool]] = {
    "number, right": (lambda at: (f"{at}.0", f"{at}"), True),
    "number, wrong": (lambda at: (f"{at}.5", f"{at}"), False),
    "fraction, right": (
        lambda at: (rf"\frac{{{2 * at}}}{{{2 * at + 14}}}", rf"\frac{{{at}}}{{{at + 7}}}"),
        True,
    ),
    "root, wrong": (
        lambda at: (rf"\frac{{{at}}}{{7}}+\sqrt{{{at + 3}}}", rf"\frac{{{at}}}{{5}}-\sqrt{{2}}"),
        False,
    ),
    "polynomial, right": (lambda at: (f"x^2+{at + 9}x+{9 * at}", f"(x+{at})(x+9)"), True),
    "polynomial, wrong": (lambda at: (f"x^2+{at + 8}x+{9 * at}", f"(x+{at})(x+9)"), False),
}


def main() -> int:
    """Measure all kinds and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=40, help="of each kind (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    # The first answer imports and builds what all later ones use.
    mean_the_same("1.0", "2")
    found = {name: of_kind(*kind, options.count) for name, kind in KINDS.items()}
    print(f"{'answers':20} {'ms':>7} {'reading ms':>11} {'a second':>9} {f'on {CORES} cores':>12}")
    for name, figures in found.items():
        rate = 1 / figures["seconds"]
        reading = figures["reading_seconds"] * 1000
        print(f"{name:20} {1000 / rate:7.2f} {reading:11.2f} {rate:9.0f} {CORES * rate:12.0f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2))
    return 0


def of_kind(kind: Kind, is_right: bool, count: int) -> dict[str, float]:
    """Return the mean CPU seconds of an answer, and those of reading it and its reference."""
    pairs = [kind(at) for at in range(1, count + 1)]
    mean_the_same.cache_clear()
    _parsed.cache_clear()
    began = time.process_time()
    for pair in pairs:
        for text in pair:
            _parsed(text)
    read = time.process_time()
    for answer, reference in pairs:
        assert mean_the_same(answer, reference) == is_right, (answer, reference)
    ended = time.process_time()
    return {"seconds": (ended - began) / count, "reading_seconds": (read - began) / count}


if __name__ == "__main__":
    raise SystemExit(main())
