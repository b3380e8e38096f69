"""Two jobs and their scheduler, with real models: killed at random, each response trained once."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from program import CHECKOUT, start_program, workers_below

from mindrl.checkpoint.commits import checksum_of
from mindrl.programs.tiny import made_tool_user
from mindrl.spool.folder import Spool

pytestmark = pytest.mark.e2e

PROMPTS, SAMPLES = 8, 8
ASKED = (
    f"megatron_training.global_batch_size={PROMPTS}",
    f"rl_config.mini_batch_size={PROMPTS}",
    "megatron_training.test_data_path=null",
    "megatron_training.save_interval=1",
    "rl_config.actor_resource.num_npus=1",
    "rl_config.test_freq=0",
)
TOOLS = ("--config-name", "grpo_tools_tiny_cpu")
"""Of a policy that calls a calculator in several turns."""


@dataclass
class TwoJobs:
    """A scheduler with its jobs."""

    folder: Path
    steps: int
    asked: tuple[str, ...]
    process: subprocess.Popen[str] | None = None

    @property
    def spool(self) -> Spool:
        return Spool(self.folder / "spool")

    def start(self, *options: str) -> None:
        """Start the scheduler, or one in the place of a killed one."""
        keeps = [
            f"megatron_training.{key}={self.steps}" for key in ("train_iters", "keep_rollouts")
        ]
        command = [sys.executable, "cli/job.py", "schedule", str(self.folder), *options]
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "scheduler.txt").open("a") as log:
            self.process = subprocess.Popen(
                [*command, *ASKED, *keeps, *self.asked],
                cwd=CHECKOUT,
                env=os.environ | {"COLUMNS": "200"},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def kill(self, lease: str) -> bool:
        """Kill whoever has a lease, by its number alone; says whether anybody had."""
        holders = self.spool.leases("a test").living(lease)
        for holder in holders:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(holder.pid).kill()
        return bool(holders)

    def wait_until(self, is_so: Callable[[Spool], bool], seconds: float = 300) -> None:
        """Look at the spool until it is so."""
        deadline = time.monotonic() + seconds
        while not is_so(self.spool):
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.02)

    def finish(self, seconds: float = 900) -> None:
        assert self.process is not None
        assert self.process.wait(timeout=seconds) == 0, self.text()

    def text(self) -> str:
        files = ("scheduler", "train", "rollout-0")
        paths = [self.folder / f"{name}.txt" for name in files]
        return "\n".join(path.read_text() for path in paths if path.exists())

    def trained(self) -> list[tuple[int, int, int]]:
        """Return step, prompt and sample of each response that was trained on."""
        tables = [
            pq.read_table(path) for path in sorted((self.folder / "train/rollouts").iterdir())
        ]
        rows = [row for table in tables for row in table.to_pylist()]
        return [(row["step"], row["uid"], row["sample"]) for row in rows]

    def weights(self) -> str:
        return checksum_of(self.folder / "train/model/model.safetensors")


def two_jobs(folder: Path, model: Path, steps: int, *asked: str) -> TwoJobs:
    return TwoJobs(folder, steps, (f"actor_config.load={model}", *asked))


def require_alike(found: TwoJobs, undisturbed: TwoJobs) -> None:
    """Each response is in the weights once, and the weights are those that nobody disturbed."""
    ids = found.trained()
    assert len(ids) == len({*ids}) == found.steps * PROMPTS * SAMPLES
    assert ids == undisturbed.trained()
    assert found.weights() == undisturbed.weights()
    assert found.spool.records.answered() == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "asked",
    [(), ("rl_config.filter_groups_enable=true", "rl_config.max_staleness=2")],
    ids=["all groups", "groups with a signal"],
)
def test_killed_jobs_and_a_killed_scheduler_train_each_response_once_and_the_same_weights(
    asked: tuple[str, ...], tiny_model: Path, tmp_path: Path
) -> None:
    asked = ("spool_config.prompts_per_record=4", *asked)
    whole = two_jobs(tmp_path / "whole", tiny_model, 6, *asked)
    whole.start()
    whole.finish()
    found = two_jobs(tmp_path / "found", tiny_model, 6, *asked)
    found.start()
    found.wait_until(lambda spool: bool(spool.records.answered()))
    assert found.kill("rollout")
    found.wait_until(lambda spool: spool.progress().confirmed > 0)
    assert found.kill("train")
    assert found.kill("scheduler")
    assert found.process is not None
    found.process.wait()
    found.start()
    found.finish()
    require_alike(found, whole)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "job", "steps", "confirmed"),
    [("train", "train", 6, 1), ("rollout", "rollout-0", 4, 0)],
)
def test_a_job_that_loses_a_worker_goes_on_with_the_same_records(
    kind: str, job: str, steps: int, confirmed: int, tiny_model: Path, tmp_path: Path
) -> None:
    whole = two_jobs(tmp_path / "whole", tiny_model, steps)
    whole.start()
    whole.finish()
    found = two_jobs(tmp_path / "found", tiny_model, steps)
    found.start()
    found.wait_until(lambda spool: spool.progress().confirmed > confirmed)
    (holder,) = found.spool.leases("a test").living(kind)
    (worker,) = workers_below(holder.pid)
    worker.kill()
    found.finish()
    assert "restart 1: " in (found.folder / f"{job}.txt").read_text()
    # The scheduler had no job to start again.
    assert found.text().count(f"starting {job}") == 1
    require_alike(found, whole)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_20_random_kills_change_nothing(tiny_model: Path, tmp_path: Path) -> None:
    # Enough steps that jobs still work at the 20th kill.
    chance, steps = random.Random(3), 80
    asked = ("spool_config.prompts_per_record=2", "rl_config.max_staleness=2")
    whole = two_jobs(tmp_path / "whole", tiny_model, steps, *asked)
    whole.start()
    whole.finish()
    found = two_jobs(tmp_path / "found", tiny_model, steps, *asked)
    found.start("--max-starts", "20")
    kills = 0
    while kills < 20 and not found.spool.progress().done:
        time.sleep(chance.uniform(1, 20))
        for lease in chance.choice([["train"], ["rollout"], ["train", "rollout"], ["scheduler"]]):
            kills += found.kill(lease)
        assert found.process is not None
        if found.process.poll() is not None:
            found.start("--max-starts", "20")
    assert kills >= 20
    found.finish(1800)
    require_alike(found, whole)


@pytest.mark.nightly
def test_in_turns_with_no_staleness_it_is_the_run_of_one_job(
    tiny_model: Path, tmp_path: Path
) -> None:
    """One record a step, drawn by the newest weights: what a run on shared devices does."""
    found = two_jobs(tmp_path / "found", tiny_model, 2, "rl_config.max_staleness=0")
    found.start("--in-turns")
    found.finish()
    keeps = ("megatron_training.train_iters=2", "megatron_training.keep_rollouts=2")
    model = f"actor_config.load={tiny_model}"
    whole = start_program(tmp_path / "whole", [model, *ASKED, *keeps])
    assert whole.process.wait(timeout=600) == 0, whole.text()
    for step in (1, 2):
        name = f"rollouts/step-0000000{step}.parquet"
        ours, theirs = (
            pq.read_table(each / name) for each in (found.folder / "train", whole.folder)
        )
        assert ours.equals(theirs)
    assert found.weights() == checksum_of(whole.folder / "model/model.safetensors")


@pytest.mark.nightly
def test_jobs_with_tools_train_each_sampled_token_once_as_one_job_does(
    tiny_model: Path, tmp_path: Path
) -> None:
    """A rollout job and a train job are killed; without staleness it is the run of one job."""
    model = made_tool_user(tiny_model.parent, 1)
    found = two_jobs(tmp_path / "found", model, 3, "rl_config.max_staleness=0")
    found.start(*TOOLS)
    found.wait_until(lambda spool: bool(spool.records.answered()))
    assert found.kill("rollout")
    found.wait_until(lambda spool: spool.progress().confirmed > 0)
    assert found.kill("train")
    found.finish()
    keeps = ("megatron_training.train_iters=3", "megatron_training.keep_rollouts=3")
    asked = [*TOOLS, f"actor_config.load={model}", *ASKED, *keeps]
    whole = start_program(tmp_path / "whole", asked)
    assert whole.process.wait(timeout=600) == 0, whole.text()
    for step in (1, 2, 3):
        name = f"rollouts/step-0000000{step}.parquet"
        # How long a tool took is in the texts for people alone.
        ours, theirs = (
            pq.read_table(each / name).drop_columns("conversation")
            for each in (found.folder / "train", whole.folder)
        )
        assert ours.column_names == theirs.column_names
        different = {each for each in ours.column_names if ours[each] != theirs[each]}
        assert different <= {"rollout_logprobs"}
        # When tools answer decides which sequences share an engine step: some last bits differ.
        logprobs = [
            [each for row in table["rollout_logprobs"].to_pylist() for each in row]
            for table in (ours, theirs)
        ]
        assert logprobs[0] == pytest.approx(logprobs[1], rel=0, abs=1e-6)
        # The calculator's tokens are there, and are left out of losses.
        written = [each for row in ours["written"].to_pylist() for each in row]
        assert 0 < written.count(False) < written.count(True)
    assert found.weights() == checksum_of(whole.folder / "model/model.safetensors")
    assert found.spool.records.answered() == []
