"""How long a call may take, by those before it."""

import pytest

from mindrl.cluster.call_limits import CallLimits, Limit, kind_of

ROLLOUT = ("generate_sequences", 2, 64)


@pytest.fixture
def limits() -> CallLimits:
    return CallLimits(first_seconds=14_400, least_seconds=600)


def test_the_first_call_of_a_kind_has_the_limit_of_the_configuration(limits: CallLimits) -> None:
    limits.note(ROLLOUT, 200.0, 1000)
    evaluation = limits.of(("generate_sequences", 2, 4096))
    assert evaluation.seconds == 14_400
    assert evaluation.description == "14400 s (rl_config.worker_call_timeout_seconds)"


def test_a_later_call_may_take_five_times_the_longest_so_far(limits: CallLimits) -> None:
    for seconds, ticks in ((200.0, 1000), (300.0, 900), (100.0, 800)):
        limits.note(ROLLOUT, seconds, ticks)
    limit = limits.of(ROLLOUT)
    assert (limit.seconds, limit.ticks) == (1500, 5000)
    assert limit.description == "1500 s; the longest such call so far took 300.0 s"
    limits.note(("flush_metrics", 2, 0), 0.01, 0)
    assert limits.of(("flush_metrics", 2, 0)).seconds == 600


def test_a_call_that_is_late_but_has_done_no_more_than_usual_is_slow_and_not_over() -> None:
    late = Limit(seconds=0, description="", ticks=5000)
    assert not late.is_over(5000)
    assert late.is_over(5001)
    assert Limit(seconds=0, description="").is_over(0)
    assert not Limit(seconds=60, description="", ticks=5000).is_over(5001)


def test_calls_with_other_numbers_of_rows_are_of_another_kind() -> None:
    assert kind_of("generate_sequences", [([[1], [2]], "sampling"), ([[3]], "sampling")]) == (
        "generate_sequences",
        2,
        3,
    )
    assert kind_of("flush_metrics", [(), ()]) == ("flush_metrics", 2, 0)
