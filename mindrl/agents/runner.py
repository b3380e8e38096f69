"""Program that runs a user's agents in the interpreter of their choice; standard library only.

    python runner.py DESCRIPTOR

Orders and results are lines of JSON over the socket of that descriptor. The first order names the
function and its time limit; the others begin or cancel a conversation by its number. Each agent is
a task of one event loop, or has a thread if it is no coroutine. Python 3.10 or later.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import math
import numbers
import os
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_LAST_LINES = 6
_MOST_LETTERS = 1000


class _Agents:
    """The running conversations."""

    def __init__(
        self, agent: Callable[..., Any], seconds: float, connection: socket.socket
    ) -> None:
        self.agent, self.seconds, self.connection = agent, seconds, connection
        self.loop = asyncio.get_running_loop()
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.takes_seed = "seed" in inspect.signature(agent).parameters
        is_async = inspect.iscoroutinefunction
        self.is_coroutine = is_async(agent) or is_async(getattr(agent, "__call__", None))  # noqa: B004

    def obey(self, order: Mapping[str, Any]) -> None:
        """Begin or cancel a conversation."""
        if "cancel" in order:
            if (task := self.tasks.get(order["cancel"])) is not None:
                task.cancel()
            return
        number = order["begin"]
        self.tasks[number] = self.loop.create_task(self._converse(number, order))

    async def _converse(self, number: int, order: Mapping[str, Any]) -> None:
        """Run an agent within its time limit and report its result, unless it is cancelled."""
        task = self.loop.create_task(self._outcome(order))
        try:
            await asyncio.wait({task}, timeout=self.seconds)
            if not task.done():
                result: dict[str, Any] = {"error": f"it took more than {self.seconds:g} s"}
            elif task.cancelled():
                result = {"error": "it cancelled itself"}
            else:
                result = task.result()
            _send(self.connection, {"ended": number, **result})
        finally:
            # A plain function cannot be stopped: its session is over, so its next call fails.
            task.cancel()
            del self.tasks[number]

    async def _outcome(self, order: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: order[name] for name in ("base_url", "api_key", "row")}
        if self.takes_seed:
            given["seed"] = order["seed"]
        try:
            found = self.agent(**given) if self.is_coroutine else self._in_thread(given)
            returned = await found
            if inspect.isawaitable(returned):
                returned = await returned
            return {"reward": _reward(returned)}
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001
            return {"error": last_lines(error)}

    def _in_thread(self, given: Mapping[str, Any]) -> Awaitable[Any]:
        """Call a plain function in a thread of its own."""
        found: asyncio.Future[Any] = self.loop.create_future()

        def work() -> None:
            try:
                result, error = self.agent(**given), None
            except BaseException as raised:  # noqa: BLE001
                result, error = None, raised
            with suppress(RuntimeError):  # the loop has ended
                self.loop.call_soon_threadsafe(_settle, found, result, error)

        threading.Thread(target=work, daemon=True).start()
        return found


def _settle(found: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if found.done():
        return
    if error is None:
        found.set_result(result)
    else:
        # A future refuses StopIteration, and the loop ends by SystemExit.
        found.set_exception(_RaisedError(error))


class _RaisedError(Exception):
    """What a plain function raised."""


def _reward(returned: object) -> float | None:
    """Return the reward that an agent returned."""
    value: Any = returned["reward"] if isinstance(returned, Mapping) else returned
    if value is None:
        return None
    if getattr(value, "ndim", None) == 0:  # NumPy or tensor
        value = value.item()
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise TypeError(f"the agent returned {value!r}; need a finite number, a dict or None")
    return float(value)


def last_lines(error: BaseException) -> str:
    """Return the last lines of an error's traceback."""
    if isinstance(error, _RaisedError):
        (error,) = error.args
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return "\n".join("".join(lines).splitlines()[-_LAST_LINES:])[-_MOST_LETTERS:]


def agent_of(name: str) -> Callable[..., Any]:
    """Import the agent `file.py:function` or `package.module:function`."""
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py"):
        file = Path(place).expanduser().resolve()
        # As if the file was the program.
        sys.path.insert(0, str(file.parent))
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is {found!r}; need a function")
    return found  # type: ignore[no-any-return]


def _send(connection: socket.socket, values: Mapping[str, Any]) -> None:
    with suppress(OSError):
        connection.sendall(json.dumps(values).encode() + b"\n")


async def _serve(
    connection: socket.socket, lines: Any, agent: Callable[..., Any], seconds: float
) -> None:
    agents, loop = _Agents(agent, seconds, connection), asyncio.get_running_loop()
    is_over = asyncio.Event()

    def read() -> None:
        for line in lines:
            loop.call_soon_threadsafe(agents.obey, json.loads(line))
        loop.call_soon_threadsafe(is_over.set)

    threading.Thread(target=read, daemon=True).start()
    _send(connection, {"ready": True})
    await is_over.wait()
    # Agents may have threads that never end.
    os._exit(0)


def main(descriptor: int) -> None:
    """Serve until the connection ends."""
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    lines = connection.makefile("r", encoding="utf-8")
    order = json.loads(lines.readline())
    try:
        agent = agent_of(order["agent"])
    except BaseException as error:  # noqa: BLE001
        _send(connection, {"error": last_lines(error)})
        return
    asyncio.run(_serve(connection, lines, agent, order["seconds"]))


if __name__ == "__main__":
    main(int(sys.argv[-1]))
