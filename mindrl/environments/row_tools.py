"""The environment and the tools that a row of the data names, among those of the run."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from mindrl.config.finding import did_you_mean
from mindrl.environments.contract import Environment
from mindrl.environments.messages import Action, EnvironmentAnswer, Opening, ToolCall
from mindrl.observability.units import quoted

DEFAULT = ""
"""Name of the environment of rows that name none."""
_ENVIRONMENT, _TOOLS = "env", "tools"
"""Columns of the data."""
ToolSchema = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RowTools:
    """The tools of each environment of a run."""

    schemas: Mapping[str, Sequence[ToolSchema]]
    """JSON schemas of tools, by name of the environment."""
    has_agent: bool = False
    """Whether an agent reads the columns, which then mean what it takes them for."""

    def of(self, columns: Mapping[str, Any]) -> Sequence[ToolSchema]:
        """Return the tools that the conversation about a row has.

        Raises:
            ValueError: The row names something that the run does not have.
        """
        schemas = self.schemas[environment_name(columns, self.schemas)]
        if self.has_agent:
            return schemas
        if not schemas and not _are_names(columns.get(_TOOLS)):
            # The column means something else to a game.
            return schemas
        if (names := tool_names(columns)) is None:
            return schemas
        known = {_name(schema): schema for schema in schemas}
        for name in names:
            if name not in known:
                has = ", ".join(known) or "none"
                raise ValueError(
                    f"column {_TOOLS!r} names {quoted(name)}, which is no tool of its "
                    f"environment; tools: {has}{did_you_mean(name, known)}"
                )
        return [schema for name, schema in known.items() if name in names]


@dataclass(frozen=True)
class SomeTools:
    """An environment in which the policy may call only some tools."""

    inner: Environment
    names: Sequence[str]

    def reset(self, row: Mapping[str, Any]) -> Opening:
        """Begin: see `Environment`."""
        return self.inner.reset(row)

    def step(self, action: Action) -> EnvironmentAnswer:
        """Answer a turn; a call of another tool has an error as its result."""
        calls = tuple(map(self._allowed, action.calls))
        return self.inner.step(replace(action, calls=calls))

    def _allowed(self, call: ToolCall) -> ToolCall:
        if call.error or call.name in self.names:
            return call
        return replace(call, error=f"no tool {call.name}; there are: {', '.join(self.names)}")


def environment_name(columns: Mapping[str, Any], names: Collection[str]) -> str:
    """Return the name of a row's environment; `names` are those of the run.

    Raises:
        ValueError: The run has no such environment.
    """
    if {*names} == {DEFAULT}:
        # The column means something else in a run without names.
        return DEFAULT
    value = columns.get(_ENVIRONMENT)
    found = DEFAULT if value is None else value
    if not isinstance(found, str) or found not in names or value == DEFAULT:
        known = [name for name in names if name != DEFAULT]
        hint = did_you_mean(found, known) if isinstance(found, str) else ""
        raise ValueError(
            f"column {_ENVIRONMENT!r} holds {quoted(value)}; needed a name in "
            f"environment_config.environments ({', '.join(known)}){hint}"
        )
    return found


def tool_names(columns: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the tools that a row allows; None if it names none.

    Raises:
        ValueError: The column has no list of names.
    """
    names = columns.get(_TOOLS)
    if names is None:
        return None
    if not _are_names(names):
        raise ValueError(f"column {_TOOLS!r} holds {quoted(names)}; needed a list of tool names")
    return names


def _are_names(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _name(schema: ToolSchema) -> str:
    return str(schema.get("function", schema)["name"])
