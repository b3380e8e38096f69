"""The generated page of the environment variables is the one that the settings give."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "make_environment_reference.py"
PAGE = ROOT / "docs" / "reference" / "npu-environment.md"


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_page_on_disk_is_current() -> None:
    done = run_script("--check")
    assert done.returncode == 0, done.stderr


def test_a_page_edited_by_hand_is_found_and_then_restored(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    edited = PAGE.read_text(encoding="utf-8").replace("`1800`", "`120`")
    page.write_text(edited, encoding="utf-8")
    checked = run_script("--check", "--output", str(page))
    assert checked.returncode == 1
    assert "make_environment_reference.py" in checked.stderr
    assert page.read_text(encoding="utf-8") == edited
    assert run_script("--output", str(page)).returncode == 0
    assert page.read_bytes() == PAGE.read_bytes()
