"""Client of the reward service: starts, calls and ends it."""

import contextlib
import subprocess
from collections.abc import Iterator
from multiprocessing.connection import Pipe

from mindrl.errors import MindrlError, RewardError
from mindrl.platform.endings import OutOfMemoryKills, ending
from mindrl.platform.guard import end_guarded, start_guarded
from mindrl.rewards.scores import Outcomes, PoolPlan, Ready, RowsByFunction

START_SECONDS = 300.0
"""Limit of the imports of all reward functions, on a slow disk."""
STOP_SECONDS = 5.0
GUARD_SECONDS = 10.0
"""Time for the guard to kill its descendants, in addition to its own limits."""

_SHELL = 128
"""A guard's exit code is 128 plus the number of the signal that ended the guarded process."""


class HostLostError(RewardError):
    """The process of the reward functions ended while it was needed."""


class RewardService:
    """One running service. Its constructor returns immediately; the imports run in its process."""

    def __init__(self, plan: PoolPlan) -> None:
        self._connection, theirs = Pipe()
        self._kills = OutOfMemoryKills.read()
        with theirs:
            descriptor = theirs.fileno()
            program = f"from mindrl.rewards.service import serve; serve({descriptor})"
            self._process = start_guarded(program, descriptor)
        self._connection.send(plan)
        self._facts: Ready | None = None

    def ready(self) -> Ready:
        """Wait until all functions are imported; return their fields and ranges.

        Raises:
            ConfigError: a reward function cannot be resolved.
            RewardError: the service did not start, or ended.
        """
        if self._facts is None:
            with self._loss_as_error():
                self._facts = self._ready()
        return self._facts

    def score(self, rows: RowsByFunction) -> Outcomes:
        """Score the responses of each function.

        Raises:
            ConfigError, RewardError: as `ready`.
        """
        self.ready()
        with self._loss_as_error():
            self._connection.send(rows)
            outcomes: Outcomes = self._connection.recv()
        return outcomes

    @property
    def is_up(self) -> bool:
        """Whether all functions were imported, so that a restart can succeed."""
        return self._facts is not None

    @contextlib.contextmanager
    def _loss_as_error(self) -> Iterator[None]:
        """Raise HostLostError if the service has ended."""
        try:
            yield
        except (EOFError, OSError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # The guard ends after the service, with its exit code.
                self._process.wait(GUARD_SECONDS)
            self.kill()
            code = self._process.returncode
            how = ending(_SHELL - code if code > _SHELL else code)
            memory = OutOfMemoryKills.read().since(self._kills)
            why = memory or "see its stderr for the reason"
            raise HostLostError(f"the reward host {how}; {why}") from error

    def stop(self) -> None:
        """Let the service reap its workers, then make sure that no process remains."""
        with contextlib.suppress(EOFError, OSError):  # end of the connection: the service has ended
            self._connection.send(None)
            while self._connection.poll(STOP_SECONDS):
                self._connection.recv()
        self.kill()

    def kill(self) -> None:
        """Let the guard kill all its descendants, and reap it; a second call has no effect."""
        end_guarded(self._process, GUARD_SECONDS)
        self._connection.close()

    def _ready(self) -> Ready:
        if not self._connection.poll(START_SECONDS):
            raise RewardError(
                f"rl_config.verifier_function: imports took more than {START_SECONDS:.0f} s"
            )
        reply: Ready | MindrlError = self._connection.recv()
        if isinstance(reply, MindrlError):
            raise reply
        return reply
