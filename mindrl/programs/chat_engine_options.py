"""Shared options and engine settings of the programs that answer prompts."""

import argparse
from typing import get_args

from mindrl.config.run import RunConfig
from mindrl.errors import ConfigError
from mindrl.models.config_file import read_config, text_values
from mindrl.platform.device import DeviceKind, Platform, choose_platform
from mindrl.programs.arguments import count
from mindrl.programs.compose import composed_config
from mindrl.programs.named_model import NamedModel, named_model
from mindrl.rollout.chat_engine import ChatEngineSettings

_LONGEST = 8192
"""Default limit of prompt and answer in tokens, if the model allows more."""
_HOST_CACHE_BYTES = 512 << 20


CHAT_ENGINE_OPTIONS = (
    *("--best", "--max-length", "--device", "--tensor-parallel-size", "--seed"),
    "--trust-remote-code",
)


def add_chat_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the model and its devices."""
    add = parser.add_argument
    add("--best", action="store_true", help="use the best model of a run instead of its newest")
    room = "tokens of a prompt and its answer (default: the model's limit, at most 8192)"
    add("--max-length", type=count, metavar="N", help=f"maximum {room}")
    add(
        "--device",
        choices=("auto", *get_args(DeviceKind)),
        help="kind of device (default: the run's, or the best one of this machine)",
    )
    ranks = "devices per model (default: as in a replica of the run, or 1)"
    add("--tensor-parallel-size", type=count, metavar="N", help=ranks)
    add("--seed", type=count, metavar="N", help="seed of sampling (default: 1)")
    add("--trust-remote-code", action="store_true", help="run Python code from the model's folder")


def chosen_chat_engine(
    options: argparse.Namespace,
) -> tuple[NamedModel, RunConfig | None, Platform, ChatEngineSettings]:
    """Return the model, its run's configuration if any, the platform and the engine settings.

    Raises:
        ConfigError: The model does not exist, or its limit is below the requested length.
        ClusterError: The device does not exist.
    """
    model = named_model(options.model, best=options.best)
    config = None if model.hydra is None else composed_config("config", [], model.hydra)
    if options.device is not None:
        platform = choose_platform(options.device, "--device ")
    else:
        platform = choose_platform(config.rl_config.device if config else "auto")
    generate = config.generate_config if config else None
    cache = generate.kv_cache_mib if generate else None
    own = _HOST_CACHE_BYTES if cache is None else cache << 20
    ranks, trusted = options.tensor_parallel_size, options.trust_remote_code
    settings = ChatEngineSettings(
        folder=str(model.folder),
        dtype=generate.dtype if generate else "auto",
        longest=_longest(model, options.max_length),
        tensor_parallel_size=ranks or (generate.infer_tensor_parallel_size if generate else 1),
        # Other processes need host memory too.
        kv_cache_bytes=own if platform.kind == "cpu" else None,
        trust_remote_code=trusted or bool(generate and generate.trust_remote_code),
        seed=options.seed or 1,
    )
    return model, config, platform, settings


def _longest(model: NamedModel, requested: int | None) -> int:
    values = text_values(read_config(str(model.folder))[1])
    most = values.get("max_position_embeddings") or values.get("n_positions") or _LONGEST
    if requested is not None and requested > most:
        raise ConfigError(f"--max-length {requested}: the model's limit is {most} tokens")
    return requested or min(most, _LONGEST)
