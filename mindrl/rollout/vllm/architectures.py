"""Features of the installed vLLM, read from its source. Imports neither vLLM nor torch."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_TABLES = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS")
_HEAD_SIZES = "get_supported_head_sizes"


@cache
def installed_architectures() -> frozenset[str] | None:
    """Return vLLM's tables of generative models; None without vLLM or without such a table."""
    found: set[str] = set()
    source = _source("model_executor/models/registry.py")
    for statement in ast.parse(source or "").body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys)):
                if name in _TABLES:
                    found |= {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    return frozenset(found) or None


@cache
def installed_head_sizes() -> tuple[int, ...] | None:
    """Return the head sizes of vLLM's attention on CPU; None without vLLM."""
    source = _source("v1/attention/backends/cpu_attn.py")
    for node in ast.walk(ast.parse(source or "")):
        match node:
            case ast.FunctionDef(name=name, body=[*_, ast.Return(value=ast.List(elts=sizes))]):
                if name == _HEAD_SIZES:
                    return tuple(int(ast.literal_eval(each)) for each in sizes)
    return None


def _source(path: str) -> str | None:
    """Return a source file of the installed vLLM; None if there is none."""
    package = find_spec("vllm")
    if package is None or package.origin is None:
        return None
    file = Path(package.origin).parent / path
    return file.read_text("utf-8") if file.is_file() else None
