"""Tensor-parallel plans of transformers for a family, as far as mindrl supports them.

transformers defines `base_model_tp_plan` in each configuration: a style for modules by name. It is
parsed from the source, because importing a configuration imports torch. Imports no torch.
"""

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from mindrl.models.placement import Shape

_PLAN = "base_model_tp_plan"
_CUTS: Mapping[str, int | None] = {
    "colwise": 0,
    "colwise_gather_output": 0,
    "rowwise": 1,
    "rowwise_split_input": 1,
    "replicated_with_grad_allreduce": None,
}
"""Supported styles, and the dimension of a matrix that each cuts."""
_SAME_LAYERS: Mapping[str, str] = {"qwen3_vl_text": "qwen3"}
"""Maps decoders without a plan to a family with a plan and equal layers."""
_DECODER = "language_model."
"""Prefix of the decoder inside a vision-language model."""


@cache
def installed_plan(family: str) -> Mapping[str, str] | None:
    """Return the style of each module by its name below the model, with `*` for a number.

    None if transformers is not installed or has no plan for the family.
    """
    family = _SAME_LAYERS.get(family, family)
    # The text part of a family with images is defined in the folder of the whole.
    package, name = find_spec("transformers"), family.replace("-", "_").removesuffix("_text")
    if package is None or package.origin is None or not name.isidentifier():
        return None
    folder = Path(package.origin).parent / "models" / name
    source = folder / f"configuration_{name}.py"
    if not source.is_file():
        return None
    for statement in ast.parse(source.read_text("utf-8")).body:
        if isinstance(statement, ast.ClassDef):
            values = dict(_literals(statement.body))
            if values.get("model_type") == family and isinstance(values.get(_PLAN), dict):
                return values[_PLAN]  # type: ignore[return-value]
    return None


def shared_modules(
    tensors: Mapping[str, Shape], plan: Mapping[str, str] | None
) -> dict[str, str] | None:
    """Return the style of each module with tensors that a plan names.

    None if there is no plan, if it needs an unsupported style, as for experts, or if it omits a
    tensor next to cut rows, which might then read one rank's rows only.
    """
    paths = {name: name.rpartition(".")[0] for name in tensors}
    styles = {path: (plan or {}).get(_path_after_model(path)) for path in paths.values()}
    found = {path: style for path, style in styles.items() if style is not None}
    among = {path.rpartition(".")[0] for path, style in found.items() if style == "colwise"}
    unsaid = (path for path, style in styles.items() if style is None)
    if not found or any({path, path.rpartition(".")[0]} & among for path in unsaid):
        return None
    if any(style not in _CUTS for style in found.values()):
        return None
    if any(len(shape) > 2 for name, shape in tensors.items() if paths[name] in found):
        return None
    return found


def cuts_of(tensors: Mapping[str, Shape], styles: Mapping[str, str]) -> tuple[int | None, ...]:
    """Return the dimension of each tensor that ranks cut; a bias is cut with the rows."""
    cuts = [_CUTS.get(styles.get(name.rpartition(".")[0], "")) for name in tensors]
    shapes = tensors.values()
    return tuple(
        cut if cut is not None and cut < len(shape) else None
        for cut, shape in zip(cuts, shapes, strict=True)
    )


def _path_after_model(path: str) -> str:
    after = re.sub(r"\.\d+(?=\.|$)", ".*", path).partition(".")[2]
    return after.removeprefix(_DECODER)


def _literals(body: Iterable[ast.stmt]) -> Iterable[tuple[str, object]]:
    for statement in body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ) if name in (_PLAN, "model_type"):
                yield name, ast.literal_eval(value)
