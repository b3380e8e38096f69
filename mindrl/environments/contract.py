"""Interface of a user's environment, by TRL's contract or as a text game.

TRL's contract: a class with `reset(**row)`, which may return text for the last message of the
prompt, whose other public methods are tools, and which may have `get_reward()`. The conversation
ends with a turn that calls no tool. Plain functions are tools without a class. Instead of text,
tools, `reset` and `step` may return content blocks, which may hold pictures.

A class whose tools are known only at run time declares them: `tool_schemas(**arguments)`, a static
or class method with the arguments of the class, returns a JSON schema for each tool, and
`call_tool(name, arguments)` calls one. Its public methods are then no tools. An error of a tool is
a result that the policy reads, except `EnvironmentFailedError`, which ends the conversation.

A text game is a class with `reset(**row)` and `step(text)`, which returns an observation, a reward
and whether the game is over, or the five values of gymnasium.
"""

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from mindrl.config.returned_number import returned_number
from mindrl.environments.content_blocks import is_blocks, read_blocks
from mindrl.environments.messages import (
    Action,
    EnvironmentAnswer,
    EnvironmentMessage,
    Opening,
    ToolCall,
)
from mindrl.errors import MindrlError

_OF_CLASS = ("reset", "get_reward", "close")


class Environment(Protocol):
    """One conversation's environment, in its process."""

    def reset(self, row: Mapping[str, Any]) -> Opening:
        """Begin a conversation about a row; return what is appended to the prompt."""

    def step(self, action: Action) -> EnvironmentAnswer:
        """Answer a turn of the policy."""


class ToolEnvironment:
    """Tools: functions, or the public methods of an object."""

    def __init__(self, made: object | None, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Set the object, None without one, and all tools by name."""
        self.made, self.tools = made, functions
        self.call_tool: Callable[[str, dict[str, Any]], Any] | None = None
        """Calls the tools that a class declares."""
        if states_tools(type(made)):
            self.call_tool = getattr(made, "call_tool")  # noqa: B009

    def reset(self, row: Mapping[str, Any]) -> Opening:
        """Begin: see `Environment`."""
        if self.made is None:
            return Opening()
        return _opening(getattr(self.made, "reset")(**row))  # noqa: B009

    def step(self, action: Action) -> EnvironmentAnswer:
        """Return the results of all calls of a turn, or end the conversation without any.

        The last turn has the reward of the conversation.
        """
        messages, reward = tuple(map(self._message, action.calls)), 0.0
        if not action.calls or action.is_last:
            get_reward = getattr(self.made, "get_reward", None)
            found = 0.0 if get_reward is None else _awaited(get_reward())
            reward = number("get_reward", found)
        return EnvironmentAnswer(messages=messages, reward=reward, done=not action.calls)

    def _message(self, call: ToolCall) -> EnvironmentMessage:
        found = self._result(call)
        if is_blocks(found):
            text, pictures = read_blocks(found)
            return EnvironmentMessage(role="tool", text=text, pictures=pictures)
        text = found if isinstance(found, str) else json.dumps(found, default=str)
        return EnvironmentMessage(role="tool", text=text)

    def _result(self, call: ToolCall) -> Any:
        """Return the result of a call; a mistake of the policy is a result too."""
        if call.error:
            return _mistake(call.error)
        if call.name not in self.tools and self.call_tool is None:
            return _mistake(f"no tool {call.name}; there are: {', '.join(self.tools)}")
        try:
            if (tool := self.tools.get(call.name)) is not None:
                found = tool(**call.arguments)
            elif self.call_tool is not None:
                found = self.call_tool(call.name, {**call.arguments})
            return _awaited(found)
        except MindrlError:  # a sandbox that does not work is no mistake of the policy
            raise
        except Exception as error:  # noqa: BLE001
            return _mistake(f"{type(error).__name__}: {error}")


class TextGame:
    """An object with `step(text)`."""

    def __init__(self, made: object) -> None:
        """Set the object."""
        self.made: Any = made

    def reset(self, row: Mapping[str, Any]) -> Opening:
        """Begin: see `Environment`."""
        found = self.made.reset(**row)
        # Gymnasium returns an observation and a dictionary.
        return _opening(found[0] if isinstance(found, tuple) else found)

    def step(self, action: Action) -> EnvironmentAnswer:
        """Make a move; the observation is the next message of the user."""
        if action.is_over:
            return EnvironmentAnswer(done=True)
        found = self.made.step(action.text)
        if not isinstance(found, tuple) or len(found) not in {3, 5}:
            raise TypeError(
                f"step returned {type(found).__name__}; need (observation, reward, done), or the "
                "five values of gymnasium"
            )
        observation, reward = found[0], number("step", found[1])
        done = bool(found[2]) or (len(found) == 5 and bool(found[3]))
        message = EnvironmentMessage(role="user", text=str(observation))
        if is_blocks(observation):
            text, pictures = read_blocks(observation)
            message = EnvironmentMessage(role="user", text=text, pictures=pictures)
        return EnvironmentAnswer(messages=() if done else (message,), reward=reward, done=done)


def public_tools(kind: type) -> list[str]:
    """Return the names of the methods of a class that are tools."""
    found = inspect.getmembers(
        kind, lambda each: inspect.isfunction(each) or inspect.ismethod(each)
    )
    return [name for name, _ in found if not name.startswith("_") and name not in _OF_CLASS]


def states_tools(kind: type) -> bool:
    """Return whether a class declares the schemas of its tools."""
    return callable(getattr(kind, "tool_schemas", None))


def is_text_game(kind: type) -> bool:
    """Return whether a class is a text game."""
    return callable(getattr(kind, "step", None))


def environment_of(
    kind: type | None, functions: Sequence[Callable[..., Any]], arguments: Mapping[str, Any]
) -> Environment:
    """Create the environment of a conversation from the user's class and functions."""
    made = None if kind is None else kind(**arguments)
    if kind is not None and is_text_game(kind):
        return TextGame(made)
    names = [] if kind is None or states_tools(kind) else public_tools(kind)
    tools = {name: getattr(made, name) for name in names}
    return ToolEnvironment(made, tools | {each.__name__: each for each in functions})


def number(source: str, value: object) -> float:
    """Return a reward as a float: see `returned_number`.

    Raises:
        TypeError: It is no finite number, or too large.
    """
    try:
        return returned_number(value)
    except ValueError as error:
        raise TypeError(f"{source} {error}") from error


def _opening(value: Any) -> Opening:
    """Return what `reset` has returned."""
    if is_blocks(value):
        text, pictures = read_blocks(value)
        return Opening(text=text, pictures=pictures)
    if value is not None and not isinstance(value, str):
        need = "need text, content blocks or None"
        raise TypeError(f"reset returned {type(value).__name__}; {need}")
    return Opening(text=value)


def _mistake(text: str) -> str:
    return json.dumps({"error": text})


def _awaited(result: Any) -> Any:
    """Return a result, of an `async` function too."""

    async def finished() -> Any:
        return await result

    return asyncio.run(finished()) if inspect.isawaitable(result) else result
