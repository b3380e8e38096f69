"""Replacement for `ray`: records how it was started, and leaves a child process when it stops."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ENVIRONMENT = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS", "HCCL_SOCKET_IFNAME")


def write(record: dict[str, object]) -> None:
    with Path(os.environ["CALLS"]).open("a") as file:
        file.write(json.dumps(record) + "\n")


def stop(*_: object) -> None:
    write({"program": "ray stopped"})
    sys.exit(0)  # leaves its child behind, as a crashing Ray would


signal.signal(signal.SIGTERM, stop)
child = subprocess.Popen(["sleep", "600"])
token = os.environ.get("RAY_AUTH_TOKEN_PATH")
write(
    {
        "program": "ray",
        "arguments": sys.argv[1:],
        "pids": [os.getpid(), child.pid],
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
        "token_mode": oct(Path(token).stat().st_mode & 0o777) if token else None,
    }
)
time.sleep(float(os.environ.get("RAY_LIVES", "600")))
