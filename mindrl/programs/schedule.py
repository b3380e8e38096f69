"""Scheduler of train and rollout jobs: `mindrl job schedule`."""

import argparse
import shlex
import sys
from pathlib import Path

from mindrl.errors import SpoolError, StopRequestedError
from mindrl.launch.interrupts import signals_as_errors, stop_requests
from mindrl.launch.scheduler import Job, Scheduler
from mindrl.observability.terminal import say
from mindrl.programs.arguments import Program, count
from mindrl.programs.compose import override
from mindrl.programs.entry import START
from mindrl.spool.folder import Spool

_EXAMPLE = """\
examples:
  mindrl job schedule outputs/two_jobs --config-name my_run megatron_training.save_interval=5
  mindrl job schedule outputs/two_jobs --rollout-jobs 2 \\
      --train "rl_config.actor_resource.num_npus=8" --rollout "rl_config.actor_resource.num_npus=4"
  mindrl job schedule outputs/two_jobs --in-turns
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="for the spool, the run folders and the logs")
    add("--train", default="", metavar="TEXT", help="additional arguments of the train job")
    add("--rollout", default="", metavar="TEXT", help="additional arguments of the rollout jobs")
    add("--rollout-jobs", type=count, default=1, metavar="N", help="their number (default: 1)")
    add("--in-turns", action="store_true", help="run the jobs in turns on the same devices")
    starts = "starts of a job without progress (default: 4)"
    add("--max-starts", type=count, default=4, metavar="N", help=starts)
    grace = "time to stop in order (default: 600)"
    add("--grace", type=count, default=600, metavar="SECONDS", help=grace)


def _parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the options; those of training programs go to the jobs."""
    options, shared = parser.parse_known_args()
    options.shared = shared
    return options


@signals_as_errors()
def _schedule(options: argparse.Namespace) -> int:
    folder = Path(options.folder).resolve()
    spool = Spool(folder / "spool")
    with spool.leases("the scheduler") as leases, stop_requests() as check_interrupt:
        if (other := leases.take("scheduler")) is not None:
            raise SpoolError(f"{spool.root} already has a scheduler: {other}")
        spool.start()
        scheduler = Scheduler(
            spool=spool,
            leases=leases,
            jobs=jobs_of(options, folder, spool),
            most_starts=options.max_starts,
            notify=say,
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


def jobs_of(options: argparse.Namespace, folder: Path, spool: Spool) -> dict[str, Job]:
    """Return the jobs of a scheduler by name, not started."""
    names = ["train", *(f"rollout-{number}" for number in range(options.rollout_jobs))]
    turns = ["spool_config.waits=false"] if options.in_turns else []
    jobs = {}
    for name in names:
        kind = name.partition("-")[0]
        places = {"spool_config.folder": spool.root, "hydra.run.dir": folder / name}
        own = [*(override(key, path) for key, path in places.items()), *turns]
        more = shlex.split(options.train if kind == "train" else options.rollout)
        jobs[name] = Job(
            name=name,
            lease="train" if kind == "train" else spool.rollout_name(folder / name),
            command=[sys.executable, "-c", START, "job", kind, *options.shared, *more, *own],
            log=folder / f"{name}.txt",
        )
    return jobs


PROGRAM = Program(
    about="Run a train job and rollout jobs that share FOLDER/spool until the train job is done: "
    "start and watch them, restart those that end, and show their progress. FOLDER also has their "
    "run folders and logs; jobs that already run there are kept. Ctrl-C stops all of them in "
    "order. Both jobs get each key=value.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_schedule,
    parse=_parse,
)
