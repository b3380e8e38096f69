"""The versions that mindrl was read against on Ascend: the one place that names them.

The npu extra in `pyproject.toml` has to say the same, and so has vllm-ascend, which asks for an
exact torch and torch_npu: tests/unit/platform compares them.
"""

from dataclasses import dataclass
from typing import Literal

Origin = Literal["dependency", "extra", "source", "checkout"]
"""How a package comes to a node: with mindrl; with its npu extra; from the index, built from its
source by hand; or from a checkout of its repository."""


@dataclass(frozen=True)
class Pin:
    """One package that a node needs."""

    distribution: str
    """What pip calls it."""
    module: str
    """What Python imports."""
    version: str
    """What `importlib.metadata` says once it is installed."""
    origin: Origin
    branch: str = ""
    """Of the checkout."""
    commit: str = ""

    @property
    def package(self) -> str:
        """The outermost package of the module."""
        return self.module.split(".", maxsplit=1)[0]

    @property
    def requirement(self) -> str:
        """Name and version as pip writes them."""
        return f"{self.distribution}=={self.version}"


TORCH = Pin("torch", "torch", "2.10.0", "extra")
TORCH_NPU = Pin("torch-npu", "torch_npu", "2.10.0.post4", "extra")
MEGATRON = Pin("megatron-core", "megatron.core", "0.16.1", "extra")
VLLM_ASCEND = Pin("vllm-ascend", "vllm_ascend", "0.23.0.post1", "extra")
# vllm-ascend asks for these two; MindSpeed does not start without them, and says so nowhere.
TRITON = Pin("triton-ascend", "triton", "3.2.2", "extra")
TORCHVISION = Pin("torchvision", "torchvision", "0.25.0", "extra")
# Its wheel asks for torch 2.11.0, so it is built for no device of its own, without dependencies.
VLLM = Pin("vllm", "vllm", "0.23.0", "source")
RAY = Pin("ray", "ray", "2.60.0", "dependency")
# Published nowhere but in its repository.
MINDSPEED = Pin(
    "mindspeed",
    "mindspeed",
    "0.16.0",
    "checkout",
    branch="core_r0.16.0",
    commit="e4772499f7eb9fa9a68919dd1eaddef00e915b2d",
)

PINS = (TORCH, TORCH_NPU, MEGATRON, VLLM, VLLM_ASCEND, TRITON, TORCHVISION, MINDSPEED, RAY)
"""Every package whose version matters on a node."""

CANN_VERSION = "9.1.0"
"""Of the toolkit, the kernels and NNAL: what vllm-ascend asks for."""
