"""The command line of a replay: what does not serve is refused before anything is started."""

import subprocess
from pathlib import Path

import pytest
from user_programs import python

PROGRAM = Path(__file__).parents[3] / "cli" / "replay.py"


def started(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return python(str(PROGRAM), *arguments, folder=folder, environment={"COLUMNS": "160"})


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("runs/none", "--step", "3"), "error: RUN runs/none: not a run folder; it has no "),
        (("runs/none", "--step", "0"), "mindrl replay: error: argument --step: 0 must be 1 to "),
        (("runs/none",), "mindrl replay: error: the following arguments are required: --step"),
        (
            ("run", "--step", "3", "rl_config.epoch=2"),
            "error: rl_config.epoch is not a configuration key; did you mean rl_config.epochs?",
        ),
        (
            ("run", "rl_config.mini_batch_size=7", "--generate", "--step", "3"),
            "error: rl_config.mini_batch_size=7 must divide megatron_training.global_batch_size=32",
        ),
    ],
)
def test_what_does_not_serve_is_said_with_code_2_and_leaves_nothing(
    arguments: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    hydra = tmp_path / "run/.hydra"
    hydra.mkdir(parents=True)
    shipped = PROGRAM.parents[1] / "configs/grpo_tiny_cpu.yaml"
    (hydra / "config.yaml").write_text(shipped.read_text("utf-8"), "utf-8")
    ended = started(tmp_path, *arguments)
    assert ended.returncode == 2, ended.stderr
    assert any(each.startswith(line) for each in ended.stderr.splitlines()), ended.stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".hydra"]
