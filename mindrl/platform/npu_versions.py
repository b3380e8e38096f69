"""Versions on Ascend that mindrl was checked against. No other module names them.

The npu extra in `pyproject.toml` must name the same versions, and so must vllm-ascend, which
requires an exact torch and torch_npu: tests/unit/platform compares them.
"""

from collections.abc import Mapping
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

    def is_series_of(self, version: str | None) -> bool:
        """Return whether a version has the same first two numbers."""
        return version is not None and version.split(".")[:2] == self.version.split(".")[:2]


TORCH = Pin("torch", "torch", "2.10.0", "extra")
TORCH_NPU = Pin("torch-npu", "torch_npu", "2.10.0.post4", "extra")
MEGATRON = Pin("megatron-core", "megatron.core", "0.16.1", "extra")
VLLM_ASCEND = Pin("vllm-ascend", "vllm_ascend", "0.23.0.post1", "extra")
# vllm-ascend requires these two; MindSpeed does not start without them but does not declare it.
TRITON = Pin("triton-ascend", "triton", "3.2.2", "extra")
TORCHVISION = Pin("torchvision", "torchvision", "0.25.0", "extra")
# Its wheel requires torch 2.11.0, so it is built without device code and without dependencies.
VLLM = Pin("vllm", "vllm", "0.23.0", "source")
# Tests run the engine with these two as well.
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


@dataclass(frozen=True, kw_only=True)
class PluginSeries:
    """Packages of one series of vllm-ascend: a row of docs/reference/versions.md.

    Both series require the other packages in the same versions: `PINS`.
    """

    engine: tuple[Pin, Pin]
    """vLLM and vllm-ascend."""
    transformers: str
    """Version that vllm-ascend requires."""
    software: Mapping[str, str]
    """Versions of software that pip does not install, by the name that the doctor prints."""

    @property
    def name(self) -> str:
        """Name of the row: NPU and the series."""
        return "NPU, vllm-ascend " + ".".join(self.engine[1].version.split(".")[:2])

    def installed(self, versions: Mapping[str, str | None]) -> list[bool]:
        """Return whether each package of the engine is installed in this series."""
        return [pin.is_series_of(versions[pin.distribution]) for pin in self.engine]


GENERATIONS = (
    PluginSeries(engine=(VLLM, VLLM_ASCEND), transformers="5.5.4", software={"CANN": CANN_VERSION}),
    PluginSeries(
        engine=(NEWER_VLLM, NEWER_VLLM_ASCEND),
        transformers="5.14.1",
        software={"CANN": "9.2.0"},
    ),
)
