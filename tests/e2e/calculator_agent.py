"""An agent of its own process that knows OpenAI's protocol and nothing of training."""

import json
import urllib.request
from typing import Any

NUMBER = {"type": "integer", "description": "A number."}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": NUMBER, "b": NUMBER},
                "required": ["a", "b"],
            },
        },
    }
]


def solve(base_url: str, api_key: str, row: dict[str, Any], model: str = "policy") -> float:
    """Answer a question with a calculator; return the number of calls as the reward."""
    messages, used = [*row["prompt"]], 0
    for _ in range(3):
        message = completed(
            base_url, api_key, {"model": model, "messages": messages, "tools": TOOLS}
        )
        messages.append(message)
        calls = message.get("tool_calls") or []
        for call in calls:
            used += 1
            result = added(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not calls:
            break
    return used / 10


def completed(base_url: str, api_key: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{base_url}/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as reply:
        message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
    return message


def added(arguments: str) -> str:
    try:
        values = json.loads(arguments)
        return str(int(values["a"]) + int(values["b"]))
    except (ValueError, KeyError, TypeError) as error:
        return json.dumps({"error": str(error)})
