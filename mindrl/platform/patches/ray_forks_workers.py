"""Ray starts workers through a program of mindrl, which may fork them.

Upstream: ray 2.60. Reason: a worker of Ray is a new interpreter that imports everything it needs,
and no option sets another program for all workers of a cluster (`py_executable` of a runtime
environment sets the interpreter, after an import of Ray). No longer needed when Ray forks workers,
or has an option for their program: tests/unit/platform checks for the name that is replaced.
"""

from pathlib import Path

from ray._private import ray_constants

from mindrl.platform import prefork_client


def install() -> None:
    """Replace the name of Ray's program, which Ray joins to its own folder."""
    # Joined to a folder, an absolute path stays unchanged.
    ray_constants.SETUP_WORKER_FILENAME = str(Path(prefork_client.__file__).resolve())
