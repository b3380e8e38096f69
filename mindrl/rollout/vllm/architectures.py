"""The architectures that the installed vLLM has itself. Imports neither vLLM nor torch."""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_TABLE = "_TEXT_GENERATION_MODELS"


@cache
def installed_architectures() -> frozenset[str] | None:
    """Read vLLM's own table of models that answer; None where no vLLM is here, or no such table."""
    package = find_spec("vllm")
    if package is None or package.origin is None:
        return None
    source = Path(package.origin).parent / "model_executor" / "models" / "registry.py"
    if not source.is_file():
        return None
    for statement in ast.parse(source.read_text("utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys)):
                if name == _TABLE:
                    return frozenset(
                        str(key.value) for key in keys if isinstance(key, ast.Constant)
                    )
    return None
