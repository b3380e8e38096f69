"""Environments and tools by row, in real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mindrl.environments.host import EnvironmentHost, Key, Limits
from mindrl.environments.messages import Action, EnvironmentAnswer, Opening, ToolCall
from mindrl.environments.process import EnvironmentSpec

GAMES = str(Path(__file__).with_name("games.py"))
KEY = Key("training", 0, 0)


@pytest.fixture(scope="module")
def host() -> Iterator[EnvironmentHost]:
    environments = {
        "calc": {"environment": f"{GAMES}:Calculator", "arguments": None},
        "guess": {"environment": f"{GAMES}:Guess", "arguments": {"marker": ""}},
    }
    spec = EnvironmentSpec(environment=None, environments=environments, tools=(f"{GAMES}:divide",))
    limits = Limits(processes=4, start_seconds=60.0, call_seconds=60.0)
    found = EnvironmentHost(spec=spec, limits=limits)
    yield found
    found.close()


def answers(
    host: EnvironmentHost, row: dict[str, object], action: Action
) -> tuple[Opening, list[str]]:
    """Return what the environment of a row begins with, and its messages after a turn."""
    host.begin(KEY, 7, row)
    ((_, opening),) = host.answers("training", 60.0)
    host.act(KEY, action)
    ((_, answer),) = host.answers("training", 60.0)
    host.end(KEY)
    assert isinstance(opening, Opening)
    assert isinstance(answer, EnvironmentAnswer)
    return opening, [message.text for message in answer.messages]


BOTH = Action(
    text="",
    calls=(
        ToolCall(name="add", arguments={"a": 1, "b": 2}),
        ToolCall(name="divide", arguments={"a": 1, "b": 2}),
    ),
)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"env": "calc"}, ["3", '{"quotient": 0.5}']),
        (
            {"env": "calc", "tools": ["divide"]},
            ['{"error": "no tool add; there are: divide"}', '{"quotient": 0.5}'],
        ),
        ({}, ['{"error": "no tool add; there are: divide"}', '{"quotient": 0.5}']),
        (
            {"tools": []},
            [f'{{"error": "no tool {name}; there are: "}}' for name in ("add", "divide")],
        ),
    ],
)
def test_a_conversation_has_the_tools_of_its_row(
    row: dict[str, object], expected: list[str], host: EnvironmentHost
) -> None:
    assert answers(host, row, BOTH) == (Opening(text=None), expected)


def test_a_conversation_has_the_environment_of_its_row(host: EnvironmentHost) -> None:
    # A game has no tools: the column means something else.
    row = {"env": "guess", "low": 3, "tools": [{"name": "axe"}]}
    opening, (text,) = answers(host, row, Action(text="1"))
    assert opening == Opening(text="guess 3 to 99")
    assert text.startswith("no")
