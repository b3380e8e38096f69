"""Measure a model, or the model of a run, as a run evaluates its own: `mindrl evaluate`."""

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path

from rich.markup import escape
from rich.table import Column

from mindrl.config.data import paths_of
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.launch.interrupts import signals_as_errors
from mindrl.observability.terminal import print_rows, printable, say
from mindrl.platform.device import choose_platform
from mindrl.platform.environment import prepare_driver
from mindrl.platform.garbage import collect_again, planning
from mindrl.preflight.checks import check
from mindrl.programs.arguments import count, parser_of
from mindrl.programs.compose import composed_config, override
from mindrl.programs.exits import exit_code, print_json
from mindrl.programs.named_model import NamedModel, named_model
from mindrl.programs.train import require_engines
from mindrl.report.measured_sets import MeasuredSet, measured_sets

_WITHOUT = (
    *("megatron_training.save_interval=0", "megatron_training.keep_best=false"),
    *("megatron_training.train_iters=1", "megatron_training.keep_rollouts=1"),
    *("rl_config.debug=rollout_only", "rl_config.init_kl_coef=0", "reward_config=null"),
    *("rl_config.ref_update_interval=0", "data_config.best_by=null", "spool_config.job=null"),
    *("generate_config.servers=[]", "generate_config.server_token_file=null"),
    *("generate_config.router=null", "data_config.test_overlap_policy=allow"),
    *("rl_config.tracking.trackers=[]", "rl_config.tracking.prometheus_port=null"),
)
"""Overrides that disable the parts of a training run that a measurement does not need."""
_NO_TRAINING_DATA = (
    *("data_config.train_sets=[]", "data_config.order=as_is", "data_config.order_column=null"),
    *("data_config.order_descending=false", "data_config.order_stages=null"),
    *("data_config.pass_rate_column=null", "data_config.pass_rate_low=0"),
    *("data_config.pass_rate_high=1", "data_config.held_out_fraction=0"),
)
"""Overrides that reset the data keys if only an evaluation file is read."""
_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]")
"""Characters that a file name may contain and a set name may not."""
_EXAMPLE = """\
examples:
  mindrl evaluate outputs/2026-11-22/09-00-00
  mindrl evaluate outputs/2026-11-22/09-00-00 --data math.jsonl other.jsonl --samples 8
  mindrl evaluate models/Qwen2.5-7B --config-name grpo_qwen25_7b --data math.jsonl

Of a run its newest exported model is measured on what the run itself was, or on --data; start the
program where the run was started, for its paths may be relative.
"""


def evaluate(name: str = "mindrl evaluate") -> int:
    """Measure the model named on the command line; returns the exit code."""
    parser = parser_of(
        name,
        "Have a model answer the rows of data files by the engine and the rewards of a run, and "
        "print how much is right, with 95 % intervals. Metrics, answers and logs go into a folder.",
        _EXAMPLE,
    )
    add = parser.add_argument
    add("model", metavar="MODEL_OR_RUN", help="folder of a model, or of a run")
    add("--data", nargs="+", default=[], metavar="FILE", help="rows; each file is a set")
    samples = "answers to each row of --data (default: %(default)s)"
    add("--samples", type=count, default=1, metavar="N", help=samples)
    drawn = "of answers to --data (default: 1, but 0, the most likely token, for one answer a row)"
    add("--temperature", type=float, metavar="T", help=drawn)
    add("--best", action="store_true", help="of a run its best model, not its newest")
    configuration = "of a model: devices, sampling, rewards (default: grpo_tiny_cpu)"
    add("--config-name", default="grpo_tiny_cpu", metavar="NAME", help=configuration)
    into = "of metrics and answers (default: evaluate/<time> in the folder of the run, or here)"
    add("--output", type=Path, metavar="FOLDER", help=into)
    add("--json", action="store_true", help="print one JSON object in the place of the table")
    add("overrides", nargs="*", metavar="key=value", help="changes, as for a training program")
    options = parser.parse_intermixed_args()
    prepare_driver()
    with planning():
        return exit_code(lambda: _evaluate(options))


@signals_as_errors()
def _evaluate(options: argparse.Namespace) -> int:
    model = named_model(options.model, best=options.best)
    output = _output(options, model)
    config = measuring_config(options, model)
    require_engines()
    platform = choose_platform(config.rl_config.device)
    plan = check(config, platform, goes_on=True)
    # Imported late: they load torch and Ray, and errors should come as fast as in a check.
    from mindrl.data.run_data import read_data  # noqa: PLC0415
    from mindrl.launch.evaluate import measure_model  # noqa: PLC0415

    collect_again()
    found = measure_model(plan, platform, read_data(config), output, step=model.step)
    sets = [*measured_sets(output)]
    if options.json:
        print_json({"folder": str(output), "sets": [asdict(each) for each in sets]})
    else:
        _print(sets)
        say(f"written: {output}")
    return 0 if found["status"] == "completed" else 1


def _output(options: argparse.Namespace, model: NamedModel) -> Path:
    """Return the folder for metrics and answers.

    Raises:
        ConfigError: The folder contains metrics already.
    """
    root = model.run or Path.cwd()
    output: Path = options.output or root / "evaluate" / time.strftime("%Y-%m-%d_%H-%M-%S")
    if (output / "metrics.jsonl").exists():
        raise ConfigError(f"--output {output} holds metrics already; name another folder")
    return output


def measuring_config(options: argparse.Namespace, model: NamedModel) -> RunConfig:
    """Return the configuration of a run that only measures a model.

    Raises:
        ConfigError: It is not legal, or there is no data to measure on.
    """
    name = "config" if model.run else options.config_name

    def composed(*changes: str) -> RunConfig:
        # The run may have been made before a key existed.
        forced = (f"++{each}" for each in (*changes, override("actor_config.load", model.folder)))
        return composed_config(name, [*options.overrides, *forced], model.hydra, downloads=True)

    files = [*_of_files(options)] if options.data else []
    config = composed(*files, *_WITHOUT)
    if config.data_config.held_out_fraction:
        # The held-out rows are part of the training data, so all of it is needed.
        return config
    # Otherwise the training data need not be read.
    read = override("megatron_training.data_path", _held_out(config))
    return composed(*files, *_WITHOUT, *_NO_TRAINING_DATA, read)


def _held_out(config: RunConfig) -> str:
    """Return a file that is evaluated.

    Raises:
        ConfigError: No file is evaluated.
    """
    sets = (each.data_path for each in config.data_config.eval_sets)
    found = next(
        chain.from_iterable(map(paths_of, (config.megatron_training.test_data_path, *sets))), None
    )
    if found is None:
        raise ConfigError(
            "megatron_training.test_data_path and data_config.eval_sets are empty: there is "
            "nothing to measure on; say --data FILE"
        )
    return found


def _of_files(options: argparse.Namespace) -> Iterator[str]:
    """Yield the overrides that make each file of `--data` an evaluation set."""
    yield from ("megatron_training.test_data_path=null", "data_config.held_out_fraction=0")
    names = [_NO_NAME.sub("_", Path(path).stem).lstrip("_.-") or "data" for path in options.data]
    if len({*names}) < len(names):
        raise ConfigError(f"--data {' '.join(options.data)}: files need names of their own")
    temperature = options.temperature
    if temperature is None:
        temperature = 1.0 if options.samples > 1 else 0.0
    drawn = {"samples": options.samples, "temperature": temperature}
    sets = zip(names, options.data, strict=True)
    yield override(
        "data_config.eval_sets", [{"name": name, "data_path": path, **drawn} for name, path in sets]
    )


def _print(sets: Sequence[MeasuredSet]) -> None:
    """Print a row per set; sets with the same number of answers per prompt share a table."""
    for samples in dict.fromkeys(each.samples for each in sets):
        alike = [each for each in sets if each.samples == samples]
        titles = ("set", "prompts", *alike[0].rates, "reward", "tokens", "cut off")
        print_rows(map(_row, alike), *(Column(title, overflow="fold") for title in titles))


def _row(measured: MeasuredSet) -> tuple[str, ...]:
    rates = (f"{value:.3f} [{low:.3f}, {high:.3f}]" for value, low, high in measured.rates.values())
    return (
        escape(printable(measured.name)),
        str(measured.prompts),
        *map(escape, rates),
        f"{measured.reward:.3f}",
        f"{measured.response_tokens:.0f}",
        f"{measured.cut_fraction:.1%}",
    )
