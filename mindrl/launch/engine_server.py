"""vLLM's server as a replica of a run: its command, environment and configuration."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mindrl.config.backends import ROLLOUT_BACKEND
from mindrl.config.run import RunConfig
from mindrl.config.server_address import unfit_server
from mindrl.errors import ConfigError
from mindrl.observability.regular_files import read_regular_text
from mindrl.platform.device import Platform
from mindrl.platform.device_engine import engine_options
from mindrl.rollout.vllm.options import command_of, rollout_options

EXTENSION = "mindrl.launch.server_extension.InwardWeights"
_OF_DEVICE = ("additional_config", "attention_config")
"""Options of a run's engine that depend on the device and that a server needs too."""


def server_command(config: RunConfig, platform: Platform, address: str) -> list[str]:
    """Return the command of a server that is a replica of a run; see `server_environment`.

    It has dummy weights until it receives those of the run.

    Raises:
        ConfigError: It would be reachable from other machines without permission, or the engine's
            server is not started by mindrl.
    """
    if config.rollout_backend != ROLLOUT_BACKEND:
        raise ConfigError(
            f"generate_config.backend={config.generate_config.backend}: {config.rollout_backend} "
            "starts its own servers; see docs/how-to/external-engines.md for the options"
        )
    if why := unfit_server(address, allow_remote=config.generate_config.servers_are_remote):
        raise ConfigError(f"server address {address} {why}")
    listens = urlsplit(address)
    generate = config.generate_config
    options = rollout_options(
        config.actor_config.load, generate, platform, config.megatron_training.seed, served=True
    )
    if generate.kv_cache_mib is None:
        options["gpu_memory_utilization"] = generate.gpu_memory_utilization
    else:
        options["kv_cache_memory_bytes"] = generate.kv_cache_mib << 20
    of_device = engine_options(platform, batch_invariant=generate.batch_invariant)
    options |= {name: of_device.get(name) for name in _OF_DEVICE}
    of_server = {
        "host": listens.hostname,
        "port": listens.port or 80,
        "worker_extension_cls": EXTENSION,
        "skip_tokenizer_init": True,
        # Without it the token route returns 403.
        "enable_scale_out": True,
    }
    return command_of(options | of_server)


def server_environment(config: RunConfig, platform: Platform) -> dict[str, str]:
    """Return the variables that a server's process needs in addition to its environment.

    The token is not in the command, which every user of the machine can see.

    Raises:
        ConfigError: There is no token.
    """
    here = not config.generate_config.servers_are_remote
    environment = platform.worker_environment(workers=1, one_machine=here)
    return environment | {"VLLM_API_KEY": server_token(config), "VLLM_SERVER_DEV_MODE": "1"}


def configuration_text(config: RunConfig) -> str:
    """Return a configuration as JSON for a server, which plans its link from it."""
    values: dict[str, Any] = asdict(config)
    return json.dumps(values)


def server_token(config: RunConfig) -> str:
    """Return the token for the servers of a run.

    Raises:
        ConfigError: There is none.
    """
    key, path = "generate_config.server_token_file", config.generate_config.server_token_file
    assert path is not None, "validated: servers have a token"
    return token_in(f"{key}={path}", Path(path))


def token_in(named: str, path: Path) -> str:
    """Return the token in a file, which the user has named with a key or an option.

    Raises:
        ConfigError: There is none.
    """
    try:
        token = read_regular_text(path).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{named} cannot be read: {error}") from error
    if not token:
        raise ConfigError(f"{named} is empty")
    return token
