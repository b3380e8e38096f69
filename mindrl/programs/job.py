"""Training and rollout as two jobs connected by a folder, and their scheduler: `mindrl job`."""

import sys
from pathlib import Path
from typing import Literal

from mindrl.checkpoint.commits import CHECKPOINTS
from mindrl.config.changed import with_value
from mindrl.config.run import RunConfig
from mindrl.platform.device import choose_platform
from mindrl.platform.garbage import collect_again
from mindrl.preflight.checks import check
from mindrl.programs.schedule import schedule
from mindrl.programs.train import require_engines, run_program
from mindrl.programs.version import prints_version

_USAGE = """\
usage: mindrl job train    spool_config.folder=SPOOL [--config-name NAME] [key=value ...]
       mindrl job rollout  spool_config.folder=SPOOL [--config-name NAME] [key=value ...]
       mindrl job schedule FOLDER [options] [key=value ...]

train     learn from what rollout jobs draw, and put weights into the spool
rollout   draw and rate with those weights; there may be several
schedule  start both, watch them, start them again, stop them: mindrl job schedule --help

The first two take the options of mindrl train-grpo, --help, --dry-run and --resume among them.

example:
  mindrl job schedule outputs/two_jobs actor_config.load=.cache/tiny/model
"""


def job(name: str = "mindrl job") -> int:
    """Start one of the job programs; returns the exit code."""
    what = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if what == "--version":
        return 0 if prints_version() else 2
    if what in ("train", "rollout"):
        del sys.argv[1]
        return _run("train" if what == "train" else "rollout")
    if what == "schedule":
        del sys.argv[1]
        return schedule(f"{name} schedule")
    asked_for_help = what in ("-h", "--help")
    (sys.stdout if asked_for_help else sys.stderr).write(_USAGE)
    return 0 if asked_for_help else 2


def _run(kind: Literal["train", "rollout"]) -> int:
    def of_job(config: RunConfig) -> RunConfig:
        changed: RunConfig = with_value(config, "spool_config.job", kind)
        return changed

    def start(config: RunConfig, run_dir: Path) -> None:
        require_engines(config)
        platform = choose_platform(config.rl_config.device)
        plan = check(config, platform, goes_on=(run_dir / CHECKPOINTS).is_dir())
        # Imported late: it loads torch and Ray, and errors should come as fast as in a check.
        from mindrl.launch.jobs import rollout_job, train_job  # noqa: PLC0415

        collect_again()
        (train_job if kind == "train" else rollout_job)(plan, platform, run_dir)

    return run_program(
        start,
        default_config="grpo_tiny_cpu",
        has_critic=None,
        of_program=of_job,
        has_checkpoints=kind == "train",
    )
