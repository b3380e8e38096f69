"""A process like a worker: it prints its identity, and then makes progress or hangs.

Arguments: what it does, and its log.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from mindrl.observability.logs import redirect_output, stacks_on_signal
from mindrl.observability.progress import PROGRESS, tick
from mindrl.platform.endings import start_ticks


def gets_on() -> None:
    while True:
        tick()
        time.sleep(0.01)


def spins() -> None:
    while True:
        pass


def waits() -> None:
    threading.Event().wait()


def spins_where_others_do_not_matter() -> None:
    with PROGRESS.steady():
        spins()


def waits_for_its_writer() -> None:
    threading.Thread(target=gets_on).start()
    with PROGRESS.waiting():
        waits()


def spins_beside_its_writer() -> None:
    threading.Thread(target=gets_on).start()
    spins()


def holds_the_interpreter() -> None:
    ctypes.PyDLL(None).pause()


def is_stopped() -> None:
    subprocess.Popen(["sleep", "600"])
    os.kill(os.getpid(), signal.SIGSTOP)
    waits()


def waits_in_a_collective() -> None:
    import torch
    import torch.distributed as dist

    _join(0)
    dist.all_reduce(torch.zeros(1))


def spins_and_joins_no_collective() -> None:
    _join(1)
    spins()


def _join(rank: int) -> None:
    import torch.distributed as dist

    folder = Path(sys.argv[2]).parent
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    (folder / f"joined{rank}").touch()


if __name__ == "__main__":
    stacks_on_signal()
    page = PROGRESS.share()
    PROGRESS.begin()
    print(os.getpid(), start_ticks(os.getpid()), page, flush=True)
    redirect_output(Path(sys.argv[2]))
    globals()[sys.argv[1]]()
