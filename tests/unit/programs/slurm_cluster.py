"""A replacement for Slurm: `srun` runs each task on this machine, `scontrol` records requests."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
from ascend_node import ROOT, write_program
from program import kill_all, piped

SRUN = """\
while [[ "$1" == --* ]]; do shift; done
pids=() worst=0
for ((rank = 0; rank < SLURM_JOB_NUM_NODES; rank++)); do
    SLURM_NODEID="$rank" SLURM_PROCID="$rank" "$@" >"$CALLS.node$rank" 2>&1 &
    pids+=($!)
done
for pid in "${pids[@]}"; do
    code=0
    wait "$pid" || code=$?
    ((code <= worst)) || worst="$code"
done
exit "$worst"
"""
SCONTROL = """\
case "$1 $2" in
    "show hostnames") tr , '\\n' <<<"$3" ;;
    *) echo "$*" >>"$CALLS.scontrol" ;;
esac
"""
# A program that trains for a while, and stops as mindrl does.
TRAINING = """\
trap 'echo stopped; exit ${STOP_CODE:-130}' TERM
echo "node $NODE_RANK of $NNODES at $MASTER_ADDR: $*"
stat -c %a "$RAY_AUTH_TOKEN_PATH"
for ((tenth = 0; tenth < ${TENTHS:-0}; tenth++)); do sleep 0.1; done
exit "${CODE:-0}"
"""


class Cluster:
    """A machine that looks like a Slurm allocation to a batch file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("training", TRAINING)):
            (folder / f"{name}.sh").write_text(text)
            (folder / "bin").mkdir(exist_ok=True)
            write_program(folder / "bin" / name, f"bash {folder / name}.sh")
        tools = Path(sys.executable).parent
        self.environment = os.environ | {
            "CALLS": str(folder / "calls"),
            "PATH": f"{folder / 'bin'}:{tools}:{os.environ['PATH']}",
            "PYTHON": str(folder / "bin/training"),
            "RUN_FOLDER": str(folder / "run"),
            "SLURM_JOB_ID": "17",
            "SLURM_JOB_NODELIST": "127.0.0.1,node2",
            "SLURM_JOB_NUM_NODES": "1",
            "SLURM_SUBMIT_DIR": str(ROOT),
        }

    def start(self, batch: str, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        command = ["bash", f"examples/slurm/{batch}.sbatch", *arguments]
        self.started.append(piped(command, self.environment | settings, ROOT))
        return self.started[-1]

    def end(self) -> None:
        """Kill the batch files that run, with their tasks; the last ones are in other sessions."""
        for process in self.started:
            below = (
                psutil.Process(process.pid).children(recursive=True)
                if process.poll() is None
                else []
            )
            kill_all(below)
            process.kill()

    def run(self, batch: str, *arguments: str, **settings: str) -> tuple[int, str]:
        process = self.start(batch, *arguments, **settings)
        _, err = process.communicate(timeout=1200)
        return process.returncode, err

    def output(self, rank: int) -> str:
        file = self.folder / f"calls.node{rank}"
        return file.read_text() if file.exists() else ""

    def requests(self) -> list[str]:
        file = self.folder / "calls.scontrol"
        return file.read_text().splitlines() if file.exists() else []

    def wait_for(self, words: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while words not in self.output(0):
            assert self.started[-1].poll() is None, self.output(0)
            assert time.monotonic() < deadline, self.output(0)
            time.sleep(0.05)
