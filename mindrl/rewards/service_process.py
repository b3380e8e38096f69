"""The caller's end of the reward service: start it, ask it, end it."""

import contextlib
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Pipe
from pathlib import Path

from mindrl.errors import MindrlError, RewardError
from mindrl.rewards.scores import Outcomes, Pairs, PoolPlan, Ranges

START_SECONDS = 300.0
"""For the imports of every reward function, on a slow disk."""
STOP_SECONDS = 5.0
GUARD_SECONDS = 10.0
"""For the guard to kill what is below it; beyond what it takes itself."""

_PROGRAM = """\
import sys
sys.path[:] = sys.argv[3:]
from mindrl.rewards.guard import fork_guarded
connection_descriptor, caller_pid = map(int, sys.argv[1:3])
fork_guarded(caller_pid, connection_descriptor)
from mindrl.rewards.service import serve
serve(connection_descriptor)
"""


class RewardService:
    """One running service. Its constructor returns at once; the imports go on over there."""

    def __init__(self, plan: PoolPlan) -> None:
        self._connection, theirs = Pipe()
        paths = [str(Path.cwd()) if path == "" else path for path in sys.path]
        descriptor = theirs.fileno()
        command = [sys.executable, "-c", _PROGRAM, str(descriptor), str(os.getpid()), *paths]
        with theirs:
            # A session of its own, which Ctrl-C does not reach. The guard is this very process.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[descriptor],
                start_new_session=True,
            )
        self._connection.send(plan)
        self.ranges: Ranges = {}
        """Of the scores, by function; known once something is scored."""

    def score(self, pairs: Pairs) -> Outcomes:
        """Score every response with every function.

        Raises:
            ConfigError: a reward function cannot be resolved.
            RewardError: the service did not start, or ended.
        """
        try:
            if not self.ranges:
                self.ranges = self._ready()
            self._connection.send(pairs)
            outcomes: Outcomes = self._connection.recv()
        except (EOFError, OSError) as error:
            self.kill()
            raise RewardError(
                f"the reward host ended with exit code {self._process.returncode}; "
                "its stderr may say why"
            ) from error
        return outcomes

    def stop(self) -> None:
        """Let the service reap its workers, then make sure that nothing is left."""
        with contextlib.suppress(EOFError, OSError):  # the end of the connection: it has left
            self._connection.send(None)
            while self._connection.poll(STOP_SECONDS):
                self._connection.recv()
        self.kill()

    def kill(self) -> None:
        """Let the guard kill all its descendants, and reap it; a second call does nothing."""
        self._process.terminate()
        try:
            self._process.wait(GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._connection.close()

    def _ready(self) -> Ranges:
        if not self._connection.poll(START_SECONDS):
            raise RewardError(
                f"rl_config.verifier_function: the imports took more than {START_SECONDS:.0f} s"
            )
        reply: Ranges | MindrlError = self._connection.recv()
        if isinstance(reply, MindrlError):
            raise reply
        return reply
