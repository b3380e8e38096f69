"""Repeat one recorded step and compare its numbers: `mindrl replay`."""

import argparse
from typing import TYPE_CHECKING

from mindrl.launch.interrupts import signals_as_errors
from mindrl.observability.terminal import print_table, say
from mindrl.platform.environment import prepare_driver
from mindrl.platform.garbage import collect_again, planning
from mindrl.programs.arguments import Program, add_overrides, count
from mindrl.programs.compose import composed_config
from mindrl.programs.exits import FAILED
from mindrl.programs.train import checked_plan, run_folder

if TYPE_CHECKING:
    from mindrl.trainer.comparison import Comparison, Difference

_EXAMPLE = """\
examples:
  mindrl replay outputs/2026-11-22/09-00-00 --step 20
  mindrl replay outputs/2026-11-22/09-00-00 --step 20 --generate --score
  mindrl replay outputs/2026-11-22/09-00-00 --step 20 megatron_training.deterministic=true
"""
_COLUMNS = {
    "name": "{name}",
    "recorded": "{recorded!r:}",
    "replayed": "{replayed!r:}",
    "difference": "{by:+.3g}",
}
_MOST_SHOWN = 40


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN", help="folder of the run")
    add("--step", type=count, required=True, metavar="N", help="step to repeat, from 1")
    again = "generate responses again, and compare tokens and log-probs"
    add("--generate", action="store_true", help=again)
    add("--score", action="store_true", help="score the responses again")
    add_overrides(parser)


@planning()
@signals_as_errors()
def _replay(options: argparse.Namespace) -> int:
    prepare_driver()
    folder = run_folder("RUN", options.run)
    config = composed_config("config", options.overrides, str(folder / ".hydra"), downloads=True)
    plan, platform = checked_plan(config)
    # Imported late: they load torch and Ray, and errors should come as fast as in a check.
    from mindrl.launch.replay import recorded_step, replay  # noqa: PLC0415
    from mindrl.trainer.run_log import RunFolder  # noqa: PLC0415

    collect_again()
    recorded = recorded_step(config, RunFolder(folder), options.step, generates=options.generate)
    found = replay(plan, platform, recorded, generates=options.generate, scores=options.score)
    _show(options.step, found)
    return FAILED if found.differences else 0


def _show(step: int, found: "Comparison") -> None:
    """Print the differences, and how many numbers were compared."""
    different = found.differences
    if not different:
        say(f"step {step}: all {found.count} numbers are bitwise equal")
        return
    print_table(map(_row, different[:_MOST_SHOWN]), _COLUMNS)
    if (more := len(different) - _MOST_SHOWN) > 0:
        say(f"... and {more} more")
    say(f"step {step}: {len(different)} of {found.count} numbers differ")


def _row(each: "Difference") -> dict[str, object]:
    before, after = each.recorded, each.replayed
    by = None if before is None or after is None else after - before
    return {"name": each.name, "recorded": before, "replayed": after, "by": by}


PROGRAM = Program(
    about="Repeat one step of a run from the previous checkpoint and the stored responses, and "
    "compare each computed number with the recorded one. Only the folder replays/ of the run "
    "folder is written, with the logs.",
    examples=_EXAMPLE,
    add_options=_add_options,
    run=_replay,
)
