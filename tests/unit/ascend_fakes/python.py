"""Replacement for `python`: records the program that it should run, and really runs only queries.

So package look-up, free ports and the devices of a run are the script's own. PYTHON_IS_BARE
hides installed packages.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def write(**record: object) -> None:
    with Path(os.environ["CALLS"]).open("a") as file:
        file.write(json.dumps(record) + "\n")


def wait_for_ray() -> None:
    """Wait for the record of the fake Ray, as the real program waits for the real one."""
    while '"program": "ray"' not in Path(os.environ["CALLS"]).read_text():
        time.sleep(0.02)


def stop(*_: object) -> None:
    write(program="stopped", name=sys.argv[1])
    sys.exit(130)


if sys.argv[1] == "-c":
    bare = ["-I", "-S"] if "PYTHON_IS_BARE" in os.environ else []
    os.execv(sys.executable, [sys.executable, *bare, *sys.argv[1:]])
if sys.argv[1].endswith("count_devices.py"):
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
signal.signal(signal.SIGTERM, stop)
address = os.environ.get("RAY_ADDRESS")
write(program="python", arguments=sys.argv[1:], pids=[os.getpid()], address=address)
stage = "WAIT" if sys.argv[1].endswith("wait_for_devices.py") else "TRAINING"
if stage == "WAIT":
    wait_for_ray()
time.sleep(float(os.environ.get(f"{stage}_TAKES", "0")))
sys.exit(int(os.environ.get(f"{stage}_CODE", "0")))
