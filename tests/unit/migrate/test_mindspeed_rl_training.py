"""Import of MindSpeed-RL's loss weights and of what its training does without a key."""

from typing import Any

import pytest
from mindspeed_rl_files import DAPO, imported, of

LEVEL, OURS = "rl_config.token_level_loss", "rl_config.loss_aggregation"
MICRO, DYNAMIC = "actor_config.micro_batch_size", "rl_config.use_dynamic_bsz"


@pytest.mark.parametrize(
    ("keys", "ours"),
    [
        ({MICRO: 1}, "sequence_mean"),
        ({MICRO: 4}, "token_mean"),
        ({MICRO: 1, DYNAMIC: True}, "token_mean"),
        ({**DAPO, MICRO: 1, LEVEL: True}, "sequence_mean"),
        ({**DAPO, MICRO: 4, LEVEL: True}, "token_mean"),
        ({**DAPO, MICRO: 4, DYNAMIC: True, LEVEL: False}, "sequence_mean"),
    ],
)
def test_a_micro_batch_of_one_sequence_makes_the_loss_a_mean_over_sequences(
    keys: dict[str, Any], ours: str
) -> None:
    result = imported(keys)
    assert result.values[OURS] == ours
    assert of(result, LEVEL).kind == ("renamed" if keys.get(LEVEL) is False else "derived")
