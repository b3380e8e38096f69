"""What the orders of steps are worth, in cases that can be counted by hand."""

from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mindrl.config.rl import RLConfig
from mindrl.errors import DataError
from mindrl.propose.decoding import Rates
from mindrl.propose.lengths import described, sampled_groups, stored_groups
from mindrl.propose.step_orders import Arrangement, Load, best_ways, ways, worth_of

RATES = Rates(engine_step=0.01, trained_token=0.001, switch=0.5, publish=0.25, at_a_time=64)
EQUAL = Load(groups=[[100] * 4], prompts=4)
"""16 responses of 100 tokens: 1 s of an engine, 1.6 s of a device that trains."""
TAIL = Load(groups=[[100] * 4] * 15 + [[100, 100, 100, 2000]], prompts=8)


def apart(order: str, age: int = 0, *, training: int = 1, rollout: int = 1) -> Arrangement:
    return Arrangement(
        order=order, max_staleness=age, training=training, rollout=rollout, is_apart=True
    )


def test_with_equal_lengths_a_step_in_turns_is_the_sum_of_its_parts() -> None:
    shared = worth_of(EQUAL, RATES, Arrangement(order="in_turns", training=2, rollout=2))
    assert shared.step_seconds == pytest.approx(1.0 + 1.6 / 2 + 0.5)
    separate = worth_of(EQUAL, RATES, apart("in_turns"))
    assert separate.step_seconds == pytest.approx(1.0 + 1.6 + 0.25)
    assert separate.sequences_per_second == pytest.approx(16 / 2.85)
    assert separate.idle_rollout == pytest.approx(1 - 1.0 / 2.85)
    assert separate.idle_training == pytest.approx(1 - 1.6 / 2.85)
    assert (separate.staleness, separate.oldest) == (0, 0)


def test_one_step_off_a_step_is_the_longer_of_both_sides() -> None:
    for training, seconds in ((1, 1.6), (4, 1.0)):
        found = worth_of(EQUAL, RATES, apart("one_step_off", training=training))
        assert found.step_seconds == pytest.approx(seconds + 0.25)
        assert (found.staleness, found.oldest) == (1, 1)


def test_useful_is_what_full_batches_would_take() -> None:
    """64 at a time: a token takes 0.01 / 64 of a replica and 0.001 of a device that trains."""
    found = worth_of(EQUAL, RATES, apart("in_turns"))
    assert found.useful == pytest.approx(1600 * (0.01 / 64 + 0.001) / (2 * 2.85))


def test_a_replica_of_two_devices_has_both_of_them_waiting() -> None:
    rates = Rates(engine_step=0.01, trained_token=0.001, replica_devices=2)
    found = worth_of(EQUAL, rates, apart("in_turns", rollout=4))
    assert found.step_seconds == pytest.approx(1.0 + 1.6)
    assert found.idle_rollout == pytest.approx(1 - 1.0 / 2.6)


def test_where_a_step_costs_by_the_sequence_it_does_so() -> None:
    rates = Rates(engine_step=0.01, sequence_step=0.002, trained_token=0.001)
    found = worth_of(EQUAL, rates, apart("in_turns"))
    assert found.step_seconds == pytest.approx(100 * 16 * 0.002 + 1.6)
    more = Rates(engine_step=0.01, sequence_more=0.002, trained_token=0.001)
    found = worth_of(EQUAL, more, apart("in_turns"))
    assert found.step_seconds == pytest.approx(100 * (0.01 + 16 * 0.002) + 1.6)


def test_training_takes_its_time_however_few_tokens_it_has_and_however_many_devices() -> None:
    rates = Rates(engine_step=0.01, trained_token=0.001, update=0.7)
    for training in (1, 2):
        found = worth_of(EQUAL, rates, apart("in_turns", training=training))
        assert found.step_seconds == pytest.approx(1.0 + 0.7 + 1.6 / training)
        assert found.idle_training == pytest.approx(1.0 / found.step_seconds)


def test_new_weights_and_groups_that_are_whole_wait_for_the_end_of_a_round() -> None:
    """One response of 100 tokens a step, 1 s to draw and 0.5 s to train on; two are under way.

    Every other step finds one whole, and trains while 50 tokens of the other are drawn: the round
    of 64 steps ends 0.14 s behind the update. The next one waits for the other 36 of those, which
    are seen behind 64 steps too, for the new one goes on; the update hides what is left of that.
    """
    rates = Rates(engine_step=0.01, trained_token=0.005, publish=0.25)
    load = Load(groups=[[100]], prompts=1)
    for round_steps, seconds in ((1, (0.5 + 0.5 + 0.5) / 2), (64, (0.64 + 0.64 + 0.5) / 2)):
        way = replace(apart("asynchronous", 1), round_steps=round_steps)
        assert worth_of(load, rates, way).step_seconds == pytest.approx(seconds + 0.25)


def test_responses_to_a_prompt_are_shared_out_in_turns_and_stay_together_ahead() -> None:
    """Four responses, two replicas: steps of two sequences on each, or of four on one."""
    rates = Rates(engine_step=0.01, sequence_more=0.002)
    load = Load(groups=[[100] * 4], prompts=1)
    for order, seconds in (("in_turns", 100 * 0.014), ("one_step_off", 100 * 0.018)):
        found = worth_of(load, rates, apart(order, rollout=2))
        assert found.step_seconds == pytest.approx(seconds)


def test_rounds_are_as_long_as_those_of_a_run_that_says_nothing_of_them() -> None:
    defaults = {each.name: each.default for each in fields(RLConfig)}
    assert apart("asynchronous", 1).round_steps == defaults["rollout_round_steps"]


def test_what_waits_for_room_on_a_replica_stays_there() -> None:
    rates = Rates(engine_step=0.01, at_a_time=1)
    load = Load(groups=[[100, 100, 10, 10]], prompts=1)
    found = worth_of(load, rates, apart("in_turns", rollout=2))
    assert found.step_seconds == pytest.approx(2.0)


def test_what_a_step_reads_of_the_cache_grows_with_the_responses() -> None:
    """16 sequences of 10 tokens of prompt: steps read 16 x (10 + 0 .. 99) tokens."""
    rates = Rates(engine_step=0.01, context_token=1e-5, prompt_token=1e-3)
    load = Load(groups=[[100] * 4], prompts=4, prompt_tokens=10)
    found = worth_of(load, rates, apart("in_turns"))
    read = 16 * sum(10 + step for step in range(100))
    assert found.step_seconds == pytest.approx(1.0 + read * 1e-5 + 16 * 10 * 1e-3)


def test_more_than_there_is_room_for_waits() -> None:
    rates = Rates(engine_step=0.01, at_a_time=8)
    assert worth_of(EQUAL, rates, apart("in_turns")).step_seconds == pytest.approx(2.0)


@pytest.mark.parametrize("age", [0, 1, 2, 4])
def test_no_age_is_beyond_its_bound_and_a_long_tail_gains_with_it(age: int) -> None:
    """One response of 64 is 20 times as long as the others."""
    turns = worth_of(TAIL, RATES, apart("in_turns", training=4))
    for way in (
        apart("asynchronous", age, training=4),
        Arrangement(order="partial", max_staleness=age, training=5, rollout=5),
    ):
        found = worth_of(TAIL, RATES, way)
        assert found.oldest <= age
        if way.is_apart and age == 0:
            assert found.step_seconds == pytest.approx(turns.step_seconds)
        if way.is_apart and age > 1:
            assert found.sequences_per_second > 1.5 * turns.sequences_per_second


def test_every_order_is_tried_with_every_split_and_the_best_comes_first() -> None:
    tried = [*ways(4, 2, [1, 2])]
    assert [(each.training, each.rollout) for each in tried if each.is_apart] == [(2, 2)] * 4
    simulated: list[Arrangement] = []
    found = best_ways(TAIL, RATES, [*ways(6, 1, [1, 2])], simulated.append)
    assert {*simulated} == {*ways(6, 1, [1, 2])}
    # On shared devices in turns and two of partial; apart in turns, one step off, and two.
    assert len(found) == 7
    shares = [worth.useful for _, worth in found]
    assert shares == sorted(shares, reverse=True)
    assert found[0][0].max_staleness == 2


def test_of_many_splits_those_around_the_best_of_a_sample_are_simulated() -> None:
    """A token takes 0.002 s of either side, and 24 replicas have 8 responses each."""
    rates = Rates(engine_step=1e-6, sequence_step=0.002, trained_token=0.002)
    load = Load(groups=[[10]], prompts=192, prompt_tokens=1)
    splits = [way for way in ways(48, 1, []) if way.order == "one_step_off"]
    simulated: list[Arrangement] = []
    [(best, _)] = best_ways(load, rates, splits, simulated.append, steps=3)
    # 16 of the 47, three apart; then two each at a distance of 2 and 1 from the best.
    assert len({*simulated}) == len(simulated) <= 16 + 2 + 2
    assert (best.training, best.rollout) == (24, 24)


def test_lengths_have_the_mean_and_the_tail_that_were_asked_for() -> None:
    mean, p99, longest = described(sampled_groups(1000, 5000, 100_000, 8))
    assert mean == pytest.approx(1000, rel=0.03)
    assert p99 == pytest.approx(5000, rel=0.1)
    assert longest > 10_000
    assert described(sampled_groups(1000, 1000, 100_000, 8)) == (1000, 1000, 1000)
    assert described(sampled_groups(1000, 5000, 2000, 8))[2] == 2000


def test_lengths_of_stored_responses_are_read_group_by_group(tmp_path: Path) -> None:
    columns = {
        "group": [0, 0, 1, 1],
        "prompt_token_ids": [[1, 2], [1, 2], [3], [3]],
        "response_token_ids": [[7], [7, 8], [9, 9, 9], []],
    }
    pq.write_table(pa.table(columns), tmp_path / "step_000001.parquet")
    assert stored_groups(tmp_path) == ([[1, 2], [3, 0]], 1.5)


def test_a_folder_without_stored_responses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="keep_rollouts"):
        stored_groups(tmp_path)
    (tmp_path / "step_000001.parquet").write_text("no")
    with pytest.raises(DataError, match="step_000001"):
        stored_groups(tmp_path)
