"""Tools of an MCP server, which each conversation starts for itself.

environment: mindrl.environments.adapters.mcp:McpTools
arguments: {command: [python, server.py]}
"""

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mindrl.environments.adapters.foreign import library
from mindrl.environments.turn import current_turn
from mindrl.errors import EnvironmentFailedError

mcp = library("mcp", "'mcp>=2'")
anyio = library("anyio", "anyio")
_message = library("mcp.shared.message", "'mcp>=2'")

_LINE_BYTES = 1 << 24


class McpTools:
    """Tools of a server that is connected by its standard input and output."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the server."""
        self._loop = asyncio.new_event_loop()
        opened = self._loop.create_future()
        self._held = self._loop.create_task(_hold_open(command, opened))
        self._client: Any = self._loop.run_until_complete(opened)

    @staticmethod
    def tool_schemas(command: Sequence[str]) -> list[dict[str, Any]]:
        """Return the tools that a server lists.

        Raises:
            TimeoutError: It did not list them in time.
        """

        async def listed() -> list[dict[str, Any]]:
            ends = current_turn().ends
            async with asyncio.timeout_at(ends), mcp.Client(_server(command)) as client:
                page = await client.list_tools()
                tools = [*page.tools]
                while page.next_cursor is not None:
                    page = await client.list_tools(cursor=page.next_cursor)
                    tools += page.tools
                return [_schema(tool) for tool in tools]

        try:
            return asyncio.run(listed())
        except TimeoutError as error:
            limit = "environment_config.start_timeout_seconds"
            raise TimeoutError(f"the server listed no tools within {limit}") from error

    def reset(self, **_: Any) -> None:
        """Begin: the server is new."""

    def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        """Return the text of a tool's result.

        Raises:
            EnvironmentFailedError: The server has ended.
        """
        try:
            result = self._loop.run_until_complete(self._client.call_tool(name, arguments))
        except mcp.MCPError as error:
            if error.code == mcp.types.CONNECTION_CLOSED:
                raise EnvironmentFailedError("the MCP server has ended") from error
            return json.dumps({"error": error.message})
        parts = (part.text if part.type == "text" else f"[{part.type}]" for part in result.content)
        text = "\n".join(parts)
        return json.dumps({"error": text}) if result.is_error else text


def _schema(tool: Any) -> dict[str, Any]:
    known = {"name": tool.name, "description": tool.description or "", "parameters": {}}
    return {"type": "function", "function": {**known, "parameters": tool.input_schema}}


async def _hold_open(command: Sequence[str], opened: asyncio.Future[Any]) -> None:
    """Keep a client in one task, as its task groups require."""
    try:
        async with mcp.Client(_server(command)) as client:
            opened.set_result(client)
            await asyncio.Event().wait()
    except Exception as error:
        if opened.done():
            raise
        opened.set_exception(error)


@asynccontextmanager
async def _server(command: Sequence[str]) -> AsyncIterator[tuple[Any, Any]]:
    """Start a server in this process group, which is killed with the conversation.

    The transport of `mcp` gives a server a session of its own, which such a kill does not reach.
    """
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=_LINE_BYTES
    )
    assert process.stdin is not None, "it is a pipe"
    assert process.stdout is not None, "it is a pipe"
    reads, writes = process.stdout, process.stdin
    received_in, received = anyio.create_memory_object_stream(0)
    sent_in, sent = anyio.create_memory_object_stream(0)

    async def receive() -> None:
        async with received_in:
            while line := await reads.readline():
                await received_in.send(_read(line))

    async def send() -> None:
        async for each in sent:
            writes.write(
                each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            )
            await writes.drain()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        try:
            yield received, sent_in
        finally:
            writes.close()
            if process.returncode is None:
                process.kill()
            await process.wait()
            tasks.cancel_scope.cancel()


def _read(line: bytes) -> Any:
    """Return a message; the client reports invalid ones."""
    try:
        message = mcp.types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:
        return error
    return _message.SessionMessage(message)
