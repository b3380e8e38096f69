"""The memory that an optimizer step takes besides weights, gradients and moments."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mindrl.config.role import LearningConfig
from mindrl.training.archon.learning import Learning

TENSORS, ROWS, COLUMNS = 16, 64, 32
"""Number of weight matrices, and their shape."""


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """A mesh of one process."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


class Temporaries(TorchDispatchMode):
    """The most bytes of new tensors that exist at the same time."""

    now = most = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {id(each) for each in tree_leaves((args, kwargs))}
        for each in tree_leaves(found):
            if isinstance(each, Tensor) and id(each) not in given:
                self.now += each.nbytes
                self.most = max(self.most, self.now)
                weakref.finalize(each, self.drop, each.nbytes)
        return found

    def drop(self, nbytes: int) -> None:
        self.now -= nbytes


def test_an_optimizer_step_makes_no_copy_of_all_tensors_on_a_device_either(
    mesh: DeviceMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Torch then chooses for the processor what it chooses for devices.
    monkeypatch.setattr(optimizer, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
    parameters = {
        f"weight {at}": torch.nn.Parameter(
            DTensor.from_local(torch.randn(ROWS, COLUMNS), mesh, [Shard(0)])
        )
        for at in range(TENSORS)
    }
    learning = Learning(parameters, dict.fromkeys(parameters, 1), LearningConfig(), updates=1)
    for leaf in learning.leaves.values():
        assert leaf.grad is not None
        leaf.grad.fill_(1.0)
    before = [leaf.detach().clone() for leaf in learning.leaves.values()]
    with Temporaries() as made:
        assert learning.step([torch.tensor(1.0)])["skipped"] == 0.0
    after = [leaf.detach() for leaf in learning.leaves.values()]
    assert all((one != other).all() for one, other in zip(before, after, strict=True))
    of_one = ROWS * COLUMNS * 4
    # The root of a second moment, before and after its division, and the one of the tensor before.
    assert of_one <= made.most < 4 * of_one < TENSORS * of_one
