"""Add what a simulated NPU lacks to the vendors' packages when they are imported.

So every process of a run has it, whoever starts it. Nothing is imported here that a process does
not ask for.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

from stand_ins import StandIns


class _Behind(MetaPathFinder):
    """Runs an action behind the first import of a module."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name, self.action = name, action

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec is not None, name
        assert spec.loader is not None, name
        plain = spec.loader.exec_module

        def run(module: ModuleType) -> None:
            plain(module)
            self.action()

        spec.loader.exec_module = run
        return spec


def install() -> None:
    """Wait for the vendors' packages; those that only look for others find them."""
    sys.meta_path[:0] = [
        StandIns(),
        _Behind("torch_npu", _operators),
        _Behind("triton", _no_tuning),
        _Behind("vllm_ascend.worker.block_table", _kernels_in_python),
    ]


def _operators() -> None:
    import_module("kernels").install()
    import_module("graph_operators")
    import_module("vllm_ascend_parts").install()


def _no_tuning() -> None:
    """MindSpeed marks kernels for tuning while it is imported; none of them is called."""
    sys.modules["triton"].autotune = lambda *_, **__: lambda function: function


def _kernels_in_python() -> None:
    import_module("vllm_ascend_parts").replace_kernels()
