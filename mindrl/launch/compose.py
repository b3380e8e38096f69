"""The configuration of a run, read as the training programs read it, for programs that train not.

Nothing is started and no run folder is made.
"""

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from mindrl.config.hydra_defaults import plain_values, register_defaults
from mindrl.config.load import load_run_config
from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.launch.command_line import check_overrides, no_such_config
from mindrl.launch.shipped import config_folder


def composed_config(name: str, overrides: Sequence[str]) -> RunConfig:
    """Read a configuration by name, with overrides such as `actor_config.lr=1e-6`.

    Raises:
        ConfigError: It does not exist, or a key or a value is not legal.
    """
    folder = config_folder()
    register_defaults()
    try:
        check_overrides(overrides)
        with initialize_config_dir(str(folder), version_base="1.3"):
            composed = compose(name, overrides=list(overrides))
            values = plain_values(composed)
    except MissingConfigException as error:
        raise no_such_config(error, folder) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(str(error)) from error
    return load_run_config(values)
