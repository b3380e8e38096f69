"""Stage times, with real sleeps."""

import time

import pytest

from mindrl.observability.timing import StageTimer


def test_a_stage_of_20_ms_entered_twice_adds_up_and_flush_forgets_it() -> None:
    timer = StageTimer()
    for _ in range(2):
        with timer("rollout"):
            time.sleep(0.02)
    metrics = timer.flush()
    assert list(metrics) == ["seconds/rollout"]
    # sleep never returns early; a busy machine may make it late.
    assert 0.04 <= metrics["seconds/rollout"] < 2
    assert timer.flush() == {}


def test_an_outer_stage_includes_its_inner_one() -> None:
    timer = StageTimer()
    with timer("step"):
        time.sleep(0.01)
        with timer("update"):
            time.sleep(0.02)
    metrics = timer.flush()
    assert metrics["seconds/update"] >= 0.02
    assert metrics["seconds/step"] >= metrics["seconds/update"] + 0.01


def test_a_stage_that_is_open_at_a_flush_counts_in_the_next_one() -> None:
    timer = StageTimer()
    with timer("step"):
        with timer("rollout"):
            pass
        assert list(timer.flush()) == ["seconds/rollout"]
    assert list(timer.flush()) == ["seconds/step"]


def test_a_stage_that_raises_is_timed_and_can_be_entered_again() -> None:
    timer = StageTimer()

    def failing_stage() -> None:
        with timer("update"):
            raise RuntimeError("out of memory")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            failing_stage()
    assert list(timer.flush()) == ["seconds/update"]


def test_a_stage_inside_itself_is_refused_since_it_would_count_twice() -> None:
    timer = StageTimer()
    with timer("step"), pytest.raises(AssertionError, match="'step' is already"), timer("step"):
        pass


def test_whoever_listens_hears_of_the_innermost_stage_whenever_it_is_another() -> None:
    heard: list[str] = []
    timer = StageTimer(heard.append)
    with timer("step"):
        with timer("rollout"):
            pass
        with timer("update"):
            pass
    assert heard == ["step", "rollout", "step", "update", "step", ""]
