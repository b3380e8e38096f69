"""Bad input is refused in words, with an exit code, before anything is trained.

Programs are started for one input of each kind that is noticed somewhere else: the run folder, the
data, the trial call of a reward, the devices. What all of them are answered is shown without a
program in `tests/unit/launch/test_bad_input.py`; as programs they run at night.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_inputs import CASES, Case
from program import CHECKOUT

ONE_OF_A_KIND = {
    "a run folder that cannot be written",
    "a malformed line",
    "too few devices",
}


def cases() -> Iterator[object]:
    assert CASES.keys() >= ONE_OF_A_KIND
    for name, case in CASES.items():
        marks = () if name in ONE_OF_A_KIND else pytest.mark.nightly
        yield pytest.param(case, id=name, marks=marks)


@pytest.mark.e2e
@pytest.mark.parametrize("case", list(cases()))
def test_bad_input_is_refused_in_words_before_training(
    case: Case, tiny_model: Path, tmp_path: Path
) -> None:
    overrides, code, words = case
    run_dir = tmp_path / "run"
    command = [
        sys.executable,
        "cli/train_grpo.py",
        f"actor_config.load={tiny_model}",
        f"hydra.run.dir={run_dir}",
        *overrides(tiny_model, tmp_path),
    ]

    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)

    output = done.stdout + done.stderr
    assert done.returncode == code, output
    for word in words:
        assert word in output
    assert "Traceback" not in output
    assert not (run_dir / "metrics.jsonl").exists() or not (run_dir / "metrics.jsonl").read_text()
