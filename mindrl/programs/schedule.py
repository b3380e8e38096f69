"""Scheduler of train and rollout jobs: `mindrl job schedule`."""

import argparse
import shlex
import sys
from pathlib import Path

from mindrl.errors import SpoolError, StopRequestedError
from mindrl.launch.interrupts import signals_as_errors, stop_requests
from mindrl.launch.scheduler import Job, Scheduler
from mindrl.observability.terminal import say
from mindrl.programs.arguments import count, parser_of
from mindrl.programs.exits import exit_code
from mindrl.spool.folder import Spool

_EXAMPLE = """\
examples:
  mindrl job schedule outputs/two_jobs --config-name my_run megatron_training.save_interval=5
  mindrl job schedule outputs/two_jobs --rollout-jobs 2 \\
      --train "rl_config.actor_resource.num_npus=8" --rollout "rl_config.actor_resource.num_npus=4"
  mindrl job schedule outputs/two_jobs --in-turns
"""
_START = "from mindrl.programs.entry import main; main()"


def schedule(name: str) -> int:
    """Schedule the jobs of a folder; returns the exit code."""
    parser = parser_of(
        name,
        "Run a train job and rollout jobs that FOLDER/spool joins until the train job is done: "
        "start them, watch them, start them again where they end, show how far they are. Their "
        "run folders and output lie in FOLDER too; what runs there already is left running. "
        "Ctrl-C stops all of them in order. Each key=value goes to both.",
        _EXAMPLE,
    )
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="for the spool, the run folders and the output")
    add("--train", default="", metavar="TEXT", help="more arguments of the train job")
    add("--rollout", default="", metavar="TEXT", help="more arguments of the rollout jobs")
    add("--rollout-jobs", type=count, default=1, metavar="N", help="as many (default: 1)")
    add("--in-turns", action="store_true", help="one behind the other, on the same devices")
    add("--max-starts", type=count, default=4, metavar="N", help="of a job, without any progress")
    add("--grace", type=count, default=600, metavar="SECONDS", help="to stop in order (600)")
    options, shared = parser.parse_known_args()
    return exit_code(lambda: _schedule(options, shared))


@signals_as_errors()
def _schedule(options: argparse.Namespace, shared: list[str]) -> int:
    folder = Path(options.folder).resolve()
    spool = Spool(folder / "spool")
    with spool.leases("the scheduler") as leases, stop_requests() as check_interrupt:
        if (other := leases.take("scheduler")) is not None:
            raise SpoolError(f"{spool.root} has a scheduler already: {other}")
        spool.start()
        scheduler = Scheduler(
            spool=spool,
            leases=leases,
            jobs=_jobs(options, shared, folder, spool),
            most_starts=options.max_starts,
            tell=say,
        )
        try:
            (scheduler.run_in_turns if options.in_turns else scheduler.run)(check_interrupt)
        except StopRequestedError:
            scheduler.wait(options.grace)
            raise
        finally:
            scheduler.end(grace_seconds=30.0)
        say(f"the train job is done: {folder / 'train'}")
    return 0


def _jobs(
    options: argparse.Namespace, shared: list[str], folder: Path, spool: Spool
) -> dict[str, Job]:
    names = ["train", *(f"rollout-{number}" for number in range(options.rollout_jobs))]
    turns = ["spool_config.waits=false"] if options.in_turns else []
    jobs = {}
    for name in names:
        kind = name.partition("-")[0]
        own = [f"spool_config.folder={spool.root}", f"hydra.run.dir={folder / name}", *turns]
        more = shlex.split(options.train if kind == "train" else options.rollout)
        jobs[name] = Job(
            name=name,
            lease="train" if kind == "train" else spool.rollout_name(folder / name),
            command=[sys.executable, "-c", _START, "job", kind, *shared, *more, *own],
            log=folder / f"{name}.txt",
        )
    return jobs
