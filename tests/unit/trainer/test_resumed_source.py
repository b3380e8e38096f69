"""Open groups in a checkpoint, and the settings with which a run may continue from it.

Steps of two prompts, all after step 3: six prompts were trained on.
"""

from typing import Any

import pytest
from memory_roles import config

from mindrl.errors import CheckpointError
from mindrl.trainer.source.choice import source_state

ASYNCHRONOUS: dict[str, Any] = {"step_order": "asynchronous", "max_staleness": 2}
ONE_STEP_OFF: dict[str, Any] = {"step_order": "one_step_off"}
PARTIAL: dict[str, Any] = {"partial_rollout": True, "max_staleness": 2}
FILTERED: dict[str, Any] = {"filter_groups_enable": True}
ORDERS = (ASYNCHRONOUS, ONE_STEP_OFF, PARTIAL)


def state_of(*start_steps: int, without_signal: int = 0) -> dict[str, Any]:
    """Return open groups, by the steps that started them."""
    return {
        "next_prompt": 9,
        "without_signal": without_signal,
        "groups": [{"start_step": each} for each in start_steps],
    }


def continued(keys: dict[str, Any], state: dict[str, Any]) -> Any:
    return source_state(config(global_batch_size=2, **keys), 3, {"source": state})


@pytest.mark.parametrize("keys", [{}, *ORDERS, FILTERED, {**PARTIAL, **FILTERED}])
def test_where_no_group_is_open_every_order_continues_at_the_next_prompt(
    keys: dict[str, Any],
) -> None:
    assert continued(keys, {}) == {}
    assert continued(keys, state_of(without_signal=1)) == state_of(without_signal=1)


@pytest.mark.parametrize("keys", [*ORDERS, *({**each, **FILTERED} for each in ORDERS)])
def test_orders_that_keep_groups_open_continue_with_those_of_each_other(
    keys: dict[str, Any],
) -> None:
    assert continued(keys, state_of(3, 3)) == state_of(3, 3)


@pytest.mark.parametrize(
    ("keys", "state", "message"),
    [
        ({}, state_of(3, 3), "step 3 has 2 open groups of responses, 2 of .* more than 0 step"),
        (FILTERED, state_of(3), "1 of which"),
        # Step 4 uses the first two, step 5 the third.
        (ONE_STEP_OFF, state_of(2, 3, 3), "3 open groups .*, 2 of which .* more than 1 step"),
        ({**ASYNCHRONOUS, "max_staleness": 0}, state_of(3), "1 of which .* more than 0 step"),
    ],
)
def test_groups_that_would_get_too_old_are_refused(
    keys: dict[str, Any], state: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        continued(keys, state)
