"""Inputs of a run's reward functions, and their trial before anything is started."""

from pathlib import Path

from mindrl.batch.prompts import Prompt
from mindrl.config.finding import Finding, broken, once
from mindrl.config.reward_columns import reward_kwargs
from mindrl.config.run import RunConfig
from mindrl.data.run_data import RunData, few_prompts
from mindrl.errors import ConfigError
from mindrl.observability.terminal import note
from mindrl.observability.units import quoted
from mindrl.rewards.inputs import RewardInputs
from mindrl.rewards.scorer import try_rewards

_MOST_SOURCES = 16


def reward_inputs(config: RunConfig, data: RunData, prints: Path | None = None) -> RewardInputs:
    """Return the functions' inputs except responses; `prints` is a file for their output."""
    return RewardInputs(
        kwargs=reward_kwargs(config),
        columns=data.columns,
        answer_column=config.megatron_training.answer_column or "",
        prints=prints,
    )


def warn_of_data(config: RunConfig, data: RunData) -> None:
    """Try the rewards, and print what is legal in rows and rewards but probably a mistake.

    Raises as `try_all_rewards`.
    """
    for warning in (*few_prompts(config, data), *try_all_rewards(config, data)):
        note(str(warning))


def try_all_rewards(config: RunConfig, data: RunData) -> list[Finding]:
    """Call each of the user's reward functions for the first row of each `data_source`.

    A run on answers in rows calls no function. Returns warnings that do not refuse the run.

    Raises:
        ConfigError: A function fails for an empty response, unless failures get the worst score, or
            leaves its declared range.
        RewardError: The process that calls them is lost.
    """
    if config.reads_answers:
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
