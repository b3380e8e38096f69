"""Pass rates of the rows of a data file: `mindrl evaluate --write-column`."""

import argparse
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mindrl.config.run import RunConfig
from mindrl.data.files import files_of
from mindrl.data.pass_rates import check_new_file, write_pass_rates
from mindrl.errors import ConfigError
from mindrl.observability.terminal import say
from mindrl.platform.garbage import collect_again
from mindrl.programs.train import checked_plan


def rate_rows(options: argparse.Namespace, config: RunConfig) -> int:
    """Write the rows of a file with the share of correct answers to each; returns the exit code.

    Raises:
        MindrlError: The run cannot start, or failed.
    """
    files, output = files_of(config.megatron_training.data_path), str(options.output)
    if len(files) != 1:
        raise ConfigError(
            f"--data {options.data[0]} has {len(files)} files; --write-column needs one file"
        )
    (data_file,) = files
    check_new_file(data_file, output)
    plan, platform = checked_plan(config)
    # Imported late: they load torch and Ray, and errors should come as fast as in a check.
    from mindrl.data.run_data import read_data  # noqa: PLC0415
    from mindrl.launch.pass_rates import measure_pass_rates  # noqa: PLC0415

    collect_again()
    data = read_data(config)
    left = (BarColumn(), MofNCompleteColumn(), TextColumn("prompts, left"), TimeRemainingColumn())
    with Progress(*left) as bar:
        task = bar.add_task("", total=len(data.train.prompts))
        rates = measure_pass_rates(
            plan,
            platform,
            data,
            Path(f"{output}.logs"),
            lambda done: bar.update(task, completed=done),
        )
    write_pass_rates(data_file, output, options.write_column, rates)
    never, always = (sum(rate == end for rate in rates.values()) for end in (0, 1))
    samples = config.rl_config.n_samples_per_prompt
    mean = sum(rates.values()) / len(rates)
    say(
        f"{len(rates)} rows, {samples} answers each: mean pass rate {mean:.3f}; {never} "
        f"rows are never answered correctly, {always} always",
        f"written: {output}",
    )
    return 0
