"""Means and joins of metrics."""

import math

import pytest

from mindrl.observability.metrics import (
    Metrics,
    joined_metrics,
    mean_metrics,
    merge,
    nonfinite_keys,
    update_metrics,
)


def test_the_mean_of_1_and_3_is_2_for_each_name() -> None:
    parts = [{"loss": 1.0, "kl": 0.0}, {"kl": 0.5, "loss": 3.0}]
    assert mean_metrics(parts) == {"loss": 2.0, "kl": 0.25}


def test_a_nan_or_inf_in_one_part_stays_visible_in_the_mean() -> None:
    mean = mean_metrics([{"a": math.nan, "b": math.inf, "c": 1.0}, {"a": 1.0, "b": 1.0, "c": 2.0}])
    assert math.isnan(mean["a"])
    assert mean["b"] == math.inf
    assert nonfinite_keys(mean) == ("a", "b")


def test_opposite_infinities_give_nan_rather_than_an_exception() -> None:
    assert nonfinite_keys(mean_metrics([{"a": math.inf}, {"a": -math.inf}])) == ("a",)


def test_a_mean_is_over_the_parts_that_have_the_name() -> None:
    parts = [{"loss": 1.0, "kl": 0.5}, {"loss": 3.0}]
    assert mean_metrics(parts) == {"loss": 2.0, "kl": 0.5}
    assert mean_metrics([]) == {}


def test_merge_keeps_order_and_values_and_leaves_its_parts_alone() -> None:
    first = {"b": 1.0}
    merged = merge(first, {"a": math.inf}, {})
    assert list(merged.items()) == [("b", 1.0), ("a", math.inf)]
    assert first == {"b": 1.0}


def test_merge_refuses_a_name_given_twice_even_with_equal_values() -> None:
    with pytest.raises(AssertionError, match=r"\['loss'\]"):
        merge({"loss": 1.0}, {"kl": 0.0}, {"loss": 1.0})


def test_updates_that_were_not_taken_are_counted_and_enter_no_mean() -> None:
    taken = [{"loss": 1.0, "skipped": 0.0}, {"loss": 3.0, "skipped": 0.0}]
    skipped = {"loss": math.nan, "skipped": 1.0}
    assert update_metrics("critic", taken) == {"critic/loss": 2.0, "critic/skipped": 0.0}
    assert update_metrics("critic", [*taken, skipped, skipped]) == {
        "critic/loss": 2.0,
        "critic/skipped": 2.0,
    }
    assert update_metrics("update", [skipped]) == {"update/skipped": 1.0}


def test_memory_is_that_of_all_workers_with_the_number_of_the_worst() -> None:
    training = [{"memory/rss_bytes": each, "bytes/checkpoint": 2.0} for each in (5.0, 9.0, 1.0)]
    rollout: list[Metrics] = [{}, {"memory/rss_bytes": 7.0}]
    assert joined_metrics(training, rollout) == {
        "bytes/checkpoint": 6.0,
        "memory/workers": 3.0,
        "memory/rss_bytes_min": 1.0,
        "memory/rss_bytes_mean": 5.0,
        "memory/rss_bytes_max": 9.0,
        "memory/rss_bytes_worst_worker": 1.0,
        "memory/rollout_workers": 1.0,
        "memory/rollout_rss_bytes_min": 7.0,
        "memory/rollout_rss_bytes_mean": 7.0,
        "memory/rollout_rss_bytes_max": 7.0,
        "memory/rollout_rss_bytes_worst_worker": 4.0,
    }


def test_one_number_stands_for_the_ranks_of_the_slowest_replica() -> None:
    """Ranks 2 and 3 end together, within a hundredth; which is measured last is chance."""
    for last in (100.0, 100.2):
        seconds = (50.0, 50.1, 100.1, last)
        found = joined_metrics([{"seconds/generate": each} for each in seconds], [])
        assert found["throughput/idle_worst_worker"] == 2
        assert found["throughput/idle_mean"] == pytest.approx(1 - sum(seconds) / 4 / max(seconds))
