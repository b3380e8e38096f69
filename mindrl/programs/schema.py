"""Print a JSON schema of configuration files for editors: `mindrl schema`."""

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter

from mindrl.algorithms.policy_loss_names import policy_loss_names
from mindrl.config.hydra_defaults import OPTIONAL_SIZES
from mindrl.config.load import sections
from mindrl.config.rl import ESTIMATORS
from mindrl.config.run import RunConfig
from mindrl.config.section import documented_fields
from mindrl.config.tracking import TRACKERS
from mindrl.programs.arguments import Program
from mindrl.programs.exits import print_json
from mindrl.rewards.functions import BUILTIN_REWARDS

Schema = dict[str, Any]
_DRAFT = "http://json-schema.org/draft-07/schema#"
REFERENCE = "Reference"
"""Definition of a value that is a reference to another key."""
_NULL: Schema = {"type": "null"}
_TEXT: Schema = {"type": "string"}
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_NAMES: Mapping[str, Iterable[str]] = {
    "adv_estimator": ESTIMATORS,
    "policy_loss": policy_loss_names(),
    "verifier_function": BUILTIN_REWARDS,
    "trackers": TRACKERS,
}
"""Names of mindrl's own functions by key; functions of the user have a colon."""
_OF_HYDRA: Schema = {
    "defaults": {
        "type": "array",
        "items": {"type": ["string", "object"]},
        "description": "Files that this one changes, in order: mindrl_defaults first, _self_ last.",
    },
    "hydra": {"type": "object", "description": "Options of Hydra, such as run.dir."},
}
_EXAMPLES = """\
example: mindrl schema > mindrl.schema.json

The first line of a configuration then names it:
  # yaml-language-server: $schema=mindrl.schema.json
"""


def configuration_schema() -> Schema:
    """Return the JSON schema (draft 7) of a configuration file as it is written.

    A file may omit any key, and any value may be a reference such as `${actor_config.lr}`.
    """
    whole: Schema = TypeAdapter(RunConfig).json_schema()
    parts: Schema = whole.pop("$defs")
    found = {"RunConfig": whole, **parts}
    in_lists = {*_listed(found.values())}
    for section in {*sections(RunConfig).values()}:
        schema, name = found[section.__name__], section.__name__
        keys: Schema = schema["properties"]
        for key, field in documented_fields(section).items():
            keys[key] = _key(key, keys[key], field.description or "")
        for unwanted in ("title", "description", *(() if name in in_lists else ("required",))):
            schema.pop(unwanted, None)
    reference = {"type": "string", "pattern": r"\$\{", "description": "Value of another key."}
    return {
        "$schema": _DRAFT,
        "title": "Configuration of a run of mindrl",
        **whole,
        "properties": _OF_HYDRA | whole["properties"],
        "$defs": parts | {REFERENCE: reference},
    }


def _listed(schemas: Iterable[Schema]) -> Iterator[str]:
    """Yield the names of sections that are entries of a list: these must be complete."""
    for key in (key for schema in schemas for key in schema["properties"].values()):
        if "$ref" in key.get("items", ()):
            yield key["items"]["$ref"].rpartition("/")[2]


def _key(name: str, schema: Schema, meaning: str) -> Schema:
    """Return the schema of a key, with its documented meaning."""
    about = " ".join(_LINK.sub(r"\1", meaning).replace("None", "null").split())
    if "$ref" in schema:
        return {"$ref": schema["$ref"], "description": about}
    own = ("title", "description", "default", "anyOf")
    plain = {word: value for word, value in schema.items() if word not in own}
    kinds = [_named(name, kind) for kind in schema.get("anyOf", [plain])]
    if name in OPTIONAL_SIZES and _NULL not in kinds:
        kinds.append(_NULL)
    if not any(kind == _TEXT or "$ref" in kind for kind in kinds):
        kinds.append({"$ref": f"#/$defs/{REFERENCE}"})
    one_or_more = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    default = {"default": schema["default"]} if "default" in schema else {}
    return {"description": about, **default, **one_or_more}


def _named(key: str, kind: Schema) -> Schema:
    """Replace text by the names that a key knows, or a place of the user's own function."""
    if kind.get("type") == "array" and key in _NAMES:
        return {**kind, "items": _named(key, kind["items"])}
    if key not in _NAMES or kind != _TEXT:
        return kind
    return {"anyOf": [{"enum": [*_NAMES[key]]}, {"type": "string", "pattern": "[:$]"}]}


def _add_options(_: argparse.ArgumentParser) -> None:
    """Add no option."""


def _print(_: argparse.Namespace) -> int:
    print_json(configuration_schema())
    return 0


PROGRAM = Program(
    about="Print a JSON schema of configuration files: editors then complete keys and values, show "
    "what a key means, and mark misspelt keys and wrong types.",
    examples=_EXAMPLES,
    add_options=_add_options,
    run=_print,
)
