"""When garbage is looked for: each case in a program of its own, which ends."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, gc
from mindrl.platform.garbage import collect_again, planning

atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 0))
with planning():
    print(gc.isenabled())
    {inside}
"""


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        pytest.param("pass", ["False", "True True"], id="a plan is not looked through"),
        pytest.param("collect_again()", ["False", "True False"], id="a run is, as ever"),
    ],
)
def test_what_is_planned_is_not_looked_through_unless_a_run_follows(
    inside: str, told: list[str]
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(inside=inside)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == told
