"""A checkpoint contains the requested state, even if values change while it is written."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from mindrl.platform.host_arena import HostArena
from mindrl.training.state_slice import StateSlice
from mindrl.workers.device_regions import StoredRegion
from mindrl.workers.state_saver import StateSaver


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """A process group of one, taken down again behind this file."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@dataclass
class ThreeWeights:
    """As much of an engine as a checkpoint asks for."""

    stored: Tensor
    updates: int = 7
    routes: None = None

    def state_slices(self) -> Iterator[StateSlice]:
        for tensor, is_ours in (("ours", True), ("another rank's", False)):
            yield StateSlice(
                tensor=tensor,
                kind="weight",
                box=((0, 3),),
                stored=self.stored,
                run=(0, 3),
                shape=(3,),
                local=((0, 3),),
                axes=None,
                is_ours=is_ours,
            )


@pytest.mark.parametrize("where", ["on the host", "on the device", "never on the host"])
def test_an_update_while_the_state_is_written_changes_nothing_of_it(
    where: str, tmp_path: Path
) -> None:
    weights, may_write = torch.full((3,), 1.0), Event()
    arena = None if where == "never on the host" else HostArena(512, device_type="cpu")
    region = StoredRegion([weights], arena, "cpu")
    saver = StateSaver({"actor": ThreeWeights(weights)}, {"actor": [region]})
    if where == "on the host":
        region.offload()
    saver.request(tmp_path)
    saver.writer.submit(may_write.wait)
    saver.start()
    if where == "on the host":
        region.onload()
    weights.fill_(2.0)
    region.changed()
    leaves = Thread(target=region.offload)
    leaves.start()
    leaves.join(timeout=0.2)
    may_write.set()
    saved = saver.finish()
    leaves.join(timeout=60)
    (written,) = saved.files
    assert (written.name, saved.updates) == ("actor-00000.safetensors", {"actor": 7})
    found = load_file(tmp_path / written.name)
    assert {name: each.tolist() for name, each in found.items()} == {"weight ours 0:3": [1, 1, 1]}
