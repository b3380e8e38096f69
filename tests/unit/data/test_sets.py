"""Several training sets in files: their sources, their order and which rows of them stay."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_runs import model_folder

from mindrl.config.run import RunConfig
from mindrl.data.order import prompt_order
from mindrl.data.run_data import RunData, data_lines, read_data
from mindrl.errors import ConfigError

MakeConfig = Callable[..., RunConfig]
Read = Callable[[dict[str, Any]], tuple[RunConfig, RunData]]
DATA = "data_config"


def rows(path: Path, count: int, **columns: Callable[[int], Any]) -> str:
    """Write rows 0, 1, 2, .. whose answer is their number."""
    lines = [
        {"messages": f"{n}+0", "answer": str(n)} | {name: of(n) for name, of in columns.items()}
        for n in range(count)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return str(path)


@pytest.fixture
def read(tokenizer_folder: Path, run_config: MakeConfig, tmp_path: Path) -> Read:
    """Read two sets of 4 and 6 rows, with a difficulty, a pass rate and a source each."""
    model = model_folder(tmp_path / "model")
    kinds: dict[str, Callable[[int], Any]] = {
        "level": lambda n: 10 - n,
        "rate": lambda n: n / 4,
        "kind": lambda n: "even" if n % 2 == 0 else "odd",
    }
    sets = [
        {"name": "small", "data_path": rows(tmp_path / "small.jsonl", 4, **kinds)},
        {"name": "large", "data_path": rows(tmp_path / "large.jsonl", 6, **kinds), "weight": 2.0},
    ]

    def make(changes: dict[str, Any]) -> tuple[RunConfig, RunData]:
        given = {
            "megatron_training.data_path": None,
            "megatron_training.tokenizer_name_or_path": str(tokenizer_folder),
            "rl_config.max_prompt_length": 13,
            f"{DATA}.train_sets": sets,
        }
        config = run_config(model, given | changes)
        return config, read_data(config)

    return make


def reward(source: str) -> dict[str, Any]:
    return {"data_source": source, "verifier_function": ["math_verify"], "verifier_weight": [1.0]}


def test_rows_are_numbered_on_from_set_to_set_and_have_its_name(read: Read) -> None:
    config, data = read({})
    assert [prompt.uid for prompt in data.train.prompts] == [*range(10)]
    sources = [prompt.source for prompt in data.train.prompts]
    assert sources == ["small"] * 4 + ["large"] * 6
    first = [
        data.train.prompts[n].source for n in prompt_order(config, data.train_sets).indices(0, 6)
    ]
    assert first == ["large", "small", "large"] * 2
    assert [line.partition(": ")[2] for line in data_lines(data)][:2] == [
        "4 rows, prompts of up to 11 tokens",
        "6 rows, prompts of up to 11 tokens",
    ]


def test_a_column_says_the_source_of_a_row(read: Read) -> None:
    given = {f"{DATA}.source_column": "kind", f"{DATA}.rewards": [reward("even"), reward("odd")]}
    _, data = read(given)
    assert [prompt.source for prompt in data.train.prompts[:3]] == ["even", "odd", "even"]


def test_a_source_without_a_reward_is_refused_with_the_nearest(read: Read) -> None:
    given = {f"{DATA}.source_column": "kind", f"{DATA}.rewards": [reward("even"), reward("ode")]}
    with pytest.raises(ConfigError) as caught:
        read(given)
    assert str(caught.value).endswith(
        "small.jsonl: 2 of 4 prompts have data_source='odd', which has no entry in "
        "data_config.rewards (even, ode); did you mean 'ode'?"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source_column": "kid"}, "no column data_config.source_column='kid'; found: "),
        (
            {"order": "by_column", "order_column": "kind"},
            (
                "small.jsonl:1: column 'kind' holds \"even\"; needed a number, for "
                "data_config.order_column"
            ),
        ),
        (
            {"pass_rate_column": "rate", "pass_rate_low": 0.9, "pass_rate_high": 0.95},
            (
                "data_config.pass_rate_low=0.9 and data_config.pass_rate_high=0.95 keep none of 4 "
                "rows; 'rate' ranges from 0 to 0.75"
            ),
        ),
    ],
)
def test_rows_that_do_not_have_what_is_asked_are_refused(
    changes: dict[str, Any], words: str, read: Read
) -> None:
    with pytest.raises(ConfigError) as caught:
        read({f"{DATA}.{key}": value for key, value in changes.items()})
    assert words in str(caught.value)


def test_each_set_is_ordered_by_a_column_either_way(read: Read) -> None:
    by_level = {f"{DATA}.order": "by_column", f"{DATA}.order_column": "level"}
    for descending, first in [(False, ["5", "3", "4"]), (True, ["0", "0", "1"])]:
        config, data = read(by_level | {f"{DATA}.order_descending": descending})
        order = prompt_order(config, data.train_sets).indices(0, 3)
        assert [data.train.prompts[n].answer for n in order] == first


def test_rows_stay_whose_pass_rate_lies_within_the_bounds(read: Read) -> None:
    bounds = {"pass_rate_column": "rate", "pass_rate_low": 0.25, "pass_rate_high": 0.75}
    _, data = read({f"{DATA}.{key}": value for key, value in bounds.items()})
    assert [prompt.uid for prompt in data.train.prompts] == [1, 2, 3, 5, 6, 7]
    assert "4 rows, prompts of up to 11 tokens, 1 dropped by pass rate" in next(data_lines(data))


LEVELS = """
def harder(response, reference, level):
    return float(level)

def everything(completions, **columns):
    return [float(len(columns)) for _ in completions]

def misspelt(response, reference, levels):
    return 1.0
"""


def test_rows_keep_the_columns_that_rewards_name_and_no_others(read: Read, tmp_path: Path) -> None:
    (tmp_path / "levels.py").write_text(LEVELS, "utf-8")
    _, data = read({"rl_config.verifier_function": (f"{tmp_path}/levels.py:harder", "math_verify")})
    rows_of_large = [prompt.row for prompt in data.train.prompts[4:6]]
    assert [row and (row.columns, row.messages) for row in rows_of_large] == [
        ({"level": 10}, ()),
        ({"level": 9}, ()),
    ]
    _, data = read(
        {"rl_config.verifier_function": (f"{tmp_path}/levels.py:everything", "math_verify")}
    )
    row = data.train.prompts[0].row
    assert row is not None
    assert {*row.columns} == {"messages", "answer", "level", "rate", "kind"}
    assert (row.messages, row.is_chat) == (({"role": "user", "content": "0+0"},), False)
    _, data = read({})
    assert {prompt.row for prompt in data.train.prompts} == {None}


def test_a_reward_that_names_no_column_of_the_rows_is_refused(read: Read, tmp_path: Path) -> None:
    (tmp_path / "levels.py").write_text(LEVELS, "utf-8")
    function = f"{tmp_path}/levels.py:misspelt"
    with pytest.raises(ConfigError) as caught:
        read({"rl_config.verifier_function": (function, "math_verify")})
    text = str(caught.value)
    assert text.startswith(
        f"rl_config.verifier_function={function!r} has the parameter 'levels', which is not a "
        "column of the rows; did you mean 'level'?"
    )
    assert text.endswith("small.jsonl has the columns messages, answer, level, rate, kind")


def test_a_source_without_a_teacher_is_refused_with_the_nearest(read: Read) -> None:
    teachers = [{"data_source": each, "load": "unread"} for each in ("even", "ode")]
    given = {
        f"{DATA}.source_column": "kind",
        "teacher_config.load": "unread",
        "teacher_config.models": teachers,
    }
    with pytest.raises(ConfigError) as caught:
        read(given)
    assert str(caught.value).endswith(
        "small.jsonl: 2 of 4 prompts have data_source='odd', which has no entry in "
        "teacher_config.models (even, ode); did you mean 'ode'?"
    )
