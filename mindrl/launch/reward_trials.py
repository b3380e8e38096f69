"""What the reward functions of a run are given, and their trial before anything is started."""

from mindrl.config.reward_columns import reward_kwargs
from mindrl.config.run import RunConfig
from mindrl.data.run_data import RunData
from mindrl.rewards.inputs import RewardInputs
from mindrl.rewards.scorer import try_rewards


def reward_inputs(config: RunConfig, data: RunData) -> RewardInputs:
    """Return what functions take besides responses."""
    return RewardInputs(
        kwargs=reward_kwargs(config),
        columns=data.columns,
        answer_column=config.megatron_training.answer_column or "",
    )


def try_all_rewards(config: RunConfig, data: RunData) -> None:
    """Call each reward function of the user's for the first row of its `data_source`.

    Raises:
        ConfigError: One cannot serve.
        RewardError: The process that calls them is lost.
    """
    weights, inputs = config.reward_weights, reward_inputs(config, data)
    first = {prompt.source: prompt for prompt in reversed(data.train.prompts)}
    for source, prompt in first.items():
        names = tuple(weights.get(source, weights[""]))
        key, seconds = config.reward_key(source), config.rl_config.verifier_timeout
        try_rewards(key, names, prompt, inputs, seconds=seconds)
