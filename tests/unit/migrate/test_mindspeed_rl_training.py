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


def test_a_schedule_that_mindspeed_rl_ends_early_is_told_of() -> None:
    style, warmup = "actor_config.lr_decay_style", "actor_config.lr_warmup_fraction"
    counts = {"rl_config.n_samples_per_prompt": 8, "rl_config.epochs": 2}
    result = imported({style: "cosine", warmup: 0.1, **counts})
    assert (result.values[style], result.values[warmup]) == ("cosine", 0.1)
    for key, what in ((style, "it"), (warmup, "the warm-up")):
        assert of(result, key).kind == "derived"
        assert f"{what} ends 16 times as early" in of(result, key).note
    plain = imported({style: "constant", warmup: 0.1, "rl_config.n_samples_per_prompt": 1})
    assert {of(plain, key).kind for key in (style, warmup)} == {"honoured"}
    rows = imported({style: "cosine", "megatron_training.stage": "sft", **counts})
    assert of(rows, style).kind == "honoured"


def test_dropout_that_the_file_omits_is_told_of() -> None:
    for key in ("actor_config.attention_dropout", "actor_config.hidden_dropout"):
        assert "0.1 in MindSpeed-RL" in of(imported({}), key).note
        assert of(imported({key: 0.0}), key).kind == "ignored"
