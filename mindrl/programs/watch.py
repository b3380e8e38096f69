"""Show the live page of a run in the browser: `mindrl watch`."""

import argparse
from pathlib import Path

from mindrl.observability.terminal import say
from mindrl.programs.arguments import count, parser_of
from mindrl.programs.exits import exit_code

_EXAMPLE = """\
examples:
  mindrl watch outputs/2026-11-22/09-00-00
  mindrl watch outputs/2026-11-22/09-00-00 --port 8265

The page is served to this machine alone. To watch a run on a server, open a tunnel to it first:
  ssh -L 8265:127.0.0.1:8265 SERVER
and there: mindrl watch RUN --port 8265. Ctrl-C ends the server; the run goes on.
"""


def watch(name: str = "mindrl watch") -> int:
    """Serve the page of the runs named on the command line; returns the exit code."""
    about = "Serve the page of a run on loopback. It asks for what is new every 5 seconds."
    parser = parser_of(name, about, _EXAMPLE)
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    port = "port (default: one that is free)"
    add("--port", type=lambda text: count(text, most=65535), default=0, metavar="N", help=port)
    host = "address to listen at (default: %(default)s, this machine alone)"
    add("--host", default="127.0.0.1", metavar="HOST", help=host)
    return exit_code(lambda: _watch(parser.parse_args()))


def _watch(options: argparse.Namespace) -> int:
    # Imported late: --help does not need it.
    from mindrl.report.server import PageServer  # noqa: PLC0415

    with PageServer(options.runs, host=options.host, port=options.port) as server:
        say(f"open {server.url}", "Ctrl-C ends the server; the run goes on.")
        server.read_ahead()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
