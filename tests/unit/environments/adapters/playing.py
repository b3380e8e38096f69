"""Whole conversations with an adapter, in real processes, and the same ones replayed."""

from collections.abc import Iterable, Mapping
from typing import Any

from mindrl.config.environment import EnvironmentConfig
from mindrl.environments.host import EnvironmentHost, Key, Limits
from mindrl.environments.messages import Action, EnvironmentAnswer, Failed, Opening, ToolCall
from mindrl.environments.process import EnvironmentSpec
from mindrl.environments.tools import tool_schemas

ADAPTERS = "mindrl.environments.adapters"
KEY, AGAIN = Key("training", 0, 0), Key("training", 0, 1)
LIMITS = Limits(processes=4, start_seconds=120.0, call_seconds=60.0)


def call(name: str, **arguments: object) -> Action:
    """Return a turn that calls one tool."""
    return Action(text="", calls=(ToolCall(name=name, arguments=arguments),))


def schemas(place: str, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools of an adapter, as the chat template shows them."""
    return tool_schemas(EnvironmentConfig(environment=place, arguments=dict(arguments)))


def played(
    place: str,
    arguments: Mapping[str, Any],
    turns: Iterable[str | Action],
    row: Mapping[str, Any] | None = None,
    seed: int = 7,
) -> tuple[str | None, list[EnvironmentAnswer]]:
    """Return the opening and all answers of a conversation, which a replay must bring back."""
    actions = [each if isinstance(each, Action) else Action(text=each) for each in turns]
    spec = EnvironmentSpec(environment=place, arguments=arguments)
    host = EnvironmentHost(spec=spec, limits=LIMITS)
    try:
        host.begin(KEY, seed, row or {})
        opening = answer_of(host)
        assert isinstance(opening, Opening), opening
        answers: list[EnvironmentAnswer] = []
        for action in actions:
            host.act(KEY, action)
            found = answer_of(host)
            assert isinstance(found, EnvironmentAnswer), found
            answers.append(found)
        past = zip(actions[:-1], (each.fingerprint() for each in answers), strict=False)
        host.begin(AGAIN, seed, row or {}, [*past])
        if len(actions) == 1:
            assert answer_of(host) == opening
        host.act(AGAIN, actions[-1])
        again = answer_of(host)
        assert again == answers[-1], again
    finally:
        host.close()
    return opening.text, answers


def texts(answers: Iterable[EnvironmentAnswer]) -> list[str]:
    """Return the messages of answers."""
    return [message.text for answer in answers for message in answer.messages]


def answer_of(host: EnvironmentHost) -> Opening | EnvironmentAnswer | Failed:
    """Return the one answer that arrives."""
    ((_, found),) = host.answers(KEY.owner, 200.0)
    return found
