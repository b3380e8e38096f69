"""The help of the training programs: options, the shipped configurations, and the keys of one."""

import os
import sys
from collections.abc import Mapping, Sequence

from omegaconf import OmegaConf

from mindrl.preflight.shipped import config_folder
from mindrl.programs.compose import composed
from mindrl.programs.config_files import RECIPE, run_names
from mindrl.programs.entry import PROGRAMS

_ABOUT: Mapping[str, str] = {
    **{f"mindrl {name}": does for name, (_, does) in PROGRAMS.items()},
    "mindrl train-grpo": "train with rewards and without a critic",
    "mindrl train-ppo": "train with rewards and a critic",
    "mindrl train-sft": "fine-tune on the answers in the data",
}
_HELP = """\
{program}: {about}

Usage: {program} {name} [options] [key=value ...]

NAME is one of the configurations below or the path of your own file. Every key can be overridden;
docs/reference/config.md describes them.{needed}

  --config-name NAME  name of the configuration{chosen}
  --config-dir DIR    folder of the configuration (default: configs/)
  --resume RUN        continue the run in a folder from its newest checkpoint
  --dry-run           check the configuration, print the derived numbers, and exit
  --elsewhere         with --dry-run: the run is for another machine; skip missing files
  --cfg job           print the composed configuration and exit
  --help              print this text; with --config-name also every key with its value

Example: {program} --config-name {example}

Each run writes to outputs/<date>/<time>; hydra.run.dir=FOLDER selects another folder.

== Configurations ==
{names}

Recipes of algorithms, added with +recipe=NAME: {recipes}
"""


def print_help(
    program: str,
    name: str | None,
    folder: str | None,
    *,
    default: str | None,
    needs: Sequence[str],
) -> None:
    """Print the options and the shipped configurations; of a named one also its keys.

    `needs` are examples of overrides that the program cannot start without.

    Raises:
        ConfigError: The named configuration cannot be composed.
    """
    required = [each.partition("=")[0] for each in needs]
    changes = needs or ["megatron_training.train_iters=10"]
    text = _HELP.format(
        program=program,
        about=_ABOUT[program],
        name="[--config-name NAME]" if default else "--config-name NAME",
        needed=f" Required: {', '.join(required)}." if required else "",
        chosen="" if name is None else f" ({'default' if name == default else 'here'}: {name})",
        example=" ".join([default or "grpo_tiny_cpu", *changes]),
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
