"""Repeat one recorded step and compare its numbers: `mindrl replay`."""

import argparse
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Column

from mindrl.launch.interrupts import signals_as_errors
from mindrl.observability.terminal import print_rows, say
from mindrl.platform.device import choose_platform
from mindrl.platform.environment import prepare_driver
from mindrl.platform.garbage import collect_again, planning
from mindrl.preflight.checks import check
from mindrl.programs.arguments import count, parser_of
from mindrl.programs.compose import composed_config
from mindrl.programs.exits import FAILED, exit_code
from mindrl.programs.train import require_engines, run_folder

if TYPE_CHECKING:
    from mindrl.trainer.comparison import Comparison, Difference, Number

_EXAMPLE = """\
examples:
  mindrl replay outputs/2026-11-22/09-00-00 --step 20
  mindrl replay outputs/2026-11-22/09-00-00 --step 20 --generate --score
  mindrl replay outputs/2026-11-22/09-00-00 --step 20 megatron_training.deterministic=true
"""
_MOST_SHOWN = 40


def replay(name: str = "mindrl replay") -> int:
    """Repeat a step of the run named on the command line; returns the exit code."""
    parser = parser_of(
        name,
        "Run one step of a run again, from the checkpoint before it and its stored responses, and "
        "compare each number that it computes with what the run wrote. Of the run folder nothing "
        "changes; the logs go into replays/ in it.",
        _EXAMPLE,
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="folder of the run")
    add("--step", type=count, required=True, metavar="N", help="the step, from 1")
    add("--generate", action="store_true", help="roll out anew, and compare tokens and log-probs")
    add("--score", action="store_true", help="rate the responses anew")
    add("overrides", nargs="*", metavar="key=value", help="changes, as for a training program")
    options = parser.parse_intermixed_args()
    prepare_driver()
    with planning():
        return exit_code(lambda: _replay(options))


@signals_as_errors()
def _replay(options: argparse.Namespace) -> int:
    folder = run_folder("RUN", options.run)
    config = composed_config("config", options.overrides, str(folder / ".hydra"), downloads=True)
    require_engines()
    platform = choose_platform(config.rl_config.device)
    # The run has exported its model already; the replay does not change it.
    plan = check(config, platform, goes_on=True)
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
        say(f"step {step}: all {found.count} numbers are equal to the bit")
        return
    rows = (
        (escape(each.name), *map(_spelled, (each.recorded, each.replayed)), _by(each))
        for each in different[:_MOST_SHOWN]
    )
    right = [Column(name, justify="right") for name in ("recorded", "replayed", "difference")]
    print_rows(rows, Column("name"), *right)
    if (more := len(different) - _MOST_SHOWN) > 0:
        say(f"... and {more} more")
    say(f"step {step}: {len(different)} of {found.count} numbers differ")


def _spelled(number: "Number") -> str:
    return "-" if number is None else repr(number)


def _by(each: "Difference") -> str:
    if each.recorded is None or each.replayed is None:
        return "-"
    return f"{each.replayed - each.recorded:+.3g}"
