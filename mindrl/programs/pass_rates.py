"""Measure how often a model answers each row of a data file: `mindrl pass-rates`."""

import argparse
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mindrl.errors import ConfigError
from mindrl.launch.interrupts import signals_as_errors
from mindrl.observability.terminal import say
from mindrl.platform.device import choose_platform
from mindrl.platform.environment import prepare_driver
from mindrl.platform.garbage import collect_again, planning
from mindrl.preflight.checks import check
from mindrl.programs.arguments import count, parser_of
from mindrl.programs.compose import composed_config, override
from mindrl.programs.exits import exit_code
from mindrl.programs.train import require_engines

_WITHOUT = (
    *("megatron_training.test_data_path=null", "megatron_training.save_interval=0"),
    *("megatron_training.keep_best=false", "rl_config.test_freq=0"),
    *("rl_config.init_kl_coef=0", "rl_config.ref_update_interval=0"),
    *("data_config.train_sets=[]", "data_config.eval_sets=[]", "data_config.best_by=null"),
    *("data_config.order=as_is", "data_config.order_column=null"),
    *("data_config.order_descending=false", "data_config.order_stages=null"),
    *("data_config.pass_rate_column=null", "data_config.pass_rate_low=0"),
    *("data_config.pass_rate_high=1", "data_config.held_out_fraction=0"),
)
"""Overrides that disable the parts of a training run that measuring pass rates does not need."""
_EXAMPLE = """\
examples:
  mindrl pass-rates --data data/train.jsonl --output data/rated.jsonl --samples 8
  mindrl pass-rates --data data/train.parquet --output data/rated.parquet \\
      --config-name grpo_qwen25_7b actor_config.load=models/Qwen2.5-7B

Train on the new file with
  data_config.pass_rate_column=pass_rate data_config.pass_rate_low=0.1
"""


def pass_rates(name: str = "mindrl pass-rates") -> int:
    """Measure the pass rates of a data file; returns the exit code."""
    parser = parser_of(
        name,
        "Have the model of a configuration answer each row of a data file several times, drawn as "
        "in training, and write the file anew with a column of pass rates: the share of answers "
        "that get the highest score of the first reward function.",
        _EXAMPLE,
    )
    add = parser.add_argument
    add("--data", required=True, metavar="FILE", help="the rows: a .jsonl or .parquet file")
    add("--output", required=True, metavar="FILE", help="new file, with the same suffix")
    add("--samples", type=count, default=8, metavar="N", help="answers a row (default: 8)")
    add("--column", default="pass_rate", metavar="NAME", help="new column (default: pass_rate)")
    configuration = "of the model, devices and sampling (default: grpo_tiny_cpu)"
    add("--config-name", default="grpo_tiny_cpu", metavar="NAME", help=configuration)
    add("overrides", nargs="*", metavar="key=value", help="changes, as for a training program")
    options = parser.parse_intermixed_args()
    prepare_driver()
    with planning():
        return exit_code(lambda: _measure(options))


def _overrides(options: argparse.Namespace) -> list[str]:
    """Return the overrides for a run that answers each row once without training."""
    return [
        *options.overrides,
        override("megatron_training.data_path", options.data),
        f"rl_config.n_samples_per_prompt={options.samples}",
        *_WITHOUT,
    ]


@signals_as_errors()
def _measure(options: argparse.Namespace) -> int:
    from mindrl.data.pass_rates import check_new_file, write_pass_rates  # noqa: PLC0415

    check_new_file(options.data, options.output)
    config = composed_config(options.config_name, _overrides(options), downloads=True)
    if not config.rl_config.verifier_function:
        raise ConfigError(
            "rl_config.verifier_function is empty: its first entry says what is right"
        )
    require_engines()
    platform = choose_platform(config.rl_config.device)
    plan = check(config, platform, goes_on=True)
    # Imported late: they load torch and Ray, and errors should come as fast as in a check.
    from mindrl.data.run_data import read_data  # noqa: PLC0415
    from mindrl.launch.pass_rates import measure_pass_rates  # noqa: PLC0415

    collect_again()
    data = read_data(config)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("prompts, left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("", total=len(data.train.prompts))
        rates = measure_pass_rates(
            plan,
            platform,
            data,
            Path(f"{options.output}.logs"),
            lambda done: bar.update(task, completed=done),
        )
    write_pass_rates(options.data, options.output, options.column, rates)
    never, always = (sum(rate == end for rate in rates.values()) for end in (0, 1))
    mean = sum(rates.values()) / len(rates)
    say(
        f"{len(rates)} rows, {options.samples} answers each: mean pass rate {mean:.3f}; "
        f"{never} rows are never answered right, {always} always",
        f"written: {options.output}",
    )
    return 0
