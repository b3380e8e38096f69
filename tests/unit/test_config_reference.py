"""The generated page of the configuration is the one that the dataclasses give."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "make_config_reference.py"
PAGE = ROOT / "docs" / "reference" / "config.md"


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


def test_a_page_edited_by_hand_is_found_left_alone_and_then_restored(tmp_path: Path) -> None:
    page = tmp_path / "config.md"
    edited = PAGE.read_text(encoding="utf-8").replace("`1234`", "`4321`")
    page.write_text(edited, encoding="utf-8")

    checked = run_script("--check", "--output", str(page))

    assert checked.returncode == 1
    assert "make_config_reference.py" in checked.stderr
    assert page.read_text(encoding="utf-8") == edited
    assert run_script("--output", str(page)).returncode == 0
    assert page.read_bytes() == PAGE.read_bytes()


@pytest.mark.parametrize(
    "row",
    [
        "| `train_iters` | whole number >= 1 | required | ",
        "| `logprob_chunk_tokens` | whole number >= 1 | `1024` | ",
        "| `clip_ratio` | number > 0 and < 1 | `0.2` | ",
        "| `device` | one of `auto`, `npu`, `gpu`, `cpu` | `auto` | ",
        "| `infer_pipeline_parallel_size` | only `1` | `1` | ",
        "| `kv_cache_mib` | whole number >= 1, or `null` | `null` | ",
        "| `verifier_weight` | list, each entry a number | `[1.0, 0.1]` | ",
        "| `num_npus` | whole number >= 1 | `1` | ",
    ],
)
def test_a_row_tells_type_range_and_default(row: str) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.startswith(row)]) == 1


def test_what_actor_and_critic_share_stands_under_both_behind_what_is_their_own() -> None:
    sections = PAGE.read_text(encoding="utf-8").split("## ")
    for heading in ("actor_config\n", "critic_config\n"):
        (section,) = [section for section in sections if section.startswith(heading)]
        row = section.index("| `lr` | number > 0 | `1e-6` | Peak learning rate. |")
        assert section.index("| `load` |") < section.index("| `micro_batch_size` |") < row
