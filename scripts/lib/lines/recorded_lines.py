"""Notes each line of mindrl that a process executes, at once: one that is killed has noted all.

`RECORDED_LINES` names the file. A line of it: `npu` or `host` for what the process has, the file,
the number. What is forked from a process goes on with its notes.
"""

import os
import sys
import threading
from types import FrameType
from typing import Any

_ROOM = f"{os.sep}mindrl{os.sep}"


class _Recorder:
    """A trace function that looks into mindrl alone."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.device = "npu" if "ASCEND_HOME_PATH" in os.environ else "host"
        self.looked_at: dict[str, bool] = {}
        self.seen: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        path = frame.f_code.co_filename
        inside = self.looked_at.get(path)
        if inside is None:
            inside = self.looked_at[path] = _ROOM in path and "site-packages" not in path
        if not inside:
            return None
        if event == "line":
            self.note(path, frame.f_lineno)
        return self

    def note(self, path: str, number: int) -> None:
        if (path, number) not in self.seen:
            self.seen.add((path, number))
            short = "mindrl" + os.sep + path.rpartition(_ROOM)[2]
            os.write(self.file, f"{self.device} {short} {number}\n".encode())


def start() -> None:
    """Begin, in all threads that come."""
    recorder = _Recorder(os.environ["RECORDED_LINES"])
    threading.settrace(recorder)
    sys.settrace(recorder)
