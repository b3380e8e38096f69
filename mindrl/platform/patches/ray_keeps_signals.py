"""Ray leaves the signal handlers of the driver unchanged.

Upstream: ray 2.60. Reason: `ray.init` replaces the handler of SIGTERM by one that exits with the
signal's number, so a signal during the start ended a run with code 15 and without its summary. No
longer needed when `ray.init` has an option for it: tests/unit/platform checks for the function.
"""

from ray._private import utils


def install() -> None:
    """Replace Ray's function by one that sets no handler."""
    utils.set_sigterm_handler = lambda _: None
