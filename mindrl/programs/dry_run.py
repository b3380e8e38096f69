"""What `--dry-run` of a training program shows: the numbers of a run, and that nothing is wrong."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from mindrl.config.run import RunConfig
from mindrl.data.vocabulary import has_vocabulary
from mindrl.platform.device import planned_platform
from mindrl.preflight.checks import check_without_files
from mindrl.preflight.derived_numbers import derived_numbers, render_numbers
from mindrl.preflight.shipped import note_shipped_sizes
from mindrl.rewards.scorer import try_rewards


def explain(config: RunConfig) -> None:
    """Validate a configuration without a cluster and print what follows from it.

    Raises:
        ConfigError: The configuration cannot run.
    """
    platform = planned_platform(config.rl_config.device)
    console = Console()
    missing = check_without_files(config, platform)
    console.print(render_numbers(derived_numbers(config, platform)))
    for finding in missing:
        console.print(f"not here, so not checked: {escape(finding)}", soft_wrap=True)
    note_shipped_sizes(config)
    for line in _data_lines(config):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print("the configuration is valid")


def _data_lines(config: RunConfig) -> Iterator[str]:
    training, trusts = config.megatron_training, config.generate_config.trust_remote_code
    files = (training.data_path, training.test_data_path)
    rows_here = all(path is None or Path(path).is_file() for path in files)
    if not (rows_here and has_vocabulary(config.tokenizer_path, trust_remote_code=trusts)):
        yield "rows and chat template not checked: a data file or the tokenizer is not here"
        return
    # Imported late: it brings transformers along.
    from mindrl.data.run_data import data_lines, read_data  # noqa: PLC0415

    data = read_data(config)
    yield from data_lines(data)
    rl = config.rl_config
    try_rewards(rl.verifier_function, rl.verifier_timeout, data.train.prompts[0].answer)
