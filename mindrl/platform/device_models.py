"""Devices that a run can be planned for by name: memory, speed, links. Pure data.

Each number is published by the maker, was observed on a machine, or is an estimate. Unless stated
otherwise the sources are: CANN's operator documents for the 910B; arXiv:2506.12708 for the 910C, a
package of two dies, each of which is a device; data sheets for A100, H100 and H200. Of the 950,
only the announcement is known (Huawei Connect, 18 September 2025): 1 PFLOPS in FP8 and links of 2
TB/s; the 950DT, for training, has 144 GB at 4 TB/s, the 950PR, for long prompts, 128 GB at 1.6
TB/s. Everything else in their rows is an estimate. The card Atlas 350 is reported to have a 950PR
with 112 GB (China Partner Conference, March 2026): plan it with `--device-memory-gib 99`.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from mindrl.errors import ConfigError
from mindrl.platform.device import DeviceKind


@dataclass(frozen=True)
class DeviceModel:
    """One model of device in its usual server; GB are 10^9 bytes."""

    name: str
    kind: DeviceKind
    memory_mib: int
    """Memory available to one process: the total that torch reports, rounded down to hundreds of
    MiB. Seen in error messages of torch_npu: 60.96 GiB (Atlas A2, 64 GB), 29.49 GiB (Atlas A2, 32
    GB), 61.27 GiB (Atlas A3). 95 % of a 950, 79.0 GiB of an A100 and an H100 and 139.5 GiB of an
    H200 are conservative estimates of what drivers leave."""
    tflops: float
    """Published dense peak in bfloat16, in 10^12 floating-point operations per second. 353 is the
    910B2's; the 910B4, which has 32 GB, is slower: 280 is an estimate. A package of the 910C has
    752. A 950's is half of its FP8."""
    memory_gbps: float
    """Bandwidth of the device's own memory in GB/s; an estimate for the 910B4."""
    devices_per_node: int
    """Usual number of devices in one machine."""
    node_gbps: float
    """GB/s in each direction from one device to those of its node. Product pages give 392 GB/s of
    HCCS in both directions together for the 910B; a package of the 910C has as much in each
    direction; 950, NVLink: half of the sum of both directions."""
    network_gbps: float
    """GB/s in each direction from one device to other nodes, its share of the node's network: 200
    Gbit/s, and 400 Gbit/s with an H100 or H200, as such servers usually have. The faster bus that
    joins the nodes of an Atlas A3 supernode is not counted."""
    host_gbps: float
    """GB/s in each direction between one device and host memory: an estimate, half of the maximum
    of PCIe 4.0 or 5.0 with 16 lanes."""
    host_memory_gib: int
    """Host memory of one node: an estimate, as such servers usually have."""

    @property
    def memory_bytes(self) -> int:
        """`memory_mib` in bytes."""
        return self.memory_mib << 20


# A table: its columns are the fields in their order.
# fmt: off
_MODELS = (
    DeviceModel("ascend-910b-64g",   "npu",  62_400, 353, 1600,  8,  196, 25, 16, 1024),
    DeviceModel("ascend-910b-32g",   "npu",  30_100, 280,  800,  8,  196, 25, 16, 1024),
    DeviceModel("ascend-910c-64g",   "npu",  62_700, 376, 1600, 16,  196, 25, 16, 2048),
    DeviceModel("ascend-950dt-144g", "npu", 130_400, 500, 4000,  8, 1000, 50, 32, 2048),
    DeviceModel("ascend-950pr-128g", "npu", 115_900, 500, 1600,  8, 1000, 50, 32, 2048),
    DeviceModel("nvidia-a100-80g",   "gpu",  80_900, 312, 2039,  8,  300, 25, 16, 1024),
    DeviceModel("nvidia-h100-80g",   "gpu",  80_900, 989, 3350,  8,  450, 50, 32, 2048),
    DeviceModel("nvidia-h200-141g",  "gpu", 142_900, 989, 4800,  8,  450, 50, 32, 2048),
)
# fmt: on
DEVICE_MODELS: Mapping[str, DeviceModel] = {model.name: model for model in _MODELS}
EXAMPLE_DEVICE = _MODELS[0].name
"""Example in the help of programs."""


def device_model(name: str) -> DeviceModel:
    """Return a device by its name.

    Raises:
        ConfigError: No device has this name.
    """
    if name in DEVICE_MODELS:
        return DEVICE_MODELS[name]
    near = difflib.get_close_matches(name.lower(), DEVICE_MODELS, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"use {', '.join(DEVICE_MODELS)}"
    raise ConfigError(f"--device {name}: unknown device; {hint}")
