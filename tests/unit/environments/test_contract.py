"""What users bring: TRL's classes and functions, and text games."""

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from galleries import drawn, look
from games import Calculator, Guess, Gym, divide, slow_square
from PIL import Image

from mindrl.config.environment import EnvironmentConfig
from mindrl.environments.content_blocks import read_blocks
from mindrl.environments.contract import environment_of, public_tools
from mindrl.environments.messages import (
    Action,
    EnvironmentAnswer,
    EnvironmentMessage,
    Opening,
    ToolCall,
)
from mindrl.environments.tool_calls import plain_json, tagged_json
from mindrl.environments.tools import tool_schemas
from mindrl.errors import ConfigError, EnvironmentFailedError

GAMES = str(Path(__file__).with_name("games.py"))


def call(name: str, **arguments: object) -> Action:
    return Action(text="", calls=(ToolCall(name=name, arguments=arguments),))


def test_methods_and_functions_are_tools_and_the_reward_is_asked_at_the_end() -> None:
    environment = environment_of(Calculator, [divide, slow_square], {})
    assert environment.reset({"question": "?"}) == Opening()
    both = Action(text="", calls=(*call("add", a=2, b=3).calls, *call("divide", a=1, b=4).calls))
    results = [EnvironmentMessage(role="tool", text=text) for text in ("5", '{"quotient": 0.25}')]
    assert environment.step(both) == EnvironmentAnswer(messages=tuple(results))
    assert environment.step(call("slow_square", a=5)).messages[0].text == "25"
    assert environment.step(Action(text="5")) == EnvironmentAnswer(reward=0.5, done=True)
    # The run may end a conversation after a turn with calls.
    last = environment.step(replace(both, is_last=True))
    assert last == EnvironmentAnswer(messages=tuple(results), reward=1.0)


def test_methods_of_the_class_are_tools_and_those_of_a_builtin_base_are_not() -> None:
    class Constants(Calculator, dict[str, int]):
        @classmethod
        def eleven(cls) -> int:
            return 11

        @staticmethod
        def twelve() -> int:
            return 12

    assert public_tools(Constants) == ["add", "eleven", "twelve"]
    environment = environment_of(Constants, [], {})
    environment.reset({})
    assert [environment.step(call(each)).messages[0].text for each in ("eleven", "twelve")] == [
        "11",
        "12",
    ]


def test_the_reward_may_be_asked_asynchronously() -> None:
    class Judge(Calculator):
        async def get_reward(self) -> float:  # type: ignore[override]
            return 0.75

    environment = environment_of(Judge, [], {})
    environment.reset({})
    assert environment.step(Action(text="5")) == EnvironmentAnswer(reward=0.75, done=True)


class Shelf:
    """States its tools itself, from its arguments."""

    def __init__(self, books: list[str]) -> None:
        self.books = books

    @staticmethod
    def tool_schemas(books: list[str]) -> list[dict[str, object]]:
        return [{"type": "function", "function": {"name": f"open_{each}"}} for each in books]

    def reset(self, **_: object) -> None:
        self.opened = 0

    def call_tool(self, name: str, arguments: dict[str, object]) -> str:
        if name == "open_fire":
            raise EnvironmentFailedError("the shelf burns")
        self.opened += 1
        return f"{name} {arguments} {self.opened}"


def test_a_class_may_state_its_tools_and_end_its_conversation() -> None:
    arguments = {"books": ["atlas"]}
    stated = EnvironmentConfig(
        environment=f"{Path(__file__)}:Shelf", arguments=arguments, tools=(f"{GAMES}:divide",)
    )
    names = [each["function"]["name"] for each in tool_schemas(stated)]
    assert names == ["open_atlas", "divide"]
    environment = environment_of(Shelf, [divide], arguments)
    environment.reset({})
    assert environment.step(call("open_atlas", page=1)).messages[0].text == (
        "open_atlas {'page': 1} 1"
    )
    assert environment.step(call("divide", a=1, b=4)).messages[0].text == '{"quotient": 0.25}'
    with pytest.raises(EnvironmentFailedError, match="the shelf burns"):
        environment.step(call("open_fire"))


def test_mistakes_of_the_policy_are_results_that_it_can_read() -> None:
    environment = environment_of(Calculator, [divide], {})
    environment.reset({})
    found = [
        environment.step(action).messages[0].text
        for action in (
            call("divide", a=1, b=0),
            call("ad", a=1),
            call("add", a=1),
            Action(text="", calls=(ToolCall(name="", error="the call is no JSON"),)),
        )
    ]
    assert [json.loads(each)["error"] for each in found] == [
        "ZeroDivisionError: division by zero",
        "no tool ad; there are: add, divide",
        "TypeError: Calculator.add() missing 1 required positional argument: 'b'",
        "the call is no JSON",
    ]


def test_the_five_values_of_gymnasium_are_a_text_game() -> None:
    environment = environment_of(Gym, [], {})
    assert environment.reset({}) == Opening(text="start")
    again = EnvironmentAnswer(
        messages=(EnvironmentMessage(role="user", text="end"),), reward=1.0, done=False
    )
    assert environment.step(Action(text="go")) == again
    assert environment.step(Action(text="stop")) == EnvironmentAnswer(reward=1.0, done=True)


def test_rewards_may_be_numbers_of_numpy_and_are_no_larger_than_those_of_functions() -> None:
    environment = environment_of(Gym, [], {})
    environment.reset({})
    assert environment.step(Action(text="numpy")).reward == 0.5
    assert environment.step(Action(text="tensor")).reward == 2.0
    with pytest.raises(TypeError, match=r"^step returned 1e\+30; need a finite number of at most"):
        environment.step(Action(text="huge"))


def test_calls_are_read_as_families_write_them() -> None:
    text = 'I add.<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    more = '<tool_call>{"name": "add", "arguments": [1]}</tool_call><tool_call>{"a'
    first, second, third = tagged_json(text + more)
    assert first == ToolCall(name="add", arguments={"a": 1})
    assert (second.name, second.error) == (
        "add",
        "arguments are an object with a value for each",
    )
    assert third.error.startswith("the call is no JSON")
    assert tagged_json("no call") == ()
    llama = plain_json('<|python_tag|>{"name": "add", "parameters": {"b": 2}}')
    assert llama == (ToolCall(name="add", arguments={"b": 2}),)
    assert plain_json("The sum is {3}") == ()


@pytest.mark.parametrize("levels", [50, 500, 200_000])
def test_calls_nested_too_deep_are_errors_that_the_policy_sees(levels: int) -> None:
    """The object of a call is a level, its arguments are the next."""
    whole = '{"name": "add", "arguments": {"a": ' + "[" * (levels - 1) + "]" * (levels - 1) + "}}"
    for found in (tagged_json(f"<tool_call>{whole}"), plain_json(whole)):
        error = "the call is no JSON: nested more than 50 levels deep"
        assert found == (ToolCall(name="", error=error),)
        assert Action.of_json(Action(text=whole, calls=found).to_json()).calls == found
    (open_call,) = tagged_json("<tool_call>" + "[" * levels)
    assert open_call.error.startswith("the call is no JSON")


def test_a_call_may_be_nested_fifty_levels_deep() -> None:
    lists = "[" * 48 + "]" * 48
    (call,) = tagged_json('<tool_call>{"name": "add", "arguments": {"a": ' + lists + "}}")
    assert call == ToolCall(name="add", arguments={"a": json.loads(lists)})
    assert Action.of_json(Action(text="", calls=(call,)).to_json()).calls == (call,)


def test_schemas_come_from_hints_and_docstrings() -> None:
    config = EnvironmentConfig(environment=f"{GAMES}:Calculator", tools=(f"{GAMES}:divide",))
    add, by = (each["function"] for each in tool_schemas(config))
    assert (add["name"], add["description"]) == ("add", "Add two numbers.")
    assert add["parameters"]["properties"]["a"]["type"] == "integer"
    assert by["parameters"]["required"] == ["a", "b"]
    assert tool_schemas(EnvironmentConfig(environment=f"{GAMES}:Guess")) == []


def test_a_tool_without_documentation_is_refused(tmp_path: Path) -> None:
    tools = tmp_path / "my_tools.py"
    tools.write_text("def add(a, b):\n    return a + b\n")
    with pytest.raises(ConfigError, match="the tool add needs type hints"):
        tool_schemas(EnvironmentConfig(tools=(f"{tools}:add",)))
    with pytest.raises(ConfigError, match=r"must be a class with reset\(\*\*row\)"):
        tool_schemas(EnvironmentConfig(environment=f"{GAMES}:divide"))


def test_a_game_that_answers_in_another_form_is_named() -> None:
    class Short(Guess):
        def step(self, text: str) -> tuple[str, float, bool]:
            return text, 1.0  # type: ignore[return-value]

    environment = environment_of(Short, [], {})
    environment.reset({})
    with pytest.raises(TypeError, match=r"need \(observation, reward, done\)"):
        environment.step(Action(text="1"))


def test_content_blocks_are_text_and_the_files_of_pictures() -> None:
    environment = environment_of(None, [look], {})
    (message,) = environment.step(call("look", what="two")).messages
    assert message.text == "a <|image_pad|><image>"
    assert message.pieces == ("a ", "<|image_pad|><image>", "")
    first, second = (Image.open(BytesIO(each.content)) for each in message.pictures)
    # A PIL picture is sent without loss, a file as it is.
    assert (first.format, second.format) == ("PNG", "JPEG")
    assert first.tobytes() == drawn((84, 56), 1).tobytes()
    answer = EnvironmentAnswer(messages=(message,))
    again = EnvironmentAnswer.of_json(json.loads(json.dumps(answer.to_json())))
    assert again == answer
    other = replace(message, pictures=(replace(message.pictures[0], at=1), message.pictures[1]))
    assert EnvironmentAnswer(messages=(other,)).fingerprint() != answer.fingerprint()
    # The fingerprint of text is that of checkpoints from before.
    text = EnvironmentAnswer(messages=(EnvironmentMessage(role="tool", text="5"),))
    assert text.to_json()["messages"] == [{"role": "tool", "text": "5"}]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "HSV", "I;16"])
def test_a_picture_of_any_mode_is_sent_as_a_png_file(mode: str) -> None:
    picture = drawn((30, 20), 3).convert("I" if mode == "I;16" else mode).convert(mode)
    _, (given,) = read_blocks([{"type": "image", "image": picture}])
    sent = Image.open(BytesIO(given.content))
    assert (sent.format, sent.size) == ("PNG", (30, 20))
    kept = "RGB" if mode in ("CMYK", "YCbCr", "HSV") else mode
    assert (sent.mode, sent.tobytes()) == (kept, picture.convert(kept).tobytes())


def test_a_picture_that_no_file_can_hold_is_an_error_of_the_environment() -> None:
    with pytest.raises(EnvironmentFailedError, match=r"cannot be written as PNG: .* mode F"):
        read_blocks([{"type": "image", "image": Image.new("F", (8, 8))}])


@pytest.mark.parametrize(
    "rows", [[], [1, 2], [{"type": "text"}], [{"type": "image", "url": "a.png"}], [{"a": 1}]]
)
def test_other_lists_are_json(rows: list[object]) -> None:
    def table() -> list[object]:
        """Return rows."""
        return rows

    (message,) = environment_of(None, [table], {}).step(call("table")).messages
    assert json.loads(message.text) == rows
