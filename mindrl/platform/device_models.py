"""The devices that a run can be planned for by name: memory, speed, links. Pure data.

Of each number either its maker publishes it, or it was seen on a machine, or it is an estimate.
Where nothing else is said: of the 910B by CANN's operator documents, of the 910C by
arXiv:2506.12708, for a package of two dies, each of which is a device; of A100, H100 and H200 by
data sheets.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from mindrl.errors import ConfigError
from mindrl.platform.device import DeviceKind


@dataclass(frozen=True)
class DeviceModel:
    """One model of device, in the server that it usually sits in; GB are 10^9 bytes."""

    name: str
    kind: DeviceKind
    memory_mib: int
    """That one process can take: what torch reports as the total of a device, cut to whole hundreds
    of MiB. Seen in error messages of torch_npu: 60.96 GiB (Atlas A2, 64 GB), 29.49 GiB (Atlas A2,
    32 GB), 61.27 GiB (Atlas A3). 79.0 GiB of an A100 and an H100 and 139.5 GiB of an H200 are
    estimates, on the safe side of what drivers leave."""
    tflops: float
    """10^12 floating-point operations a second in bfloat16, at the most: the published dense peak.
    353 are the 910B2's; the 910B4, which has 32 GB, is slower: 280 is an estimate. A package of the
    910C has 752."""
    memory_gbps: float
    """GB/s of the device's own memory; an estimate for the 910B4."""
    devices_per_node: int
    """Usual in one machine."""
    node_gbps: float
    """GB/s each way of one device to those of its node. 392 GB/s of HCCS, both ways together, is
    what product pages say of the 910B; a package of the 910C has as much each way; NVLink: half of
    the sum of both ways."""
    network_gbps: float
    """GB/s each way of one device to those of other nodes, its share of the node's network: 200
    Gbit/s, and 400 Gbit/s beside an H100 or H200, as such servers usually have. The faster bus that
    joins the nodes of an Atlas A3 supernode is not counted on."""
    host_gbps: float
    """GB/s each way between one device and the memory of its host: an estimate, half of what PCIe
    4.0 or 5.0 with 16 lanes can do."""
    host_memory_gib: int
    """Of one node: an estimate, what such servers usually have."""

    @property
    def memory_bytes(self) -> int:
        """`memory_mib` in bytes."""
        return self.memory_mib << 20


# A table: its columns are the fields in their order.
# fmt: off
_MODELS = (
    DeviceModel("ascend-910b-64g",  "npu",  62_400, 353, 1600,  8, 196, 25, 16, 1024),
    DeviceModel("ascend-910b-32g",  "npu",  30_100, 280,  800,  8, 196, 25, 16, 1024),
    DeviceModel("ascend-910c-64g",  "npu",  62_700, 376, 1600, 16, 196, 25, 16, 2048),
    DeviceModel("nvidia-a100-80g",  "gpu",  80_900, 312, 2039,  8, 300, 25, 16, 1024),
    DeviceModel("nvidia-h100-80g",  "gpu",  80_900, 989, 3350,  8, 450, 50, 32, 2048),
    DeviceModel("nvidia-h200-141g", "gpu", 142_900, 989, 4800,  8, 450, 50, 32, 2048),
)
# fmt: on
DEVICE_MODELS: Mapping[str, DeviceModel] = {model.name: model for model in _MODELS}
EXAMPLE_DEVICE = _MODELS[0].name
"""Named in the help of programs."""


def device_model(name: str) -> DeviceModel:
    """Return a device by its name.

    Raises:
        ConfigError: There is none of that name.
    """
    if name in DEVICE_MODELS:
        return DEVICE_MODELS[name]
    near = difflib.get_close_matches(name.lower(), DEVICE_MODELS, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(DEVICE_MODELS)}"
    raise ConfigError(f"--device {name}: no such device is known; {hint}")
