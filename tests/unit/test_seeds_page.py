"""Pages that answer statements of others name tests and keys that exist."""

import ast
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.run import RunConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/seeds.md"
TEXT = PAGE.read_text("utf-8")
PAINS = (ROOT / "docs/how-to/ascend-pains.md").read_text("utf-8")


def defaults(config: RunConfig, key: str) -> Any:
    """Return the value of a key; raises AttributeError if there is none."""
    found: Any = config
    for part in key.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[^`]+)`", TEXT + PAINS))))
def test_each_test_of_the_pages_exists(name: str) -> None:
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    if function:
        assert function in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


def test_each_key_of_the_page_exists(run_config: Any) -> None:
    config = run_config(Path("model"))
    sections = {each.name for each in fields(config) if is_dataclass(getattr(config, each.name))}
    keys = {
        key
        for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?:: [^`]*)?`", TEXT)
        if key.split(".")[0] in sections
    }
    assert len(keys) > 15
    for key in keys:
        defaults(config, key)


def test_each_row_of_a_table_has_a_statement_an_answer_and_a_test() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", row.strip("|")) for row in rows]
    assert {len(row) for row in cells} == {3}
    for statement, answer, shown in cells:
        assert statement.strip()
        assert answer.strip()
        assert "`tests/" in shown or answer.strip() == "no" or shown.strip(" -") in ("Test", "")


def test_each_problem_of_ascend_users_has_a_test_or_is_left() -> None:
    rows = [line.strip("|").split("|") for line in PAINS.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + 15
    for _, answer, shown, left in rows[2:]:
        assert "`tests/" in shown or (answer.strip().startswith("no") and left.strip() == "all")
