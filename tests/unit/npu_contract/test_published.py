"""The NPU contract holds in the published packages.

Packages are downloaded once, to .cache/npu-contract. Where one cannot be had its part is skipped.
MindSpeed comes from its repository; .cache/npu-contract/mindspeed-COMMIT.zip may be put there too.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from npu_contract.check import Checked, as_values, check_contract
from npu_contract.check import described as described_entry
from npu_contract.contract import ENTRIES
from npu_contract.entry import Entry
from npu_contract.newer_generation import NEWER_ENTRIES, NEWER_PINS
from npu_contract.sources import CHECKED_PINS, contract_sources

from mindrl.platform.npu_versions import CANN_VERSION, MINDSPEED, PINS

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "scripts" / "check_npu_contract.py"
PYTHON_VERSIONS = ("3.11", "3.12")
"""Those of mindrl that torch_npu has wheels for."""
RESULT = Path(__file__).with_name("npu_contract.json")
NEWER_RESULT = Path(__file__).with_name("npu_contract_newer.json")
PAGE = ROOT / "docs" / "how-to" / "install-npu.md"


@pytest.fixture(scope="module")
def kept() -> list[dict[str, str]]:
    """Return the stored result."""
    rows: list[dict[str, str]] = json.loads(RESULT.read_text("utf-8"))
    return rows


@pytest.fixture(scope="module")
def checked() -> Checked:
    """The contract against the packages as they are published now."""
    return check_contract(ENTRIES, contract_sources(ROOT / ".cache" / "npu-contract"))


@pytest.mark.parametrize("package", [pin.distribution for pin in CHECKED_PINS])
def test_everything_that_the_npu_code_names_is_in_the_published_package(
    checked: Checked, kept: list[dict[str, str]], package: str
) -> None:
    notes = [
        note for note in checked.notes() if note.startswith(f"NPU contract not checked: {package}:")
    ]
    if notes:
        pytest.skip(notes[0])
    assert [finding for finding in checked.findings() if finding.startswith(f"{package}==")] == []
    found = [row for row in as_values(checked.rows) if row["package"].startswith(f"{package}==")]
    assert len(found) >= 1
    assert found == [row for row in kept if row["package"].startswith(f"{package}==")]


@pytest.mark.nightly
def test_the_newer_generation_has_everything_too() -> None:
    sources = contract_sources(ROOT / ".cache" / "npu-contract", pins=NEWER_PINS)
    found = check_contract(NEWER_ENTRIES, sources)
    if found.notes():
        pytest.skip(found.notes()[0])
    assert found.findings() == []
    assert as_values(found.rows) == json.loads(NEWER_RESULT.read_text("utf-8"))


@pytest.mark.parametrize(
    ("entries", "result"), [(ENTRIES, RESULT), (NEWER_ENTRIES, NEWER_RESULT)], ids=["", "newer"]
)
def test_the_kept_result_is_of_this_contract_and_nothing_is_missing(
    entries: Sequence[Entry], result: Path
) -> None:
    kept = json.loads(result.read_text("utf-8"))
    named = [(entry.pin.requirement, described_entry(entry), entry.used_by) for entry in entries]
    assert [(row["package"], row["name"], row["needed_by"]) for row in kept] == named
    assert [row["name"] for row in kept if row["finding"] or not row["evidence"]] == []


def test_the_page_shows_every_pinned_version() -> None:
    page = PAGE.read_text("utf-8")
    for pin in PINS:
        assert f"| {pin.distribution} | {pin.version} |" in page
    assert f"| CANN: toolkit, kernels, NNAL | {CANN_VERSION} |" in page
    assert f"| Python | {' or '.join(PYTHON_VERSIONS)} |" in page
    assert MINDSPEED.commit in page
    assert MINDSPEED.branch in page


def run_offline(folder: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run the program with an index that nobody answers for, and MindSpeed from a folder."""
    return subprocess.run(
        [
            sys.executable,
            SCRIPT,
            "--index=http://127.0.0.1:1/simple",
            f"--cache={cache}",
            f"--source=mindspeed={folder}",
            "--json",
        ],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_program_names_what_it_could_not_read_and_ends_with_3(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    ended = run_offline(tmp_path, tmp_path / "cache")
    assert ended.returncode == 3
    assert set(json.loads(ended.stdout)["not_checked"]) == {
        "torch-npu",
        "vllm",
        "vllm-ascend",
        "mindspeed",
    }
    assert ended.stderr.count("error: NPU contract not checked: ") == 4
    assert f"{tmp_path}: commit {MINDSPEED.commit} cannot be read" in ended.stderr


def test_the_program_names_what_is_missing_and_who_needs_it_and_ends_with_1(
    tmp_path: Path,
) -> None:
    ended = run_offline(tmp_path, tmp_path / "cache")
    assert ended.returncode == 1
    assert (
        "error: mindspeed==0.16.0: no file for module mindspeed.megatron_adaptor; "
        "mindrl/platform/patches/npu_megatron.py needs it" in ended.stderr
    )
