"""Ray starts a worker by a program of ours, which may have it forked.

Upstream: ray 2.60. Reason: a worker of Ray is a new interpreter that imports all it needs, and no
option names another program for all workers of a cluster (`py_executable` of a runtime environment
is that of the interpreter, behind an import of Ray). It is no longer needed when Ray forks workers,
or has an option for their program: tests/unit/platform checks for the name that is replaced.
"""

from pathlib import Path

from ray._private import ray_constants

from mindrl.platform import stem_shoot


def install() -> None:
    """Name our program in the place of Ray's own, in whose folder it is looked for."""
    # Joined to a folder, an absolute path stays what it is.
    ray_constants.SETUP_WORKER_FILENAME = str(Path(stem_shoot.__file__).resolve())
