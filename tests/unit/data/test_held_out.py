"""Which rows are test rows, and that none is trained on unless the configuration allows it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_runs import model_folder

from mindrl.config.run import RunConfig
from mindrl.config.validate import findings
from mindrl.data.run_data import RunData, data_lines, read_data
from mindrl.errors import ConfigError

MakeConfig = Callable[..., RunConfig]
FRACTION, SEED = "data_config.held_out_fraction", "data_config.held_out_seed"
OVERLAP, TEST = "data_config.test_overlap_policy", "megatron_training.test_data_path"


def rows(path: Path, *numbers: int) -> str:
    lines = (json.dumps({"messages": f"{n}+0", "answer": str(n)}) for n in numbers)
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@pytest.fixture
def read(tokenizer_folder: Path, run_config: MakeConfig, tmp_path: Path) -> Any:
    model = model_folder(tmp_path / "model")

    def read(train: str, changes: dict[str, Any]) -> RunData:
        given = {
            "megatron_training.data_path": train,
            "megatron_training.tokenizer_name_or_path": str(tokenizer_folder),
        }
        return read_data(run_config(model, given | changes))

    return read


def numbers(found: Any) -> list[int]:
    return [int(prompt.answer) for prompt in found.prompts]


def test_a_tenth_of_different_prompts_is_held_out_whatever_their_order(
    read: Any, tmp_path: Path
) -> None:
    first = read(rows(tmp_path / "a.jsonl", *range(40), *range(20)), {FRACTION: 0.1})
    again = read(rows(tmp_path / "b.jsonl", *reversed(range(40))), {FRACTION: 0.1})
    other = read(rows(tmp_path / "c.jsonl", *range(40)), {FRACTION: 0.1, SEED: 1})
    assert len({*numbers(first.test)}) == 4
    assert {*numbers(first.test)} == {*numbers(again.test)} != {*numbers(other.test)}
    # Equal prompts are on one side, and each row is on one.
    assert not {*numbers(first.train)} & {*numbers(first.test)}
    assert len(first.train.prompts) + len(first.test.prompts) == 60
    tests = 60 - len(first.train.prompts)
    repeated = len(first.train.prompts) - 36
    assert [*data_lines(first)][:2] == [
        (
            f"{tmp_path}/a.jsonl: 60 rows, prompts of up to 12 tokens, {tests} dropped as "
            f"test prompts, {repeated} duplicate prompts"
        ),
        (
            f"0.1 of {tmp_path}/a.jsonl: {tests} rows, prompts of up to 12 tokens"
            + (f", {tests - 4} duplicate prompts" if tests > 4 else "")
        ),
    ]


def test_a_share_of_one_prompt_leaves_nothing_to_train_on(read: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(rows(tmp_path / "a.jsonl", 1, 1), {FRACTION: 0.1})
    assert str(caught.value) == (
        f"{tmp_path}/a.jsonl: {FRACTION}=0.1 of 1 different prompts leaves none for training"
    )


def test_what_is_held_out_evaluates_and_two_keys_do_not_say_it(run_config: MakeConfig) -> None:
    held_out = {FRACTION: 0.1, "rl_config.test_freq": 10}
    assert findings(run_config(Path("model"), held_out)) == []
    [finding] = findings(run_config(Path("model"), held_out | {TEST: "test.jsonl"}))
    assert str(finding) == (f"{FRACTION}=0.1 and {TEST} both define the held-out data; remove one")


def test_test_prompts_that_are_trained_on_are_an_error_with_two_ways_out(
    read: Any, tmp_path: Path
) -> None:
    train = rows(tmp_path / "train.jsonl", 1, 2, 3, 4)
    test = {TEST: rows(tmp_path / "test.jsonl", 9, 3, 1)}
    with pytest.raises(ConfigError) as caught:
        read(train, test)
    assert str(caught.value) == (
        f"{tmp_path}/test.jsonl: 2 of the 3 test prompts are also training prompts, the "
        f"first in row 1 (from 0). Set {OVERLAP}=drop to remove them from training, or allow "
        "to keep them"
    )
    assert numbers(read(train, test | {OVERLAP: "allow"}).train) == [1, 2, 3, 4]
    left = read(train, test | {OVERLAP: "drop"})
    assert (numbers(left.train), numbers(left.test)) == ([2, 4], [9, 3, 1])
    assert [prompt.uid for prompt in left.train.prompts] == [1, 3]


def test_a_set_of_evaluation_counts_as_a_test(read: Any, tmp_path: Path) -> None:
    train = rows(tmp_path / "train.jsonl", 1, 2)
    same = {"data_config.eval_sets": [{"name": "same", "data_path": train}]}
    with pytest.raises(ConfigError, match="2 of the 2 same prompts are also training prompts"):
        read(train, same)
    with pytest.raises(
        ConfigError, match="no prompts are left, because all of them are also test prompts"
    ):
        read(train, same | {OVERLAP: "drop"})
