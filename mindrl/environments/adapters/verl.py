"""Tools of verl, from its file of tools.

environment: mindrl.environments.adapters.verl:VerlTools
arguments: {tool_config_path: tools.yaml}
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mindrl.config.own_functions import named_object
from mindrl.environments.contract import number

_KEY = "environment_config.arguments.tool_config_path"


class VerlTools:
    """One instance of each tool for a conversation; rewards of calls and of instances are added."""

    def __init__(self, tool_config_path: str) -> None:
        """Construct the tools."""
        self._tools = {str(each.name): each for each in _tools(tool_config_path)}
        self._loop = asyncio.new_event_loop()
        self._instances: dict[str, str] = {}
        self._reward = 0.0

    @staticmethod
    def tool_schemas(tool_config_path: str) -> list[dict[str, Any]]:
        """Return the schemas that the tools have."""
        return [_dumped(each.get_openai_tool_schema()) for each in _tools(tool_config_path)]

    def reset(self, **row: Any) -> None:
        """Create an instance of each tool, with its arguments in the row's `tools_kwargs`."""
        given = row.get("tools_kwargs") or (row.get("extra_info") or {}).get("tools_kwargs") or {}
        for name, tool in self._tools.items():
            arguments = (given.get(name) or {}).get("create_kwargs") or {}
            # Tools read their arguments in one of two ways, by verl's version.
            made = self._finished(tool.create(**arguments, create_kwargs=arguments))
            self._instances[name] = made[0] if isinstance(made, tuple) else made

    def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the text of a tool's response."""
        if name not in self._tools:
            raise KeyError(f"no tool {name}; there are: {', '.join(self._tools)}")
        response, reward, _ = self._finished(
            self._tools[name].execute(self._instances[name], arguments)
        )
        self._reward += 0.0 if reward is None else number(name, reward)
        text = response if isinstance(response, str) else response.text
        return text or ""

    def get_reward(self) -> float:
        """Return the sum of all rewards, and release the instances."""
        for name, tool in self._tools.items():
            found = self._finished(tool.calc_reward(self._instances[name]))
            self._reward += number(name, found)
            self._finished(tool.release(self._instances[name]))
        return self._reward

    def _finished(self, call: Any) -> Any:
        return self._loop.run_until_complete(call)


def _tools(path: str) -> list[Any]:
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    return [_tool(each) for each in content["tools"]]


def _tool(given: Mapping[str, Any]) -> Any:
    module, _, name = given["class_name"].rpartition(".")
    kind: Any = named_object(_KEY, f"{module}:{name}")
    return kind(config=given.get("config") or {}, tool_schema=_schema(kind, given))


def _schema(kind: type, given: Mapping[str, Any]) -> Any:
    """Return a schema as the class's library types it, if the file has one."""
    if (schema := given.get("tool_schema")) is None:
        return None
    for base in kind.__mro__:
        typed = getattr(sys.modules[base.__module__], "OpenAIFunctionToolSchema", None)
        if typed is not None:
            return typed.model_validate(schema)
    return schema


def _dumped(schema: Any) -> dict[str, Any]:
    if isinstance(schema, Mapping):
        return dict(schema)
    dumped: dict[str, Any] = schema.model_dump(exclude_unset=True, exclude_none=True)
    return dumped
