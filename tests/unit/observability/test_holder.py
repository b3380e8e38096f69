"""A process is recognised by its start in ticks since the boot."""

from dataclasses import replace

import psutil

from mindrl.observability.holder import Holder, this_machine, this_process

OWN = this_process("a run")


def test_a_process_runs_on_after_a_step_of_the_wall_clock() -> None:
    noted_before = replace(OWN, started=OWN.started - 3600)
    assert not noted_before.is_gone
    assert noted_before == OWN


def test_another_process_with_the_same_number_is_not_taken_for_it() -> None:
    assert OWN.start_ticks is not None
    assert replace(OWN, start_ticks=OWN.start_ticks - 1).is_gone
    assert replace(OWN, pid=2**22 - 1).is_gone


def test_records_of_older_versions_are_compared_by_the_wall_clock() -> None:
    own = psutil.Process()
    older = Holder(host=this_machine(), pid=own.pid, started=own.create_time(), what="a run")
    assert not older.is_gone
    assert replace(older, started=older.started - 60).is_gone
    assert replace(older, pid=2**22 - 1).is_gone
