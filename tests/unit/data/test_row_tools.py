"""Rows that name their environment and their tools: prompts, and what is refused before a start."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_runs import MakeConfig, model_folder

from mindrl.config.run import RunConfig
from mindrl.data.run_data import RunData, read_data
from mindrl.errors import ConfigError

GAMES = Path(__file__).parents[1] / "environments/games.py"
SHOWS_TOOLS = (
    "{%- if tools -%}{%- for each in tools -%}{{ each['function']['name'] + ';' }}{%- endfor -%}"
    "{%- endif -%}"
    "{%- for m in messages -%}"
    "{{- '<|im_start|>' + m['role'] + HEAD + '\\n' + m['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
PLAIN = SHOWS_TOOLS.replace("HEAD", "''")
COUNTS = SHOWS_TOOLS.replace("HEAD", "(tools | length | string if tools else '')")
"""Writes the number of tools into the header of each message."""
NAMED = [
    {"name": "calc", "environment": f"{GAMES}:Calculator"},
    {"name": "guess", "environment": f"{GAMES}:Guess"},
]
Read = Callable[..., RunData]


@pytest.fixture
def read(tokenizer_folder: Path, run_config: MakeConfig, tmp_path: Path) -> Read:
    """Read rows with columns of their own."""
    model = model_folder(tmp_path / "model")
    (model / "generation_config.json").write_text('{"eos_token_id": 258}', "utf-8")

    def of(*rows: dict[str, Any], template: str = PLAIN, **section: Any) -> RunData:
        lines = [json.dumps({"messages": "play", "answer": "2", **row}) for row in rows]
        (tmp_path / "train.jsonl").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        (tmp_path / "chat.jinja").write_text(template)
        given = {
            "megatron_training.data_path": str(tmp_path / "train.jsonl"),
            "megatron_training.tokenizer_name_or_path": str(tokenizer_folder),
            "megatron_training.chat_template": str(tmp_path / "chat.jinja"),
            "rl_config.max_prompt_length": 100,
        }
        section = {"tools": [f"{GAMES}:divide", f"{GAMES}:slow_square"], **section}
        config: RunConfig = run_config(model, given | {"environment_config": section})
        return read_data(config)

    return of


def shown(data: RunData) -> list[str]:
    """Return the names of tools at the start of each prompt."""
    return [prompt.text.split("<|im_start|>")[0] for prompt in data.train.prompts]


def names(data: RunData) -> list[list[str]]:
    rows = [prompt.row for prompt in data.train.prompts]
    return [[each["function"]["name"] for each in row.tools] for row in rows if row is not None]


def test_a_prompt_shows_the_tools_that_its_row_names_or_else_all(read: Read) -> None:
    data = read({}, {"tools": ["slow_square"]}, {"tools": []}, {"tools": None})
    assert shown(data) == ["divide;slow_square;", "slow_square;", "", "divide;slow_square;"]
    assert names(data)[:3] == [["divide", "slow_square"], ["slow_square"], []]
    # The text with which an environment begins belongs to a prompt with the same tools.
    (_, row, *_) = [prompt.row for prompt in data.train.prompts]
    assert row is not None
    assert data.turns is not None
    opened = data.tokenizer.decode(data.turns.opening(row.messages, " now", row.tools))
    assert opened.startswith("slow_square;<|im_start|>user\nplay now<|im_end|>")


def test_a_row_has_the_environment_that_it_names(read: Read) -> None:
    data = read({"env": "calc"}, {"env": "guess"}, {"env": None}, environments=NAMED)
    assert names(data) == [["add", "divide", "slow_square"], [], ["divide", "slow_square"]]


def test_without_names_the_column_of_environments_means_something_else(read: Read) -> None:
    assert names(read({"env": 7})) == [["divide", "slow_square"]]


def test_a_column_of_schemas_means_something_else_to_a_game(read: Read) -> None:
    data = read({"env": "guess", "tools": [{"name": "axe"}]}, environments=NAMED)
    assert names(data) == [[]]


def test_an_agent_reads_the_column_itself(read: Read) -> None:
    agent = str(Path(GAMES).with_name("agents.py")).replace("environments", "agents")
    rows = [{"tools": ["axe"]}, {"tools": "axe"}, {"tools": [{"name": "axe"}]}]
    assert names(read(*rows, tools=[], agent=f"{agent}:plain")) == [[], [], []]


@pytest.mark.parametrize(
    ("row", "section", "error"),
    [
        ({"tools": ["divid"]}, {}, "column 'tools' names 'divid', which is no tool of its envir"),
        ({"tools": "divide"}, {}, "column 'tools' holds 'divide'; needed a list of tool names"),
        ({"tools": [{"name": "divide"}]}, {}, "needed a list of tool names"),
        (
            {"env": "clac"},
            {"environments": NAMED},
            r"holds 'clac'; needed a name in .*environments \(calc, guess\); did you mean 'calc'",
        ),
        ({"env": ["calc"]}, {"environments": NAMED}, "column 'env' holds"),
        ({}, {"environments": NAMED, "tools": []}, "column 'env' holds None; needed a name"),
        ({"env": "guess", "tools": ["divide"]}, {"environments": NAMED}, "tools: none"),
    ],
)
def test_unknown_names_are_refused_with_row_and_column(
    row: dict[str, Any], section: dict[str, Any], error: str, read: Read
) -> None:
    good = {"env": "calc"} if "environments" in section else {}
    with pytest.raises(ConfigError, match=f"train.jsonl:2: .*{error}"):
        read(good, row, **section)


@pytest.mark.parametrize("answer", [{}, {"answer": ""}])
def test_rows_without_an_answer_may_be_meant_for_a_reward_of_the_environment(
    answer: dict[str, Any], read: Read, tmp_path: Path
) -> None:
    """The reference answers are a column that only some rewards read."""
    with pytest.raises(ConfigError) as caught:
        read({"answer": None, **answer})
    assert str(caught.value).startswith(f"{tmp_path / 'train.jsonl'}:1: ")
    assert str(caught.value).endswith("set megatron_training.answer_column=null")


def test_a_template_that_writes_messages_by_the_shown_tools_is_refused(read: Read) -> None:
    assert read({}, {}, template=COUNTS).turns is not None
    with pytest.raises(ConfigError, match="by the tools that it shows; give all rows the same"):
        read({}, {"tools": ["divide"]}, template=COUNTS)
