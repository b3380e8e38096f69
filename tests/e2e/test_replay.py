"""A step of a real run, run again: every number is what it was, and a change is found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from program import CHECKOUT, STEPS, Program, start_program

from mindrl.checkpoint.commits import checksum_of
from mindrl.observability.metrics import computed

pytestmark = pytest.mark.e2e


def replayed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "cli/replay.py", str(folder), *arguments],
        cwd=CHECKOUT,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def contents(folder: Path) -> dict[str, str]:
    """Return the checksum of each file but those of replays."""
    files = (path for path in folder.rglob("*") if path.is_file())
    named = {str(path.relative_to(folder)): checksum_of(path) for path in files}
    return {name: each for name, each in named.items() if not name.startswith("replays/")}


@pytest.mark.nightly
def test_of_a_replayed_step_all_is_equal_to_the_bit_but_a_changed_learning_rate(
    kept_run: Program,
) -> None:
    folder = kept_run.folder
    before = contents(folder)
    # The evaluation at the end has a line of its own behind it.
    *_, metrics, _ = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    count = len(computed(metrics)) - len(["step"])

    other = replayed(folder, "--step", str(STEPS), "actor_config.lr=1e-3")
    assert other.returncode == 1, other.stdout + other.stderr
    *_, title, difference, last = other.stdout.splitlines()
    assert title.split() == ["name", "recorded", "replayed", "difference"]
    assert difference.split()[0] == "update/lr"
    assert last == f"step {STEPS}: 1 of {count} numbers differ"

    assert contents(folder) == before
    logs = {path.name for path in (folder / f"replays/step-0000000{STEPS}/logs").iterdir()}
    assert logs == {"driver.log", "rewards.log", "worker_0.log", "worker_1.log"}


@pytest.mark.nightly
@pytest.mark.parametrize("program", ["train_grpo", "train_ppo"])
def test_rollouts_and_rewards_of_a_replay_are_those_of_the_run(
    program: str, tiny_model: Path, tmp_path: Path
) -> None:
    """Of step 1 the initial models are the checkpoint; of step 3 every token is compared."""
    folder = tmp_path / "run"
    asked = (
        *("megatron_training.train_iters=3", "megatron_training.save_interval=1"),
        *("megatron_training.keep_rollouts=3", "rl_config.test_freq=0"),
        *("rl_config.shuffle_mini_batch=true", "rl_config.mini_batch_size=16"),
    )
    run = start_program(folder, [f"actor_config.load={tiny_model}", *asked], program=program)
    assert run.process.wait(timeout=600) == 0, run.text()
    for step in ("1", "3"):
        again = replayed(folder, "--step", step, "--generate", "--score")
        assert again.returncode == 0, again.stdout + again.stderr
        last = again.stdout.splitlines()[-1]
        assert last.endswith("numbers are bitwise equal")
        # Three for each token of 256 responses or more, and the metrics.
        assert int(last.split()[3]) > 3 * 256
