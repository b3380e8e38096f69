"""Rules for runs with environments. Imports no torch."""

from collections.abc import Iterator

from mindrl.config.environment import EnvironmentConfig
from mindrl.config.finding import Finding, broken, repeated
from mindrl.config.run import RunConfig

_SECTION = "environment_config"


def environment_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield what an environment lacks, and what cannot be combined with it."""
    section = config.environment_config
    if section is None:
        return
    names = [each.name for each in section.environments]
    if twice := repeated(names):
        field = f"{_SECTION}.environments"
        text = f"{field} has {', '.join(twice)} more than once; give each its own name"
        yield Finding(text, field, tuple(names))
    if section.agent is not None:
        yield from _agent(section)
    elif section.environment is None and not section.tools and not names:
        text = f"{_SECTION} names no environment, tools or agent; give one, such as {_SECTION}"
        yield Finding(f"{text}.tools=[tools.py:add]", f"{_SECTION}.environment")
    elif section.interpreter is not None:
        need = f"is for {_SECTION}.agent, which is missing; remove it"
        yield broken(f"{_SECTION}.interpreter", section.interpreter, need, None)
    if section.arguments and section.environment is None:
        text = f"{_SECTION}.arguments are arguments of a class; name it in {_SECTION}.environment"
        yield Finding(text, f"{_SECTION}.arguments")
    longest, turn = config.generate_config.sampling_config.max_tokens, section.max_turn_tokens
    if turn is not None and turn > longest:
        need = f"is more than generate_config.sampling_config.max_tokens={longest}"
        yield broken(f"{_SECTION}.max_turn_tokens", turn, need, longest)
    yield from _combinations(config)


def _agent(section: EnvironmentConfig) -> Iterator[Finding]:
    """Yield what cannot be combined with an agent, which has its own environment and tools."""
    for name, none in (("environment", None), ("environments", ()), ("tools", ())):
        if value := getattr(section, name):
            need = f"cannot be combined with {_SECTION}.agent, which has its own; remove one"
            yield broken(f"{_SECTION}.{name}", value, need, none)


def _combinations(config: RunConfig) -> Iterator[Finding]:
    rl = config.rl_config
    if not rl.use_dynamic_bsz:
        need = f"must be true with {_SECTION}: a step has fewer sequences if an environment fails"
        yield broken("rl_config.use_dynamic_bsz", rl.use_dynamic_bsz, need, True)
    if rl.has_baseline:
        need = f"answers each prompt greedily once, which {_SECTION} does not; another estimator"
        yield broken("rl_config.adv_estimator", rl.adv_estimator, need, "group_norm")
    if config.is_apart and config.environment_config and config.environment_config.lock_step:
        need = "needs engines on the training devices; replicas of their own do not wait for others"
        yield broken(f"{_SECTION}.lock_step", True, need, False)
    if config.reads_answers:
        section = "sft_config" if config.sft_config is not None else "preference_config"
        yield Finding(f"{_SECTION} has no effect with {section}; remove it", _SECTION)
