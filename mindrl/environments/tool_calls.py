"""Read the tool calls that a policy wrote, in the form of its family."""

import re
from collections.abc import Callable, Mapping

from mindrl.environments.bounded_json import bounded_json
from mindrl.environments.messages import ToolCall

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)


def tagged_json(text: str) -> tuple[ToolCall, ...]:
    """Return the calls between <tool_call> tags, as Qwen2.5, Qwen3 and Hermes write them."""
    return tuple(_call(content) for content in _TAGGED.findall(text))


def plain_json(text: str) -> tuple[ToolCall, ...]:
    """Return the call that a whole turn consists of, as Llama 3.1 and later write it."""
    found = text.strip().removeprefix("<|python_tag|>")
    return (_call(found),) if found.startswith("{") else ()


TOOL_FORMATS: Mapping[str, Callable[[str], tuple[ToolCall, ...]]] = {
    "tagged_json": tagged_json,
    "plain_json": plain_json,
}
"""Readers by `environment_config.tool_format`."""


def _call(content: str) -> ToolCall:
    try:
        values = bounded_json(content)
    except ValueError as error:
        return ToolCall(name="", error=f"the call is no JSON: {error}")
    if not isinstance(values, dict) or not isinstance(values.get("name"), str):
        return ToolCall(name="", error="a call is an object with a name and arguments")
    arguments = values.get("arguments", values.get("parameters", {}))
    if not isinstance(arguments, dict):
        return ToolCall(name=values["name"], error="arguments are an object with a value for each")
    return ToolCall(name=values["name"], arguments=arguments)
