"""`mindrl job schedule`: the commands of its jobs."""

import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from mindrl.programs.compose import composed_config
from mindrl.programs.schedule import PROGRAM, jobs_of
from mindrl.spool.folder import Spool


@pytest.mark.parametrize("name", ["jobs", "it's a=b, (1)"])
def test_jobs_find_the_spool_and_their_run_folders_whatever_the_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / name
    given = [str(folder), "--in-turns", "rl_config.test_freq=3", "--train", "actor_config.lr=0.5"]
    monkeypatch.setattr(sys, "argv", ["schedule", *given])
    options = PROGRAM.parse(PROGRAM.parser("schedule"))
    jobs = jobs_of(options, folder, Spool(folder / "spool"))
    assert [*jobs] == ["train", "rollout-0"]
    for kind, job in zip(("train", "rollout"), jobs.values(), strict=True):
        *program, job_kind = job.command[1:5]
        assert (program[0], program[2], job_kind) == ("-c", "job", kind)
        overrides = job.command[5:]
        config = composed_config("grpo_tiny_cpu", [*overrides, f"spool_config.job={kind}"])
        assert config.spool_config.folder == str(folder / "spool")
        assert (config.spool_config.waits, config.rl_config.test_freq) == (False, 3)
        assert (config.actor_config.lr == 0.5) == (kind == "train")
        read = OverridesParser.create().parse_overrides([*overrides])
        (place,) = [each.value() for each in read if each.key_or_group == "hydra.run.dir"]
        assert place == str(folder / job.name)
