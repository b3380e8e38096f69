"""What is under way in a checkpoint, and the runs of another order of steps that may go on with it.

Steps of two prompts, all behind step 3: six prompts were trained on.
"""

from typing import Any

import pytest
from memory_roles import config

from mindrl.errors import CheckpointError
from mindrl.trainer.resumed_groups import gathering_state

ASYNCHRONOUS: dict[str, Any] = {"step_order": "asynchronous", "max_staleness": 2}
ONE_STEP_OFF: dict[str, Any] = {"step_order": "one_step_off"}
PARTIAL: dict[str, Any] = {"partial_rollout": True, "max_staleness": 2}
FILTERED: dict[str, Any] = {"filter_groups_enable": True}


def pool(*born: int) -> dict[str, Any]:
    """Return groups that are under way, by the steps that began them."""
    return {"place": 6 + len(born), "groups": [{"born": each} for each in born]}


def taken(keys: dict[str, Any], state: dict[str, Any]) -> Any:
    return gathering_state(config(global_batch_size=2, **keys), 3, {"gathering": state})


@pytest.mark.parametrize("keys", [{}, ASYNCHRONOUS, ONE_STEP_OFF, PARTIAL, FILTERED])
def test_where_nothing_is_under_way_every_order_goes_on(keys: dict[str, Any]) -> None:
    assert taken(keys, {}) == {}
    # Whoever does not know such a state has no use for it: it begins behind six prompts.
    knows = {"step_order", "partial_rollout"} & keys.keys()
    assert taken(keys, pool()) == (pool() if knows else {})
    assert taken(keys, {"place": 6, "without_signal": 0}) in (
        {},
        {"place": 6, "without_signal": 0},
    )


def test_orders_that_keep_groups_under_way_go_on_with_those_of_each_other() -> None:
    for keys in (ASYNCHRONOUS, ONE_STEP_OFF, PARTIAL):
        assert taken(keys, pool(3, 3)) == pool(3, 3)
    assert taken(FILTERED, {"place": 9, "without_signal": 1}) == {"place": 9, "without_signal": 1}


@pytest.mark.parametrize(
    ("keys", "state", "said"),
    [
        ({}, pool(3, 3), "has begun 8 prompts, 2 of which are under way; with .*=in_turns"),
        (FILTERED, pool(3), "has begun 7 prompts, 1 of which"),
        (ASYNCHRONOUS, {"place": 9, "without_signal": 1}, "has begun 9 prompts, 0 of which"),
        # Step 4 takes the first two, step 5 the third.
        (ONE_STEP_OFF, pool(2, 3, 3), "3 groups .* under way, 2 of which .* more than 1 step"),
        ({**ASYNCHRONOUS, "max_staleness": 0}, pool(3), "1 of which .* more than 0 step"),
    ],
)
def test_what_could_not_be_trained_on_once_and_in_time_is_refused(
    keys: dict[str, Any], state: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        taken(keys, state)
