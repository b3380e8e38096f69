"""The options of an engine that depend on its device and plugin.

Without PyTorch: the command of a served replica has them too.
"""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from mindrl.platform.device import Platform

_FOR_TRAINING = Version("0.30.0.dev0")
"""Release of vllm-ascend whose engine must know that its weights will change."""


def engine_options(platform: Platform) -> Mapping[str, object]:
    """Return the arguments of a run's engine that depend on the device and its plugin."""
    if platform.kind != "npu":
        return platform.engine_options
    try:
        installed = Version(version("vllm-ascend"))
    except PackageNotFoundError:
        return platform.engine_options
    if installed < _FOR_TRAINING:
        return platform.engine_options
    # Without it the engine casts weights to a layout that cannot be written in place, and raises at
    # a wake-up. Earlier releases read an environment variable instead, and refuse this key.
    return {**platform.engine_options, "additional_config": {"rl_config": {"enabled": True}}}
