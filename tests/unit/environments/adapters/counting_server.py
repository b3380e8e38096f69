"""An MCP server of the tests: counts its calls, fails and ends on request."""

import os
import random
import subprocess
import sys

from mcp.server import MCPServer

server = MCPServer("counter")
calls = [0]


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers, and count the calls.

    Args:
        a: The first number.
        b: The second number.
    """
    calls[0] += 1
    return f"{a + b} in call {calls[0]}"


@server.tool()
def fail() -> str:
    """Raise an error."""
    raise ValueError("no luck")


@server.tool()
def end() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def draw() -> int:
    """Return a number that cannot be repeated."""
    return random.SystemRandom().randrange(1 << 60)


if __name__ == "__main__":
    if "--with-child" in sys.argv:
        subprocess.Popen(["sleep", "597"])
    server.run("stdio")
