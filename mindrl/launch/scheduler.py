"""Scheduler of two jobs: starts, watches and restarts them, without any model or group."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import killpg
from pathlib import Path
from signal import SIGKILL, SIGTERM

from mindrl.errors import ClusterError, StopRequestedError
from mindrl.observability.logs import tail
from mindrl.spool.folder import Spool
from mindrl.spool.leases import Leases

_CANNOT_RUN = 2
_ENDED = (0, 130)
"""Exit codes of a job that ended as requested."""


@dataclass(kw_only=True)
class Job:
    """One of the jobs, as a program."""

    name: str
    lease: str
    """Its lease while it lives, whichever process has started it."""
    command: Sequence[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    """Consecutive starts without anything new in the spool."""

    def start(self) -> None:
        """Start it in a separate session: it outlives its scheduler."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def code(self) -> int | None:
        """Return its exit code; None if it runs, or was not started here."""
        return None if self.process is None else self.process.poll()

    @property
    def runs(self) -> bool:
        """Whether it was started here, and has not ended."""
        return self.process is not None and self.process.poll() is None

    def end(self, grace_seconds: float) -> None:
        """End it and all its descendants."""
        if self.process is None or not self.runs:
            return
        self.process.send_signal(SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_seconds)
        with suppress(ProcessLookupError):
            killpg(self.process.pid, SIGKILL)
        self.process.wait()


@dataclass(kw_only=True)
class Scheduler:
    """Runs all jobs until the train job is done."""

    spool: Spool
    leases: Leases
    jobs: Mapping[str, Job]
    """The train job, `train`, and the rollout jobs."""
    most_starts: int
    """Maximum consecutive starts of a job without anything new in the spool."""
    notify: Callable[[str], None]
    _known: dict[str, object] = field(default_factory=dict)
    _last_status: str = ""

    def run(self, check_interrupt: Callable[[], None]) -> None:
        """Run the jobs concurrently.

        Raises:
            StopRequestedError: A stop was requested, and the jobs have been notified.
            ClusterError: A job cannot run, or ends repeatedly.
        """
        self._verify_done(check_interrupt)
        while not self._is_over():
            self._check_interrupt(check_interrupt)
            for job in self.jobs.values():
                self._keep(job)
            self.show()
            time.sleep(self.spool.limits.poll_seconds)
        self.show()

    def run_in_turns(self, check_interrupt: Callable[[], None]) -> None:
        """Run the jobs in turn, each until it would have to wait. Raises as `run`."""
        self._verify_done(check_interrupt)
        while not self.spool.progress().done:
            before = self._state()
            for job in sorted(self.jobs.values(), key=lambda job: job.name == "train"):
                while self._keep(job, in_turns=True):
                    self._check_interrupt(check_interrupt)
                    self.show()
                    time.sleep(self.spool.limits.poll_seconds)
            if self._state() == before:
                raise ClusterError(
                    f"{self.spool.root}: no progress after starting every job once; see their logs "
                    f"{', '.join(str(job.log) for job in self.jobs.values())}"
                )
        self.show()

    def show(self) -> None:
        """Report the progress of the jobs if it has changed."""
        far, there = self.spool.progress(), self.spool.records.answered()
        alive = ", ".join(job.name for job in self.jobs.values() if self._lives(job)) or "none"
        newest = max(self.spool.weights.versions(), default="none")
        ahead = f", up to prompt {there[-1].end}" if there else ""
        said = (
            f"train: at step {far.gathering}, saved {far.confirmed} | weights: {newest} | "
            f"records: {len(there)}{ahead} | alive: {alive}"
        )
        if said != self._last_status:
            self._last_status = said
            self.notify(said)

    def end(self, grace_seconds: float) -> None:
        """End the jobs that were started here and still run."""
        for job in self.jobs.values():
            job.end(grace_seconds)

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` until all jobs have ended by themselves."""
        deadline = time.monotonic() + seconds
        while any(map(self._lives, self.jobs.values())) and time.monotonic() < deadline:
            self.show()
            time.sleep(self.spool.limits.poll_seconds)

    def _verify_done(self, check_interrupt: Callable[[], None]) -> None:
        """Start the train job once if the spool is done already: it checks that this is its spool.

        It may also continue from an older checkpoint, and the spool is not done any more.
        """
        train, spool = self.jobs["train"], self.spool
        if not spool.progress().done or self._lives(train):
            return
        self.notify("starting train to verify its configuration and its checkpoints")
        train.start()
        while train.runs and spool.progress().done:
            self._check_interrupt(check_interrupt)
            time.sleep(spool.limits.poll_seconds)
        if train.code() not in (None, *_ENDED):
            raise ClusterError(
                f"{spool.root} is done, but train refuses it:\n{tail(train.log, lines=20)}"
            )

    def _check_interrupt(self, check_interrupt: Callable[[], None]) -> None:
        try:
            check_interrupt()
            self.spool.check_interrupt()
        except StopRequestedError:
            self.spool.send("stop")
            raise

    def _is_over(self) -> bool:
        return self.spool.progress().done and not any(job.runs for job in self.jobs.values())

    def _lives(self, job: Job) -> bool:
        return job.runs or bool(self.leases.living(job.lease))

    def _keep(self, job: Job, *, in_turns: bool = False) -> bool:
        """Start a job that should run but does not; return whether it runs.

        A job started by another scheduler counts as running while it has its lease.
        """
        if self._lives(job):
            return True
        code, job.process = job.code(), None
        if self.spool.progress().done or (in_turns and code in _ENDED):
            return False
        if code == _CANNOT_RUN:
            raise ClusterError(f"{job.name} cannot run:\n{tail(job.log, lines=20)}")
        state = self._state()
        job.starts = job.starts + 1 if self._known.get(job.name) == state else 1
        self._known[job.name] = state
        if job.starts > self.most_starts:
            raise ClusterError(
                f"{job.name} made no progress in {self.most_starts} starts in a row; last lines of "
                f"{job.log}:\n{tail(job.log, lines=20)}"
            )
        self.notify(f"starting {job.name}" + (f" again after exit code {code}" if code else ""))
        job.start()
        return True

    def _state(self) -> object:
        spool = self.spool
        answered, versions = spool.records.answered(), spool.weights.versions()
        return spool.progress(), spool.requests.all(), answered, versions
