"""Python functions of host tensors as kernels of the simulated NPU, which graphs keep.

A graph keeps a function with the addresses of its tensors (cann/graphs.cpp), and calls it again in
the thread of a stream.
"""

import ctypes
import os
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LIBRARIES: list[torch.library.Library] = []
"""What is registered stays for as long as these are there."""
Function = Callable[..., Any]
_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_KEPT: dict[int, Callable[[], None]] = {}
"""By number: what graphs call."""
_UNDER_CAPTURE, _REPLACES = 1, 2


def kernel(space: str, name: str) -> Callable[[Function], Function]:
    """Run a function of host tensors as the operator's kernel on the device.

    A function with `out` writes into these tensors and returns nothing.
    """

    def put(function: Function) -> Function:
        library = torch.library.Library(space, "IMPL")
        LIBRARIES.append(library)

        def run(*arguments: Any, **words: Any) -> Any:
            own, own_words = _host(arguments), {key: _host(each) for key, each in words.items()}
            state = _runtime().simulated_capture(_stream())

            def call() -> Any:
                with torch.no_grad():
                    return function(*own, **own_words)

            if state == _REPLACES:
                assert "out" in words, f"{name} is replaced in a graph, and has no out"
                _keep(call)
                return tuple(words["out"])
            found = call()
            made = tuple(words["out"]) if "out" in words else _device(found)
            if state == _UNDER_CAPTURE:
                into = _host(made)
                _keep(call if "out" in words else lambda: _write(into, call()))
            return made

        library.impl(name, run, "PrivateUse1", allow_override=True)
        return function

    return put


def _host(value: Any) -> Any:
    """Look at the device's bytes as the host's."""
    if isinstance(value, Tensor):
        is_there = value.device.type == "npu"
        return torch.ops.simulated_npu.contents(value) if is_there else value
    return type(value)(map(_host, value)) if isinstance(value, (list, tuple)) else value


def _device(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(torch.device("npu", torch.npu.current_device()))
    return type(value)(map(_device, value)) if isinstance(value, (list, tuple)) else value


def _write(into: Any, made: Any) -> None:
    if isinstance(into, Tensor):
        into.copy_(made)
    elif isinstance(into, (list, tuple)):
        for to, each in zip(into, made, strict=True):
            _write(to, each)


def _keep(call: Callable[[], Any]) -> None:
    number = len(_KEPT)
    _KEPT[number] = call
    _runtime().simulated_keep(ctypes.c_void_p(_stream()), _run, _drop, ctypes.c_void_p(number))


@_CALLBACK
def _run(number: int | None) -> None:
    try:
        with torch.inference_mode():
            _KEPT[number or 0]()
    except Exception:  # noqa: BLE001 - the thread of a stream could raise it no further
        traceback.print_exc()
        os._exit(70)


@_CALLBACK
def _drop(number: int | None) -> None:
    _KEPT[number or 0] = lambda: None


def _stream() -> int:
    return int(torch.npu.current_stream().npu_stream)


@cache
def _runtime() -> ctypes.CDLL:
    file = Path(os.environ["ASCEND_HOME_PATH"]).parent / "lib/libascendcl.so"
    library = ctypes.CDLL(str(file))
    library.simulated_capture.argtypes = [ctypes.c_void_p]
    return library
