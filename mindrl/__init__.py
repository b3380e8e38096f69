"""Reinforcement-learning post-training for large language models, Ascend NPU first."""

from typing import TYPE_CHECKING, Any

from mindrl.platform.patches import torchvision_on_cpu

if TYPE_CHECKING:
    from mindrl.programs.python_run import train

__all__ = ["train"]

torchvision_on_cpu.install()


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: workers and plans do without Hydra."""
    if name != "train":
        raise AttributeError(f"module 'mindrl' has no attribute {name!r}")
    from mindrl.programs.python_run import train  # noqa: PLC0415

    return train
