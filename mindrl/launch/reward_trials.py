"""What the reward functions of a run are given, and their trial before anything is started."""

from pathlib import Path

from mindrl.batch.prompts import Prompt
from mindrl.config.finding import Finding, broken, once
from mindrl.config.reward_columns import reward_kwargs
from mindrl.config.run import RunConfig
from mindrl.data.run_data import RunData
from mindrl.errors import ConfigError
from mindrl.observability.units import quoted
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


def try_all_rewards(config: RunConfig, data: RunData) -> list[Finding]:
    """Call each reward function of the user's for the first row of each `data_source`.

    Where answers are learned as they are, none is called. Returns what is no reason to refuse.

    Raises:
        ConfigError: One cannot serve: it fails for an empty response, where failures are not
            said to be the worst score, or leaves the range that it declares.
        RewardError: The process that calls them is lost.
    """
    if config.sft_config is not None:
        return []
    takes_failures = config.rl_config.on_reward_failure == "worst"
    refused: list[Finding] = []
    warned: list[Finding] = []
    weights, inputs = config.reward_weights, reward_inputs(config, data)
    by_key: dict[str, list[Prompt]] = {}
    for prompt in {prompt.source: prompt for prompt in reversed(data.train.prompts)}.values():
        by_key.setdefault(config.reward_key(prompt.source), []).append(prompt)
    for key, prompts in by_key.items():
        names = tuple(weights.get(prompts[0].source, weights[""]))
        seconds = config.rl_config.verifier_timeout
        tried = prompts[:_MOST_SOURCES]
        for remark in try_rewards(key, names, tried, inputs, seconds=seconds):
            found = broken(key, quoted(remark.function), remark.text)
            refuses = remark.refuses and not (remark.of_failure and takes_failures)
            (refused if refuses else warned).append(found)
    if refused:
        raise ConfigError("\n".join(map(str, once(refused))))
    return once(warned)
