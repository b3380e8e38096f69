"""Agents of the tests, as users write them: they know OpenAI's protocol and nothing of training.

Standard library only: any Python can run them.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from typing import Any


def post(base_url: str, api_key: str, messages: list[dict[str, str]], model: str = "policy") -> str:
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    content = json.dumps({"model": model, "messages": messages}).encode()
    request = urllib.request.Request(f"{base_url}/chat/completions", content, headers)
    with urllib.request.urlopen(request) as reply:
        text: str = json.load(reply)["choices"][0]["message"]["content"]
    return text


def plain(base_url: str, api_key: str, row: dict[str, Any], model: str = "policy") -> float:
    """Ask two turns; the reward is the number of letters of the last answer."""
    messages = [{"role": "user", "content": row["question"]}]
    for _ in range(2):
        said = post(base_url, api_key, messages, model)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "?"}]
    return float(len(said))


def impatient(base_url: str, api_key: str, row: dict[str, Any]) -> float:
    """Ask two turns as `plain`, each a second time after a client that did not wait."""
    address, path = urllib.parse.urlsplit(base_url), "/chat/completions"
    messages = [{"role": "user", "content": row["question"]}]
    for _ in range(2):
        content = json.dumps({"messages": messages})
        head = f"POST {address.path}{path} HTTP/1.1\r\nAuthorization: Bearer {api_key}\r\n"
        whole = f"{head}Content-Length: {len(content)}\r\n\r\n{content}".encode()
        with socket.create_connection((address.hostname, address.port)) as client:
            # The bytes and the end are sent together; what comes back is not used.
            client.send(whole, socket.MSG_MORE)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
        said = post(base_url, api_key, messages)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "?"}]
    return float(len(said))


async def asked_at_once(base_url: str, api_key: str, row: dict[str, Any]) -> dict[str, Any]:
    """Ask several questions at the same time."""
    questions = [[{"role": "user", "content": f"{row['question']} {at}"}] for at in range(4)]
    calls = [asyncio.to_thread(post, base_url, api_key, each) for each in questions]
    said = await asyncio.gather(*calls)
    return {"reward": len({*said}), "other": "kept by nobody"}


async def two_in_two_turns(base_url: str, api_key: str, row: dict[str, Any]) -> float:
    """Hold two conversations at the same time, that of the row's number a moment later."""

    async def talk(at: int) -> str:
        await asyncio.sleep(0.1 if at == row["later"] else 0.0)
        messages = [{"role": "user", "content": f"why? {at}"}]
        for _ in range(2):
            said = await asyncio.to_thread(post, base_url, api_key, messages)
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "?"}]
        return said

    return float(len("".join(await asyncio.gather(talk(0), talk(1)))))


class Scalar:
    """An array without dimensions, as NumPy and torch have."""

    ndim = 0

    def item(self) -> float:
        return 2.5


async def seeded(row: dict[str, Any], seed: int = -1, **_: str) -> float | None:
    """Return the seed, or do what the row asks for."""
    match row.get("do"):
        case "nothing":
            return None
        case "inf" | "1e300" as number:
            return float(number)
        case "array":
            return Scalar()  # type: ignore[return-value]
        case "sleep":
            await asyncio.sleep(100)
        case "block":
            while True:
                pass
        case str(other):
            leave(other)
    return float(seed)


def leave(how: str) -> None:
    match how:
        case "print":
            print("{" * 100_000)
        case "raise":
            raise ValueError("bad luck")
        case "exit":
            sys.exit(3)
        case "cancel":
            raise asyncio.CancelledError


def broken(row: dict[str, Any], **_: str) -> float:
    """Break as the row says."""
    match row.get("do"):
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "child":
            child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            return float(child.pid)
        case "exit":
            raise SystemExit(3)
        case "stop iteration":
            raise StopIteration
        case "sleep":
            threading.Event().wait(100)
    return 1.0


def python(**_: Any) -> dict[str, float]:
    """Return which Python this is."""
    return {"reward": sys.version_info[1] + 1000.0 * ("mindrl.agents" in sys.modules)}


not_a_function = 3
