"""Versions on Ascend that mindrl was checked against. No other module names them.

The npu extra in `pyproject.toml` must name the same versions, and so must vllm-ascend, which
requires an exact torch and torch_npu: tests/unit/platform compares them.
"""

from dataclasses import dataclass
from typing import Literal

Origin = Literal["dependency", "extra", "source", "checkout"]
"""How a package is installed on a node: with mindrl; with its npu extra; from the index, built from
source by hand; or from a checkout of its repository."""


@dataclass(frozen=True)
class Pin:
    """A package that a node needs."""

    distribution: str
    """Name for pip."""
    module: str
    """Name for Python's import."""
    version: str
    """Version that `importlib.metadata` reports."""
    origin: Origin
    branch: str = ""
    """Branch of the checkout."""
    commit: str = ""

    @property
    def package(self) -> str:
        """Top-level package of the module."""
        return self.module.split(".", maxsplit=1)[0]

    @property
    def requirement(self) -> str:
        """Name and version as pip writes them."""
        return f"{self.distribution}=={self.version}"


TORCH = Pin("torch", "torch", "2.10.0", "extra")
TORCH_NPU = Pin("torch-npu", "torch_npu", "2.10.0.post4", "extra")
MEGATRON = Pin("megatron-core", "megatron.core", "0.16.1", "extra")
VLLM_ASCEND = Pin("vllm-ascend", "vllm_ascend", "0.23.0.post1", "extra")
# vllm-ascend requires these two; MindSpeed does not start without them but does not declare it.
TRITON = Pin("triton-ascend", "triton", "3.2.2", "extra")
TORCHVISION = Pin("torchvision", "torchvision", "0.25.0", "extra")
# Its wheel requires torch 2.11.0, so it is built without device code and without dependencies.
VLLM = Pin("vllm", "vllm", "0.23.0", "source")
# Tests run the engine with these two as well; see docs/how-to/install-npu.md.
NEWER_VLLM_ASCEND = Pin("vllm-ascend", "vllm_ascend", "0.30.0rc2", "extra")
NEWER_VLLM = Pin("vllm", "vllm", "0.30.0", "source")
RAY = Pin("ray", "ray", "2.60.0", "dependency")
# Published only in its repository.
MINDSPEED = Pin(
    "mindspeed",
    "mindspeed",
    "0.16.0",
    "checkout",
    branch="core_r0.16.0",
    commit="e4772499f7eb9fa9a68919dd1eaddef00e915b2d",
)

PINS = (TORCH, TORCH_NPU, MEGATRON, VLLM, VLLM_ASCEND, TRITON, TORCHVISION, MINDSPEED, RAY)
"""All packages whose version matters on a node."""

CANN_VERSION = "9.1.0"
"""Version of the toolkit, the kernels and NNAL that vllm-ascend requires."""
