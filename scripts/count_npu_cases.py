"""Count the test cases over the simulated CANN by generation of vllm-ascend, as pytest does.

python scripts/count_npu_cases.py            write tests/npu_simulated/cases.json
python scripts/count_npu_cases.py --check    only compare; fail if it differs
"""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from generated_page import write_or_check

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "npu_simulated"
CASES = TESTS / "cases.json"
ALONE = "torch-npu alone"
"""Cases without an engine."""


class Collected:
    """A plugin of pytest that counts what is collected."""

    def __init__(self) -> None:
        """Start at zero."""
        self.counts: Counter[tuple[str, str]] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count by the parameter of the fixture `npu_workers`, and by when a case runs."""
        for item in session.items:
            call = getattr(item, "callspec", None)
            generation = call.params.get("npu_workers", ALONE) if call else ALONE
            when = "night" if item.get_closest_marker("nightly") else "always"
            self.counts[generation, when] += 1


def collected() -> dict[str, dict[str, int]]:
    """Return the number of cases by generation, and by when they run.

    Raises:
        RuntimeError: pytest cannot collect them.
    """
    plugin = Collected()
    asked = ["--collect-only", "-qq", "--no-summary", "-p", "no:cacheprovider", str(TESTS)]
    if (code := pytest.main(asked, plugins=[plugin])) != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest ended with {code!r}")
    generations = sorted({generation for generation, _ in plugin.counts})
    return {
        generation: {when: plugin.counts[generation, when] for when in ("always", "night")}
        for generation in generations
    }


if __name__ == "__main__":
    text = json.dumps(collected(), indent=1) + "\n"
    about = (__doc__ or "").split("\n\n", maxsplit=1)[0]
    sys.exit(write_or_check(CASES, text, source="tests/npu_simulated/", description=about))
