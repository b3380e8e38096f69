"""The tools of a run, as the chat template shows them to the policy."""

import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import (
    DocstringParsingException,
    TypeHintParsingException,
)

from mindrl.config.environment import EnvironmentConfig
from mindrl.config.own_functions import named_object
from mindrl.environments.contract import is_text_game, public_tools, states_tools
from mindrl.environments.row_tools import DEFAULT, RowTools
from mindrl.environments.turn import CodeTurn, begin_turn
from mindrl.errors import ConfigError

_KEY = "environment_config"


def tool_schemas(config: EnvironmentConfig) -> list[dict[str, Any]]:
    """Return the JSON schema of each tool, from its type hints and its docstring.

    Raises:
        ConfigError: The user's code cannot be imported, a tool is not documented, or a class cannot
            state its tools.
    """
    tools: dict[str, Callable[..., Any]] = {}
    stated: list[dict[str, Any]] = []
    if config.environment is not None:
        key = f"{_KEY}.environment"
        kind = named_object(key, config.environment)
        if not isinstance(kind, type) or not callable(getattr(kind, "reset", None)):
            raise ConfigError(f"{key}={config.environment!r} must be a class with reset(**row)")
        if is_text_game(kind):
            return []
        if states_tools(kind):
            stated = _stated(kind, config)
        else:
            tools = {name: getattr(kind, name) for name in public_tools(kind)}
    for name in config.tools:
        found: Any = named_object(f"{_KEY}.tools", name)
        if not callable(found) or not hasattr(found, "__name__"):
            raise ConfigError(f"{_KEY}.tools={name!r} must be a function")
        tools[found.__name__] = found
    return [*stated, *(_schema(name, tool) for name, tool in tools.items())]


def _stated(kind: Any, config: EnvironmentConfig) -> list[dict[str, Any]]:
    """Return the schemas that a class states, which knows when the time for it ends."""

    def stated() -> list[dict[str, Any]]:
        begin_turn(CodeTurn(ends=time.monotonic() + config.start_timeout_seconds))
        return [*kind.tool_schemas(**(config.arguments or {}))]

    try:
        return copy_context().run(stated)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{_KEY}.arguments={config.arguments}: {kind.__name__} cannot state its tools: "
            f"{type(error).__name__}: {error}"
        ) from error


def tools_of_rows(config: EnvironmentConfig) -> RowTools:
    """Return the tools that rows may have, by environment.

    Raises:
        ConfigError: As `tool_schemas`.
    """
    schemas = {}
    if config.environment is not None or config.tools or not config.environments:
        schemas[DEFAULT] = tool_schemas(config)
    for each in config.environments:
        of_name = replace(config, environment=each.environment, arguments=each.arguments)
        try:
            schemas[each.name] = tool_schemas(of_name)
        except ConfigError as error:
            raise ConfigError(f"{_KEY}.environments: {each.name}: {error}") from error
    return RowTools(schemas=schemas, has_agent=config.agent is not None)


def _schema(name: str, tool: Callable[..., Any]) -> dict[str, Any]:
    try:
        schema: dict[str, Any] = get_json_schema(tool)
    except (DocstringParsingException, TypeHintParsingException) as error:
        raise ConfigError(
            f"{_KEY}: the tool {name} needs type hints, and a docstring with a line for each "
            f"argument under Args: ({error})"
        ) from error
    return schema
