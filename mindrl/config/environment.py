"""Section `environment_config`: tools, games and agents of a conversation."""

from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, Fraction, Mib, Seconds, TokenCount, Weight

_TurnCount = Annotated[int, Field(ge=1, le=10_000)]
_ProcessCount = Annotated[int, Field(ge=1, le=10_000)]


@dataclass(frozen=True, kw_only=True, config=SECTION)
class NamedEnvironment:
    """An environment of the rows that name it in their column `env`.

    `environment_config.environments` is a list of such sections; on the command line
    `environment_config.environments=[{name:calc,environment:my_tools.py:Calculator}]`.
    """

    name: Annotated[str, Field(min_length=1)]
    """The value of the column."""
    environment: str
    """Your class, as in `environment_config.environment`."""
    arguments: dict[str, Any] | None = None
    """Arguments of the class, by name."""


@dataclass(frozen=True, kw_only=True, config=SECTION)
class EnvironmentConfig:
    """Who answers the policy's turns, and limits of a conversation."""

    environment: str | None = None
    """Your class, as `file.py:Class` or `package.module:Class`: TRL's contract (`reset(**row)`,
    public methods are tools, `get_reward()`), or a text game with `step(text)`. None: `tools`
    alone."""
    arguments: dict[str, Any] | None = None
    """Arguments of the class, by name."""
    environments: tuple[NamedEnvironment, ...] = ()
    """Environments by name. A row without a name has `environment`, or else `tools` alone."""
    tools: tuple[str, ...] = ()
    """Your functions that the policy may call, as `file.py:function`. They have type hints and a
    docstring with a line for each argument."""
    agent: str | None = None
    """Your agent, as `file.py:function` or `package.module:function`, which asks the policy itself
    by OpenAI's protocol: `async def agent(base_url, api_key, row, model="policy")`, or a plain
    function. It returns its reward. It replaces `environment` and `tools`."""
    interpreter: str | None = None
    """Python that runs the agent, such as `/opt/agents/bin/python`. None: that of the run."""
    agent_timeout_seconds: Seconds = 600
    """Longest time of an agent's conversation, with its waits for the policy; it has failed when it
    is over."""
    tool_format: Literal["tagged_json", "plain_json"] = "tagged_json"
    """How the policy writes a tool call: JSON between <tool_call> tags (Qwen2.5, Qwen3, Hermes), or
    a turn of nothing but JSON (Llama 3.1 and later)."""
    history: Literal["kept", "rendered"] = "kept"
    """What the policy sees of earlier turns. `kept`: every token as it was sampled, so one sequence
    is a conversation. `rendered`: what the chat template writes of the whole conversation before
    each turn, as a chat server does; where it drops or rewrites something, such as earlier
    thoughts, a new sequence begins. Rewards and advantages count conversations."""
    sandbox: Literal["auto", "bubblewrap", "unshare"] = "auto"
    """Sandbox of tools that run code, such as `mindrl.environments.code:python`. auto: the first of
    both that works. A run with such a tool is refused if none works."""
    reward_weight: Weight = 1.0
    """Weight of the environment's rewards, which are added to those of reward functions."""
    max_turns: _TurnCount = 8
    """Most turns of the policy in a conversation."""
    max_turn_tokens: TokenCount | None = None
    """Most tokens of a turn. None: what the conversation leaves; the limit of a conversation after
    its prompt, with the environment's tokens, is `generate_config.sampling_config.max_tokens`."""
    max_result_tokens: TokenCount = 512
    """Most tokens of one tool result or message of the environment; longer ones are cut. Messages
    of an agent are not."""
    lock_step: bool = False
    """Whether all conversations wait for each other after each turn. Slower; on devices where the
    composition of a batch changes bits, the order of tools then changes none. A run whose
    conversations stay open over steps repeats to the bit only with it."""
    processes: _ProcessCount = 64
    """Most processes of environments at a time, one for each open conversation; as many again while
    the model is evaluated."""
    memory_mib: Mib = 1024
    """Memory that each process, and each that it starts, may write to, besides that of the imports.
    Reserved addresses and shared memory do not count."""
    start_timeout_seconds: Seconds = 60
    """Longest wait for the imports of your code, and for `reset`."""
    call_timeout_seconds: Seconds = 30
    """Longest wait for the answer to a turn. Then the process is killed, and the turn is repeated
    once."""
    max_failed_fraction: Fraction = 0.05
    """Fraction of a step's conversations that may fail with their environments. They are not
    trained on; more end the run."""
