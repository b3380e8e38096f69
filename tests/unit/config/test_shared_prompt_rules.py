"""Where the samples of a prompt share it: where that pays, or as configured where it can be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mindrl.config.run import RunConfig
from mindrl.config.shared_prompts import asks_for_shared_prompts, saved_tokens
from mindrl.config.validate import findings

MakeConfig = Callable[..., RunConfig]

KEY, PROMPT, SAMPLES = (
    f"rl_config.{name}" for name in ("share_prompts", "max_prompt_length", "n_samples_per_prompt")
)
ANSWER = "generate_config.sampling_config.max_tokens"


def test_the_saving_is_that_of_the_tokens_of_a_group(run_config: MakeConfig) -> None:
    # 8 * (32 + 16) tokens become 32 + 8 * 16.
    config = run_config(Path("model"), {SAMPLES: 8, PROMPT: 32, ANSWER: 16})
    assert saved_tokens(config) == pytest.approx(384 / 160)


@pytest.mark.parametrize(
    ("history", "most", "saving"),
    # Turns have 8 * (2 * 32 + 8 + 16) tokens, which become 32 + 8 * (16 + 8).
    [("kept", 2, 384 / 160), ("rendered", 1, 384 / 160), ("rendered", 2, 704 / 224)],
)
def test_turns_whose_history_is_rendered_repeat_the_turns_before(
    history: str, most: int, saving: float, run_config: MakeConfig
) -> None:
    turns = {
        "environment_config.tools": ["tools.py:add"],
        "environment_config.history": history,
        "environment_config.max_turns": most,
    }
    config = run_config(Path("model"), {SAMPLES: 8, PROMPT: 32, ANSWER: 16} | turns)
    assert saved_tokens(config) == pytest.approx(saving)


@pytest.mark.parametrize(
    ("samples", "prompt", "answer", "shares"),
    [(8, 32, 16, True), (1, 32, 16, False), (8, 10, 50, False), (2, 30, 34, True)],
)
def test_by_default_prompts_are_shared_where_that_saves_a_sixth_of_the_tokens(
    samples: int, prompt: int, answer: int, shares: bool, run_config: MakeConfig
) -> None:
    sizes = {SAMPLES: samples, PROMPT: prompt, ANSWER: answer}
    assert asks_for_shared_prompts(run_config(Path("model"), sizes), "actor") == shares
    for asked in (True, False):
        assert (
            asks_for_shared_prompts(run_config(Path("model"), sizes | {KEY: asked}), "actor")
            == asked
        )


@pytest.mark.parametrize("asked", [None, True])
def test_a_reward_model_shares_no_prompt(asked: bool | None, run_config: MakeConfig) -> None:
    values = {SAMPLES: 8, PROMPT: 32, ANSWER: 16, KEY: asked, "reward_config.load": "judge"}
    assert not asks_for_shared_prompts(run_config(Path("model"), values), "reward")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rl_config.use_remove_padding": False}, "rl_config.use_remove_padding=false"),
        (
            {
                "actor_config.context_parallel_size": 2,
                "actor_config.context_parallel_algo": "megatron_cp_algo",
            },
            (
                "the context-parallel ranks of actor_config pass keys on in a ring; "
                "context_parallel_algo=ulysses_cp_algo shares prompts"
            ),
        ),
        (
            {
                "actor_config.moe_aux_loss_coeff": 0.01,
                "actor_config.moe_router_load_balancing_type": "seq_aux_loss",
            },
            "actor_config.moe_router_load_balancing_type=seq_aux_loss balances whole sequences",
        ),
    ],
)
def test_where_they_cannot_be_shared_true_is_refused_and_the_default_is_off(
    values: dict[str, Any], reason: str, run_config: MakeConfig
) -> None:
    values |= {"rl_config.actor_resource.num_npus": 2, PROMPT: 32, ANSWER: 16}
    assert not asks_for_shared_prompts(run_config(Path("model"), values), "actor")
    config = run_config(Path("model"), values | {KEY: True})
    (refused,) = [each for each in findings(config) if each.field == KEY]
    assert refused.text.startswith(f"{KEY}=true cannot be used: {reason}")
    assert refused.legal == (False, None)
    config = run_config(Path("model"), values | {KEY: False})
    assert not [each for each in findings(config) if each.field == KEY]
