"""The compiled parts of vllm-ascend and of CANN's Python that its engine needs, in Python.

- `acl.rt.memcpy` and `acl.get_soc_name`, of CANN's Python package.
- `vllm_ascend.vllm_ascend_C`: the memory pool of the sleep mode, over cann/sleeping_pool.cpp. Its
  operators are in `ascend_operators`.
- The one Triton kernel that a dense model and a mixture need, in Python.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

Handle = tuple[int, int, int, int]
"""Device, bytes, address, and where the pages are noted."""


class _Allocation(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("device", "bytes", "address", "pages")]

    def handle(self) -> Handle:
        return self.device, self.bytes, self.address, self.pages


_TOLD_OF = ctypes.CFUNCTYPE(None, _Allocation)
_ASKED_FOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Allocation))


def install() -> None:
    """Let vllm-ascend find all of it; call it before vllm is imported."""
    acl: Any = ModuleType("acl")
    # Ray asks for it, and names the resource of the machine's accelerators by it.
    acl.get_soc_name = lambda: "Ascend910B3"
    sys.modules["acl"], sys.modules["acl.rt"] = acl, _runtime()
    sys.modules["vllm_ascend.vllm_ascend_C"] = _extension()
    # It tells torch.compile of operators that nothing here has.
    sys.modules["vllm_ascend.meta_registration"] = ModuleType("meta_registration")


def replace_kernels() -> None:
    """Put Python in the place of Triton's kernels; call it once vllm_ascend can be imported."""
    table: Any = import_module("vllm_ascend.worker.block_table")
    table._compute_slot_mapping_kernel = _Kernel(_slot_mapping)


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(os.environ["ASCEND_HOME_PATH"]).parent / "lib" / name))


def _runtime() -> ModuleType:
    made: Any = ModuleType("acl.rt")
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    made.memcpy = _library("libascendcl.so").aclrtMemcpy
    made.memcpy.argtypes = [pointer, size, pointer, size, ctypes.c_int]
    return made


def _extension() -> ModuleType:
    made: Any = ModuleType("vllm_ascend.vllm_ascend_C")
    library = _library("vllm_ascend_C.so")

    def init_module(told: Callable[[Handle], None], asked: Callable[[int], Handle]) -> None:
        def answer(address: int, found: Any) -> None:
            found[0] = _Allocation(*asked(address))

        # Else nothing would keep them.
        made.callbacks = _TOLD_OF(lambda new: told(new.handle())), _ASKED_FOR(answer)
        library.tell(*made.callbacks)

    made.init_module = init_module
    made.python_create_and_map = lambda *handle: library.create_and_map(_Allocation(*handle))
    made.python_unmap_and_release = lambda *handle: library.unmap_and_release(_Allocation(*handle))
    return made


class _Kernel:
    """A Triton kernel: `kernel[grid](arguments)`."""

    def __init__(self, function: Callable[..., None]) -> None:
        self.function = function

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*arguments: Any, **words: Any) -> None:
            host = [
                torch.ops.simulated_npu.contents(each) if isinstance(each, torch.Tensor) else each
                for each in arguments
            ]
            self.function(grid[0], *host, **words)

        return run


def _slot_mapping(programs: int, *arguments: Any, PAD_ID: int, **_: Any) -> None:
    """Say where the key and value of each token go; the last program pads."""
    tokens, most_tokens, starts, positions, table, _stride, block_size, slots = arguments
    slots[tokens:most_tokens] = PAD_ID
    for row in range(programs - 1):
        here = slice(int(starts[row]), int(starts[row + 1]))
        at = positions[here].long()
        slots[here] = table[row][at // block_size].long() * block_size + at % block_size
