"""The environments or agents of a run, from its configuration."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

from mindrl.agents.chat import RunSampling
from mindrl.agents.host import AgentHost
from mindrl.agents.routes import AgentCallLimits, AgentRoutes, PolicyText
from mindrl.agents.runner_process import AgentSpec
from mindrl.agents.sessions import Sessions
from mindrl.config.environment import EnvironmentConfig
from mindrl.config.run import RunConfig
from mindrl.data.agent_chat import AgentChat
from mindrl.data.run_data import RunData
from mindrl.environments.host import EnvironmentHost, Limits
from mindrl.environments.process import EnvironmentSpec

_PICTURES_BYTES = 32 << 20
"""Largest answer with pictures; in a message they have four thirds of their bytes."""
_MORE_CALLS = 1000
"""Calls of an agent beyond its turns, such as those that wait at the same time."""


@contextmanager
def environments_of(
    config: RunConfig, data: RunData
) -> Iterator[EnvironmentHost | AgentHost | None]:
    """Yield the host that answers a run's turns, if any, and end its processes."""
    section = config.environment_config
    if section is None or not config.rolls_out:
        yield None
        return
    if section.agent is None:
        host: EnvironmentHost | AgentHost = _environments(section, data)
    else:
        host = _agents(config, section, data)
    try:
        yield host
    finally:
        host.close()


def _environments(section: EnvironmentConfig, data: RunData) -> EnvironmentHost:
    spec = EnvironmentSpec(
        environment=section.environment,
        environments={each.name: asdict(each) for each in section.environments},
        tools=section.tools,
        arguments=section.arguments or {},
        memory_bytes=section.memory_mib << 20,
        sandbox=section.sandbox,
        call_seconds=section.call_timeout_seconds,
    )
    limits = Limits(
        processes=section.processes,
        start_seconds=section.start_timeout_seconds,
        call_seconds=section.call_timeout_seconds,
    )
    if data.images is not None:
        limits = replace(limits, answer_bytes=_PICTURES_BYTES)
    return EnvironmentHost(spec=spec, limits=limits)


def _agents(config: RunConfig, section: EnvironmentConfig, data: RunData) -> AgentHost:
    sampling = config.generate_config.sampling_config
    limits = AgentCallLimits(
        context_tokens=config.rl_config.max_prompt_length + sampling.max_tokens,
        answer_tokens=section.max_turn_tokens or sampling.max_tokens,
        vocabulary=len(data.tokenizer),
        # The run ends a conversation at the call after its last turn, so it must receive that call.
        calls=section.max_turns + _MORE_CALLS,
    )
    # A message that does not fit is refused with its prompt, and never cut.
    chat = AgentChat(data.tokenizer, data.stop_token_ids, limits.context_tokens)
    routes = AgentRoutes(
        sessions=Sessions(limits.calls),
        text=PolicyText(
            render=chat.render,
            after_turn=chat.after_turn,
            decode=chat.decode,
            encode=chat.encode,
            end=chat.end,
        ),
        sampling=RunSampling(
            values={"temperature": sampling.temperature, **sampling.truncation()},
            stop_token_ids=data.stop_token_ids,
        ),
        limits=limits,
        tool_format=section.tool_format,
    )
    assert section.agent is not None, "the run has an agent"
    spec = AgentSpec(
        agent=section.agent,
        interpreter=section.interpreter,
        seconds=section.agent_timeout_seconds,
        start_seconds=section.start_timeout_seconds,
        conversations=section.processes,
    )
    return AgentHost(spec, routes)
