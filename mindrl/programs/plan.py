"""Plan a run without starting it: `mindrl plan PLAN ...`. Needs no torch."""

import argparse

from mindrl.errors import ModelError
from mindrl.platform.garbage import planning
from mindrl.programs.arguments import parser_of
from mindrl.programs.exits import exit_code
from mindrl.programs.explain import EXPLAIN
from mindrl.programs.memory import MEMORY
from mindrl.programs.placement import PLACEMENT
from mindrl.programs.propose import RUN
from mindrl.programs.reshard import RESHARD

_PLANS = {
    "reshard": RESHARD,
    "memory": MEMORY,
    "explain": EXPLAIN,
    "run": RUN,
    "placement": PLACEMENT,
}

_EXAMPLES = """\
examples:
  mindrl plan explain --config-name grpo_qwen25_7b --device-memory-gib 60
  mindrl plan reshard --model Qwen2.5-7B --from megatron:d4t2 --to vllm:d2t4

plan.py PLAN --help says more. Of a model only config.json is read; configs/models has some.
"""


def plan(name: str = "mindrl plan") -> int:
    """Run the plan named on the command line; returns the exit code."""
    options = _options(_parser(name))
    with planning():
        return exit_code(lambda: int(options.run(options)), ModelError)


def _options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line; overrides may stand anywhere among the options."""
    options, more = parser.parse_known_args()
    if more and ("overrides" not in options or any(each.startswith("-") for each in more)):
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if more:
        options.overrides += more
    return options


def _parser(name: str) -> argparse.ArgumentParser:
    about = "Plan on any machine, without torch and without devices."
    parser = parser_of(name, about, _EXAMPLES)
    plans = parser.add_subparsers(title="plans", required=True, metavar="PLAN")
    for word, each in _PLANS.items():
        sub = plans.add_parser(
            word,
            help=each.summary,
            description=each.about,
            epilog=each.examples,
            formatter_class=parser.formatter_class,
        )
        each.add_options(sub)
        sub.set_defaults(run=each.run)
    return parser
