"""Megatron-core without an accelerator: an import hook that renames its device API.

Upstream: megatron-core 0.12.1 to 0.16.1 (checked with 0.16.1). Reason: the package calls
`torch.cuda` and writes `device="cuda"` in about seventy places, but a plain CPU has no such device.
The hook rewrites the syntax tree of `megatron.core.*` as it is imported:

    torch.cuda               -> a namespace of this module, with CPU meanings
    "cuda", "cuda:0"         -> "cpu"
    "torch.cuda.FloatTensor" -> "torch.FloatTensor"
    x.cuda(), x.pin_memory() -> x
    x.is_cuda                -> x.is_cpu

torch itself is unchanged, so vLLM and transformers in the same process use the stock one. No longer
needed when a GPT model trains on CPU without it: tests/unit/platform shows that it does not.
"""

import ast
import contextlib
import hashlib
import marshal
import sys
import types
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch

from mindrl.platform.environment import cache_folder

_NAMESPACE = "mindrl_cpu_device"
_PACKAGE = "megatron.core"


def _nothing(*_: object, **__: object) -> None:
    return None


class _Event(torch.cpu.Event):
    def __init__(self, *_: object, **__: object) -> None:
        """Ignore the timing options of a device event."""

    def elapsed_time(self, _end: object) -> float:
        return 0.0


class _Stream(torch.cpu.Stream):
    """The only stream: Megatron compares streams and must find them equal."""

    def __init__(self, *_: object, **__: object) -> None:
        """Ignore the device and the priority."""

    # On a CPU, work is done when its call returns.
    synchronize = wait_event = wait_stream = _nothing

    def record_event(self, event: object = None) -> object:  # type: ignore[override]
        return event or _Event()


def _no_context(*_: object, **__: object) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _decorator(function: Any = None, **_: object) -> Any:
    return function or (lambda inner: inner)


def _device_namespace() -> types.ModuleType:
    """Build the namespace that replaces `torch.cuda` inside megatron-core on a CPU."""
    module = types.ModuleType(_NAMESPACE)
    stream = _Stream()
    members: dict[str, object] = {
        "Event": _Event,
        "Stream": lambda *_, **__: stream,
        "current_stream": lambda *_: stream,
        "default_stream": lambda *_: stream,
        "stream": _no_context,
        "device": _no_context,
        "current_device": lambda: torch.device("cpu"),
        "device_count": lambda: 1,
        "is_available": lambda: False,
        "is_current_stream_capturing": lambda: False,
        "get_device_capability": lambda *_: (0, 0),
        "memory_stats": lambda *_: {},
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "manual_seed": torch.manual_seed,
        "default_generators": defaultdict(lambda: torch.default_generator),
        "_lazy_call": lambda callback, **_: callback(),
        "OutOfMemoryError": torch.OutOfMemoryError,
        "CUDAGraph": type("CUDAGraph", (), {}),
        "nvtx": types.SimpleNamespace(range_push=_nothing, range_pop=_nothing, range=_no_context),
        "amp": types.SimpleNamespace(custom_fwd=_decorator, custom_bwd=_decorator),
        "random": module,
    }
    quiet = ("set_device", "set_stream", "synchronize", "empty_cache", "_lazy_init")
    members.update(dict.fromkeys((*quiet, "reset_peak_memory_stats"), _nothing))
    counted = ("memory_allocated", "max_memory_allocated", "memory_reserved")
    members.update(dict.fromkeys((*counted, "max_memory_reserved"), lambda *_: 0))
    for name in ("Float", "Half", "BFloat16", "Long", "Int", "Byte"):
        members[f"{name}Tensor"] = getattr(torch, f"{name}Tensor")
    vars(module).update(members)
    module.__getattr__ = lambda name: getattr(torch.cuda, name)  # type: ignore[method-assign]
    return module


class _Renamer(ast.NodeTransformer):
    """Renames devices; line numbers stay unchanged for tracebacks."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == "cuda" and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return ast.copy_location(ast.Name(_NAMESPACE, node.ctx), node)
        if node.attr == "is_cuda":
            node.attr = "is_cpu"
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        node.keywords = [word for word in node.keywords if word.arg != "pin_memory"]
        match node.func:
            case ast.Attribute(attr="cuda" | "pin_memory", value=receiver):
                return ast.copy_location(receiver, node)
            case ast.Attribute(attr="record_stream"):
                return ast.copy_location(ast.Constant(None), node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            if node.value == "cuda" or node.value.startswith("cuda:"):
                node.value = "cpu"
            elif node.value.startswith("torch.cuda.") and node.value.endswith("Tensor"):
                node.value = node.value.replace("torch.cuda.", "torch.")
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        known = vars(sys.modules[_NAMESPACE])
        if node.module == "torch.cuda" and all(name.name in known for name in node.names):
            node.module = _NAMESPACE
        return node


class _Loader(SourceFileLoader):
    """Compiles the rewritten source; never reads or writes the package's own bytecode.

    Bytecode is cached in a separate folder, keyed by a hash of all inputs.
    """

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        made_of = hashlib.sha256(b"\0".join((source, path.encode(), _kind())))
        kept = cache_folder() / "megatron" / f"{made_of.hexdigest()}.bin"
        with suppress(OSError, EOFError, ValueError, TypeError):
            code = marshal.loads(kept.read_bytes())  # noqa: S302 - the user's own folder
            if isinstance(code, types.CodeType):
                return code
        tree = _Renamer().visit(ast.parse(source, path))
        code = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
        with suppress(OSError):
            _keep(kept, marshal.dumps(code))
        return code

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)[_NAMESPACE] = sys.modules[_NAMESPACE]
        super().exec_module(module)


@cache
def _kind() -> bytes:
    """Return the inputs of compilation other than the source and its path."""
    return Path(__file__).read_bytes() + MAGIC_NUMBER


def _keep(path: Path, content: bytes) -> None:
    """Write a file atomically, since other processes may write it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(path)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: object = None
    ) -> ModuleSpec | None:
        if fullname != _PACKAGE and not fullname.startswith(f"{_PACKAGE}."):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


@cache
def install() -> None:
    """Install the hook; repeated calls have no effect."""
    assert _PACKAGE not in sys.modules, "install the hook before megatron.core is imported"
    sys.modules[_NAMESPACE] = _device_namespace()
    sys.meta_path.insert(0, _Finder())
