"""Pass rates of the rows of a data file: measured by a trainer's parts, written as a column."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from memory_roles import MemoryRoles, config, data, rewards, run_log

from mindrl.data.pass_rates import check_new_file, write_pass_rates
from mindrl.errors import ConfigError
from mindrl.launch.pass_rates import rates_of
from mindrl.rewards.functions import ScoreRange
from mindrl.rewards.scores import Scores
from mindrl.trainer.policy_trainer import PolicyTrainer


class AnswerJudge(MemoryRoles):
    """Takes both answers to prompt 1 for right, and the second one to prompt 2."""

    def score(self, responses: Sequence[str], answers: Sequence[str], *_: object) -> Scores:
        right = tuple(
            float(answer == "answer 1" or (answer == "answer 2" and said.endswith("31")))
            for said, answer in zip(responses, answers, strict=True)
        )
        ranges = {"exact": ScoreRange(0.0, 1.0)}
        return Scores(rewards=right, components={"exact": right}, ranges=ranges, failures=())


def test_each_prompt_is_answered_as_often_as_asked_a_batch_at_a_time(tmp_path: Path) -> None:
    roles, told = AnswerJudge(), list[int]()
    trainer = PolicyTrainer(
        config(), data(), roles, rewards(roles), run_log(tmp_path, 1), max_logprob_gap=None
    )
    assert rates_of(trainer, told.append) == {0: 0.0, 1: 1.0, 2: 0.5, 3: 0.0}
    assert [uids for uids, *_ in roles.asked] == [[0, 1], [2, 3]]
    assert told == [2, 4]


ROWS = [{"question": "2+2", "day": "2026-11-22"}, {"question": "数", "day": "x"}, {"question": "1"}]


def test_rows_keep_what_they_have_and_those_without_a_rate_are_left_out(tmp_path: Path) -> None:
    rows, rated = str(tmp_path / "rows.jsonl"), str(tmp_path / "rated.jsonl")
    Path(rows).write_text("\n\n".join(map(json.dumps, ROWS)), "utf-8")
    write_pass_rates(rows, rated, "pass_rate", {1: 0.5, 0: 0.125})
    lines = Path(rated).read_text("utf-8").splitlines()
    rates = zip(ROWS, (0.125, 0.5), strict=False)
    assert [*map(json.loads, lines)] == [{**row, "pass_rate": rate} for row, rate in rates]
    again = str(tmp_path / "again.jsonl")
    write_pass_rates(rated, again, "pass_rate", {0: 1.0, 1: 0.0})
    found = map(json.loads, Path(again).read_text("utf-8").splitlines())
    assert [row["pass_rate"] for row in found] == [1.0, 0.0]


def test_columns_of_a_parquet_file_keep_their_types(tmp_path: Path) -> None:
    rows, rated = str(tmp_path / "rows.parquet"), str(tmp_path / "rated.parquet")
    table = pa.table({"id": pa.array([1, 2, 3], pa.int8()), "rate": pa.array(["a", "b", "c"])})
    pq.write_table(table, rows)
    write_pass_rates(rows, rated, "rate", {2: 1.0, 0: 0.25})
    found = pq.read_table(rated)
    assert found.schema.field("id").type == pa.int8()
    assert found.to_pydict() == {"id": [1, 3], "rate": [0.25, 1.0]}


def test_a_new_file_takes_the_place_of_none_and_has_the_form_of_the_data(tmp_path: Path) -> None:
    there = tmp_path / "there.jsonl"
    there.touch()
    with pytest.raises(ConfigError, match="file exists already"):
        check_new_file("rows.jsonl", str(there))
    with pytest.raises(ConfigError, match=r"must end in \.parquet, as --data rows\.parquet does"):
        check_new_file("rows.parquet", "rated.jsonl")
