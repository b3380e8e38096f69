"""The generated pages are those that the sources give."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    "config": ("make_config_reference.py", "`1234`", "`4321`"),
    "npu-environment": ("make_environment_reference.py", "`1800`", "`120`"),
    "versions": ("make_version_matrix.py", "| 5.14.1 |", "| 5.14.2 |"),
    "python-api": ("make_api_reference.py", "`ConfigError`", "`ConfigurationError`"),
}
"""By page of docs/reference: its script, a value that it shows, and one that it does not."""


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", PAGES)
def test_the_page_on_disk_is_current(name: str) -> None:
    done = run_script(PAGES[name][0], "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", PAGES)
def test_a_page_edited_by_hand_is_found_left_alone_and_then_restored(
    name: str, tmp_path: Path
) -> None:
    script, shown, other = PAGES[name]
    current = ROOT / "docs" / "reference" / f"{name}.md"
    page = tmp_path / "page.md"
    edited = current.read_text(encoding="utf-8").replace(shown, other)
    page.write_text(edited, encoding="utf-8")

    checked = run_script(script, "--check", "--output", str(page))

    assert checked.returncode == 1
    assert script in checked.stderr
    assert page.read_text(encoding="utf-8") == edited
    assert run_script(script, "--output", str(page)).returncode == 0
    assert page.read_bytes() == current.read_bytes()


@pytest.mark.nightly
def test_the_cases_over_the_simulated_devices_are_as_many_as_the_page_says() -> None:
    done = run_script("count_npu_cases.py", "--check")
    assert done.returncode == 0, done.stderr


def test_every_name_of_the_python_api_can_be_imported_from_where_the_page_says() -> None:
    page = (ROOT / "docs" / "reference" / "python-api.md").read_text(encoding="utf-8")
    imports = re.findall(r"^    from ([\w.]+) import (.+)$", page, flags=re.MULTILINE)
    names = [(module, name) for module, found in imports for name in found.split(", ")]
    assert ("mindrl", "train") in names
    assert len(names) >= 20
    for module, name in names:
        assert getattr(importlib.import_module(module), name).__name__ == name
