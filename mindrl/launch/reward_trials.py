"""What the reward functions of a run are given, and their trial before anything is started."""

from pathlib import Path

from mindrl.batch.prompts import Prompt
from mindrl.config.reward_columns import reward_kwargs
from mindrl.config.run import RunConfig
from mindrl.data.run_data import RunData
from mindrl.rewards.inputs import RewardInputs
from mindrl.rewards.scorer import try_rewards

_MOST_SOURCES = 16


def reward_inputs(config: RunConfig, data: RunData, prints: Path | None = None) -> RewardInputs:
    """Return what functions take besides responses; `prints` takes what they print."""
    return RewardInputs(
        kwargs=reward_kwargs(config),
        columns=data.columns,
        answer_column=config.megatron_training.answer_column or "",
        prints=prints,
    )


def try_all_rewards(config: RunConfig, data: RunData) -> None:
    """Call each reward function of the user's for the first row of each `data_source`.

    Where answers are learned as they are, none is called.

    Raises:
        ConfigError: One cannot serve.
        RewardError: The process that calls them is lost.
    """
    if config.sft_config is not None:
        return
    weights, inputs = config.reward_weights, reward_inputs(config, data)
    by_key: dict[str, list[Prompt]] = {}
    for prompt in {prompt.source: prompt for prompt in reversed(data.train.prompts)}.values():
        by_key.setdefault(config.reward_key(prompt.source), []).append(prompt)
    for key, prompts in by_key.items():
        names = tuple(weights.get(prompts[0].source, weights[""]))
        seconds = config.rl_config.verifier_timeout
        try_rewards(key, names, prompts[:_MOST_SOURCES], inputs, seconds=seconds)
