"""What `mindrl check` finds in broken runs, by its whole wording: tests/golden/check.yaml."""

from pathlib import Path

import golden_findings
import pytest


def test_the_findings_of_each_broken_run_are_those_of_the_golden_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python scripts/golden_findings.py --write` renews the file."""
    monkeypatch.chdir(tmp_path)
    golden = golden_findings.read()
    assert golden_findings.findings_of(golden["base"], {}, {}) == ""
    assert golden_findings.differences(golden, golden_findings.renewed(golden)) == []
    assert all(run["finds"] for run in golden["runs"])
