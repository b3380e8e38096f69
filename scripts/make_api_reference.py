"""Write docs/reference/python-api.md from the docstrings of what users import, or check it.

The sources are parsed and not imported, so that the page can be made without torch.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

from generated_page import REFERENCE, write_or_check

ROOT = Path(__file__).resolve().parents[1]
PAGE = REFERENCE / "python-api.md"
Definition = ast.ClassDef | ast.FunctionDef
DEFINITIONS = (ast.ClassDef, ast.FunctionDef)

HEADER = """\
# Python API

<!-- Written by scripts/make_api_reference.py from the docstrings in mindrl/. Do not edit. -->

The names that your own code imports. Everything else in `mindrl` is internal and may change.
"""


class Item(NamedTuple):
    """A name of the page."""

    module: str
    name: str
    """A class or function; several functions make a table, and `*` one of all classes."""
    imported_from: str = ""
    """Module that users import it from, if that is another one."""


SECTIONS: dict[str, tuple[str, tuple[Item, ...]]] = {
    "Train": (
        "[Train from Python](../how-to/train-from-python.md) shows a whole program.",
        (
            Item("mindrl.programs.python_run", "train", "mindrl"),
            Item("mindrl.launch.callbacks", "StepView"),
            Item("mindrl.report.run_record", "RunRecord"),
            Item("mindrl.report.run_record", "read_run"),
        ),
    ),
    "Rewards": (
        "Parameters and rules: [Use your own reward](../how-to/own-reward.md).",
        (
            Item(
                "mindrl.rewards.functions",
                "math_verify boxed_format base_acc math_verify_reward acc_for_dapo last_boxed "
                "reference_answer scores",
            ),
        ),
    ),
    "Advantage estimators, losses and objectives": (
        "Examples: [Add an algorithm](../how-to/add-an-algorithm.md).",
        (
            Item("mindrl.algorithms.estimators", "RatedResponses"),
            Item("mindrl.algorithms.estimators", "Estimate"),
            Item("mindrl.algorithms.chosen_tokens", "ChosenTokens"),
            Item("mindrl.algorithms.chosen_tokens", "TokenSelection"),
            Item("mindrl.algorithms.losses", "LossInputs"),
            Item("mindrl.algorithms.losses", "LossTerms"),
            Item("mindrl.algorithms.objectives", "Objective"),
        ),
    ),
    "Models of your own": (
        "[Add a model](../how-to/add-a-model.md#a-network-of-your-own) explains the parts.",
        (
            Item("mindrl.models.own_family", "ModelSpec"),
            Item("mindrl.models.own_family", "OwnTensor"),
            Item("mindrl.training.archon.network", "StagePart"),
            Item("mindrl.training.archon.own_network", "PackTokens"),
        ),
    ),
    "Trackers of your own": (
        "[Trackers](../how-to/watch-a-run.md#a-tracker-of-your-own) shows one.",
        (Item("mindrl.tracking.libraries", "LibraryTracker"),),
    ),
    "Errors": (
        "Every error that mindrl raises on purpose is a `mindrl.errors.MindrlError`.",
        (Item("mindrl.errors", "*"),),
    ),
}


def page() -> str:
    """Return the whole page."""
    blocks = [HEADER]
    for title, (text, items) in SECTIONS.items():
        blocks += [f"## {title}\n", f"{text}\n", *map(entry, items)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(blocks))


def entry(item: Item) -> str:
    """Describe a name of the page.

    Raises:
        KeyError: The module lacks the name.
    """
    place = ROOT / item.module.replace(".", "/")
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    if item.name == "*":
        return error_table(tree)
    defined = {node.name: node for node in tree.body if isinstance(node, DEFINITIONS)}
    if " " in item.name:
        return function_table(item.module, [defined[name] for name in item.name.split()])
    found = defined[item.name]
    heading = (
        f"### {item.name}\n\n    from {item.imported_from or item.module} import {item.name}\n"
    )
    body = class_lines(found) if isinstance(found, ast.ClassDef) else function_lines(found)
    return "\n".join([heading, *body, ""])


def function_lines(found: ast.FunctionDef) -> Iterator[str]:
    """Yield signature and docstring of a function."""
    yield f"```python\n{signature(found)}\n```\n"
    yield from prose(ast.get_docstring(found) or "")


def class_lines(found: ast.ClassDef) -> Iterator[str]:
    """Yield the docstring, the fields and the public methods of a class."""
    yield from prose(ast.get_docstring(found) or "")
    yield from field_table(found)
    for node in found.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            is_property = any(ast.unparse(each) == "property" for each in node.decorator_list)
            shown = node.name if is_property else one_line(node)
            yield f"- `{shown}`: {summary(node)}"


def field_table(found: ast.ClassDef) -> list[str]:
    """Return the annotated fields as a table; nothing without fields."""
    following = [*found.body[1:], None]
    rows = []
    for node, after in zip(found.body, following, strict=True):
        if not isinstance(node, ast.AnnAssign):
            continue
        default = "" if node.value is None else f"`{ast.unparse(node.value)}`"
        cells = (f"`{ast.unparse(node.target)}`", f"`{ast.unparse(node.annotation)}`", default)
        rows.append(row(*cells, string_of(after)))
    return ["", row("Field", "Type", "Default", "Meaning"), row(*["---"] * 4), *rows, ""] * bool(
        rows
    )


def string_of(node: ast.AST | None) -> str:
    """Return the text of a bare string on one line; empty for anything else."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(cleandoc(str(node.value.value)).split())
    return ""


def row(*cells: str) -> str:
    """Lay out a line of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def function_table(module: str, functions: Sequence[Definition]) -> str:
    """Return functions with their signatures and the first paragraphs of their docstrings."""
    names = ", ".join(each.name for each in functions)
    rows = [
        row(f"`{one_line(each)}`", summary(each))
        for each in functions
        if isinstance(each, ast.FunctionDef)
    ]
    imported = f"    from {module} import {names}\n"
    return "\n".join([imported, row("Function", "Result"), row(*["---"] * 2), *rows, ""])


def summary(found: Definition) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((ast.get_docstring(found) or "").partition("\n\n")[0].split())


def error_table(tree: ast.Module) -> str:
    """Return the classes of a module with the first paragraph of each docstring."""
    rows = [
        row(f"`{node.name}`", f"`{ast.unparse(node.bases[0])}`", summary(node))
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]
    return "\n".join([row("Error", "Is a", "Meaning"), row(*["---"] * 3), *rows, ""])


def signature(found: ast.FunctionDef) -> str:
    """Return the `def` line, with a line per argument if it is long."""
    line = one_line(found)
    if len(line) <= 88:
        return f"def {line}"
    arguments = re.sub(r", (?=\*|\w+:)", ",\n    ", ast.unparse(found.args))
    return f"def {found.name}(\n    {arguments},\n){returned(found)}"


def one_line(found: ast.FunctionDef) -> str:
    """Return name, arguments and result, without `self` or `cls`."""
    arguments = re.sub(r"^(self|cls)(, )?", "", ast.unparse(found.args))
    return f"{found.name}({arguments}){returned(found)}"


def returned(found: ast.FunctionDef) -> str:
    """Return the annotation of the result."""
    return "" if found.returns is None else f" -> {ast.unparse(found.returns)}"


def prose(docstring: str) -> Iterator[str]:
    """Yield a docstring as Markdown; `Args:` and `Raises:` become lists."""
    for block in docstring.replace("``", "`").split("\n\n"):
        head, _, rest = block.partition("\n")
        if head not in {"Args:", "Returns:", "Raises:", "Yields:"}:
            yield f"{block}\n"
            continue
        items = re.split(r"\n(?! )", cleandoc(rest))
        flat = [" ".join(each.split()) for each in items]
        named = head not in {"Returns:", "Yields:"}
        lines = [re.sub(r"^(\**\w+):", r"`\1`:", each) if named else each for each in flat]
        yield f"{head}\n\n" + "\n".join(f"- {line}" for line in lines) + "\n"


if __name__ == "__main__":
    about = (__doc__ or "").split("\n\n", maxsplit=1)[0]
    sys.exit(write_or_check(PAGE, page(), source="mindrl/", description=about))
