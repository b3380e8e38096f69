"""Requests and messages of OpenAI's chat protocol, checked and compared."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindrl.agents.sessions import RefusedError
from mindrl.environments.bounded_json import bounded_json
from mindrl.environments.tool_calls import TOOL_FORMATS

Body = Mapping[str, Any]
_NEUTRAL: Mapping[str, float | None] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
}
"""Keys of a request that no run supports, with values that change nothing."""
_REFUSED: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stop": ("", []),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "modalities": (["text"],),
    "echo": (False,),
    "suffix": ("",),
    "function_call": (),
    "functions": ([],),
    "use_beam_search": (False,),
}
"""Keys that would change the sampling, with the values that do not; null does not either."""
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, kw_only=True)
class RunSampling:
    """A run's sampling, which requests cannot change."""

    values: Mapping[str, float | None]
    """Parameters of the distribution, by their names in requests: temperature and so on."""
    stop_token_ids: tuple[int, ...]

    def ignored(self, body: Body) -> str:
        """Return which values of a request are not used, for a header; empty if all are the run's.

        Raises:
            RefusedError: The request asks for something that cannot be ignored.
        """
        for name, allowed in _REFUSED.items():
            if (value := body.get(name)) is not None and value not in allowed:
                shown = " or ".join(json.dumps(each) for each in allowed)
                need = f"must be {shown}" if allowed else "is not supported"
                raise RefusedError(400, f"{name}={_shown(value)} {need}", param=name)
        found = [
            f"{name}={_shown(body[name])}"
            for name, value in {**_NEUTRAL, **self.values}.items()
            if body.get(name) is not None and body[name] != value
        ]
        stops = body.get("stop_token_ids")
        if stops is not None and not isinstance(stops, list):
            raise RefusedError(400, "stop_token_ids must be a list", param="stop_token_ids")
        if stops and not all(each in self.stop_token_ids for each in stops):
            found.append(f"stop_token_ids={_shown(stops)}")
        if not found:
            return ""
        return f"ignored: {', '.join(found)}; the run samples with its own values"


def messages_of(body: Body) -> list[dict[str, Any]]:
    """Return the messages of a request as a chat template takes them.

    Parts of text are joined, and arguments of tool calls are values instead of JSON.

    Raises:
        RefusedError: They are no list of text messages.
    """
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise RefusedError(400, "messages must be a list of messages", param="messages")
    return [_message(each, f"messages[{at}]") for at, each in enumerate(given)]


def tools_of(body: Body) -> list[dict[str, Any]]:
    """Return the tools that the policy may call.

    Raises:
        RefusedError: They are no list of functions.
    """
    given = body.get("tools") or []
    is_list = isinstance(given, list) and all(
        isinstance(each, dict) and isinstance(each.get("function"), dict) for each in given
    )
    if not is_list:
        need = 'tools must be a list of {"type": "function", "function": {...}}'
        raise RefusedError(400, need, param="tools")
    return [] if body.get("tool_choice") == "none" else given


def answer_message(text: str, tool_format: str | None, number: int) -> dict[str, Any]:
    """Return an answer of the policy as a message; calls of tools if it wrote some.

    An answer with a call that cannot be read stays text.
    """
    calls = () if tool_format is None else TOOL_FORMATS[tool_format](text)
    if not calls or any(call.error for call in calls):
        return {"role": "assistant", "content": text}
    before = text[: max(0, text.find("<tool_call>"))].strip()
    return {
        "role": "assistant",
        "content": before or None,
        "tool_calls": [
            {
                "id": f"call_{number}_{at}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for at, call in enumerate(calls)
        ],
    }


def fingerprints(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return a fingerprint of the first messages, for one, two and so on, with the tools."""
    digest = hashlib.sha256(_canonical(tools))
    found = []
    for message in messages:
        digest.update(_canonical(_compared(message)))
        found.append(digest.hexdigest())
    return found


def _compared(message: Mapping[str, Any]) -> list[object]:
    calls = message.get("tool_calls") or ()
    functions = [[each["function"]["name"], each["function"]["arguments"]] for each in calls]
    return [message["role"], message.get("content") or "", functions, message.get("name") or ""]


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode() + b"\n"


def _message(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or given.get("role") not in _ROLES:
        need = f"must be an object with a role of {', '.join(_ROLES)}"
        raise RefusedError(400, f"{where} {need}", param=where)
    found: dict[str, Any] = {"role": given["role"], "content": _text(given.get("content"), where)}
    for name in ("name", "tool_call_id"):
        if isinstance(given.get(name), str):
            found[name] = given[name]
    if calls := given.get("tool_calls"):
        found["tool_calls"] = _calls(calls, where)
    return found


def _text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [each.get("text") if isinstance(each, dict) else None for each in parts]
    words = [each for each in texts if isinstance(each, str)]
    if len(words) < len(texts):
        raise RefusedError(400, f"{where}.content must be text", param=where)
    return "".join(words)


def _calls(given: Any, where: str) -> list[dict[str, Any]]:
    try:
        return [_one_call(each) for each in given]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        need = 'must be a list of {"type": "function", "function": {"name", "arguments"}}'
        raise RefusedError(400, f"{where}.tool_calls {need}", param=where) from error


def _one_call(given: Any) -> dict[str, Any]:
    function = given["function"]
    arguments = function.get("arguments")
    values = bounded_json(arguments or "{}") if isinstance(arguments, str | None) else arguments
    made = {"name": str(function["name"]), "arguments": values}
    return {"id": str(given.get("id", "")), "type": "function", "function": made}


def _shown(value: object) -> str:
    shown = json.dumps(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
