"""The help of `mindrl train`: its options, the shipped configurations, and the keys of one."""

import os
import sys

from omegaconf import OmegaConf

from mindrl.preflight.shipped import config_folder
from mindrl.programs.command_line import RECIPE
from mindrl.programs.compose import composed
from mindrl.programs.config_files import run_names

_HELP = """\
mindrl: train a language model with any configuration: GRPO, PPO, fine-tuning and others.

Usage: {program} --config-name NAME [options] [key=value ...]

NAME is one of the configurations below or the path of your own file. Every key can be overridden;
docs/reference/config.md describes them.

  --config-name NAME  name of the configuration{default}
  --config-dir DIR    folder of the configuration (default: configs/)
  --resume RUN        continue the run in a folder from its newest checkpoint
  --dry-run           check the configuration, print the derived numbers, and exit
  --elsewhere         with --dry-run: the run is for another machine; skip missing files
  --cfg job           print the composed configuration and exit
  --help              print this text; with --config-name also every key with its value

Example: {program} --config-name grpo_tiny_cpu megatron_training.train_iters=10

Each run writes to outputs/<date>/<time>; hydra.run.dir=FOLDER selects another folder.

== Configurations ==
{names}

Recipes of algorithms, added with +recipe=NAME: {recipes}
"""


def print_help(program: str, name: str | None, folder: str | None) -> None:
    """Print the options and the shipped configurations; of a named one also its keys.

    Raises:
        ConfigError: The named configuration cannot be composed.
    """
    text = _HELP.format(
        program=program,
        default="" if name is None else f" (here: {name})",
        names="\n".join(run_names(config_folder())),
        recipes=", ".join(sorted(path.stem for path in (config_folder() / RECIPE).glob("*.yaml"))),
    )
    if name is not None:
        overrides = [each for each in sys.argv[1:] if not each.startswith("-")]
        keys = OmegaConf.to_yaml(composed(name, overrides, folder))
        text += f"\n== Configuration {name} ==\n{keys}"
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the help, such as `head`, has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def no_name() -> str:
    """Return the error for a start without a configuration."""
    return (
        f"--config-name is missing; name one of {', '.join(run_names(config_folder()))}, or the "
        "path of your own file; for example --config-name grpo_tiny_cpu"
    )
