"""Responses of the last steps in Parquet files: back to the bit, no more of them than asked for."""

import errno
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from memory_roles import PROMPTS, MemoryRoles, config, data, rewards, run_log

from mindrl.batch.prompts import PlacedImage
from mindrl.batch.rollouts import Responses, Rollouts, Turns
from mindrl.errors import DataError, OutputError
from mindrl.rewards.functions import ScoreRange
from mindrl.rewards.scores import Failure, Failures, Scores
from mindrl.trainer.policy_trainer import PolicyTrainer
from mindrl.trainer.reward_manager import RatedBatch, Rewarded
from mindrl.trainer.rollout_files import RolloutFiles, stored_pictures, unpacked

SMALLEST = math.ulp(0.0)
LOGPROBS = [[-1 / 3, -1e-45], [-0.0], [math.nan], [-7.25, -math.inf, -2.0]]
"""Third parts, the smallest float32, a zero with a sign, none at all."""


def batch() -> RatedBatch:
    """Two prompts of two tokens, the first of them twice; the third response was cut off."""
    prompts = [PROMPTS[2], PROMPTS[0]]
    responses = Responses.of(
        [[20, 31], [30], [151_999], [5, 6, 7]], LOGPROBS, [True, True, False, True]
    )
    failure = Failures(
        function="exact",
        count=1,
        first=Failure(kind="timeout", detail="2 s", trace="a"),
        response=3,
    )
    scores = Scores(
        rewards=(0.1 + 0.2, SMALLEST, -1.0, 0.0),
        components={"exact": (1.0, 0.0, -1.0, 0.0), "my_rewards.short": (1 / 3, 0.0, 0.0, 0.0)},
        ranges={"exact": ScoreRange(-1.0, 1.0), "my_rewards.short": ScoreRange(0.0, math.inf)},
        failures=(failure,),
        left_out=3,
    )
    rollouts = Rollouts.from_responses(
        [each.token_ids for each in prompts], responses, [0, 0, 1, 1]
    ).with_ages(torch.tensor([1, 0, 0, 0, 2, 2, 0]))
    said = ["20 31", "数学 \x1b[31m", "", "\ufffd\n"]
    return RatedBatch(
        prompts=prompts, rollouts=rollouts, rewarded=Rewarded(responses=said, scores=scores)
    )


def conversations() -> RatedBatch:
    """Return the batch with tokens of an environment in three responses, and own prompts."""
    written = batch()
    turns = Turns(
        written_N=torch.tensor([True, False, True, True, True, False, True]),
        rewards_N=torch.tensor([0.0, 0.5, 0.0, 1 / 3, 0.0, 0.0, -1.0]),
    )
    asked = [torch.tensor(each) for each in ([5], [5, 6], [7, 8, 9], [7])]
    rollouts = Rollouts.of_turns(asked, written.rollouts.responses(), [0, 0, 1, 1], turns)
    first = [
        replace(each, token_ids=ids)
        for each, ids in zip(written.prompts, [(5,), (7, 8, 9)], strict=True)
    ]
    return replace(written, prompts=first, rollouts=rollouts)


def segments() -> RatedBatch:
    """Return the batch with two conversations of two sequences each."""
    found = conversations()
    rewarded = found.rewarded.rows([0, 2])
    numbers = torch.tensor([0, 0, 1, 1])
    tree_B = found.rollouts.group_B
    rollouts = replace(found.rollouts, conversation_B=numbers, tree_B=tree_B)
    return replace(found, rollouts=rollouts, rewarded=rewarded)


@pytest.mark.parametrize("make", [batch, conversations, segments])
def test_a_step_comes_back_to_the_bit(tmp_path: Path, make: Callable[[], RatedBatch]) -> None:
    files, written = RolloutFiles(tmp_path), make()
    files.write(12, written, 1)
    read = files.read(12)
    for field in fields(Rollouts):
        ours, theirs = (getattr(each.rollouts, field.name) for each in (written, read))
        assert (ours is None) == (theirs is None), field.name
        if ours is None:
            continue
        assert ours.dtype == theirs.dtype
        assert ours.numpy().tobytes() == theirs.numpy().tobytes(), field.name
    assert (read.prompts, read.rewarded) == (written.prompts, written.rewarded)


def test_a_prompt_without_responses_is_left_out(tmp_path: Path) -> None:
    """All of its conversations have failed."""
    files, whole = RolloutFiles(tmp_path), batch()
    rollouts = replace(whole.rollouts, group_B=torch.tensor([0, 0, 2, 2]))
    (first, last) = whole.prompts
    files.write(3, replace(whole, prompts=[first, PROMPTS[1], last], rollouts=rollouts), 1)
    read = files.read(3)
    assert read.prompts == whole.prompts
    assert read.rollouts.group_B.tolist() == [0, 0, 1, 1]


def test_where_all_tokens_are_of_the_steps_own_weights_no_age_is_written(tmp_path: Path) -> None:
    files, written = RolloutFiles(tmp_path), batch()
    files.write(3, replace(written, rollouts=replace(written.rollouts, ages_BT=None)), 1)
    assert "ages" not in pq.read_schema(files.path(3)).names
    assert files.read(3).rollouts.ages_BT is None


def test_a_file_of_before_there_were_sources_is_read_as_of_rows_without_one(
    tmp_path: Path,
) -> None:
    files, written = RolloutFiles(tmp_path), batch()
    files.write(3, written, 1)
    table = pq.ParquetFile(files.path(3)).read().drop_columns("data_source")
    # Nor had it a checksum.
    known = {key: table.schema.metadata[key] for key in (b"mindrl.scores",)}
    pq.write_table(table.replace_schema_metadata(known), files.path(3))
    read = files.read(3)
    assert (read.prompts, read.rewarded) == (written.prompts, written.rewarded)


def test_a_reader_of_parquet_finds_a_row_for_each_response(tmp_path: Path) -> None:
    files = RolloutFiles(tmp_path / "rollouts")
    files.write(12, batch(), 1)
    assert [path.name for path in files.root.iterdir()] == ["step-00000012.parquet"]
    first, *_, last = pq.read_table(files.root).to_pylist()
    assert first == {
        "step": 12,
        "group": 0,
        "uid": 2,
        "sample": 0,
        "prompt": "prompt 2",
        "response": "20 31",
        "reference": "answer 2",
        "data_source": "",
        "prompt_token_ids": [3, 9],
        "response_token_ids": [20, 31],
        "rollout_logprobs": torch.tensor(LOGPROBS[0]).tolist(),
        "ages": [1, 0],
        "finished": True,
        "reward": 0.1 + 0.2,
        "reward/exact": 1.0,
        "reward/my_rewards.short": 1 / 3,
    }
    assert (last["uid"], last["group"], last["sample"], last["response_token_ids"]) == (
        *(0, 1, 1),
        [5, 6, 7],
    )
    page = (Path(__file__).parents[3] / "docs/reference/outputs.md").read_text("utf-8")
    types = {field.name: str(field.type) for field in pq.read_schema(files.path(12))}
    for name, kind in types.items():
        shown = "reward/<name>" if name.startswith("reward/") else name
        spelled = {"double": "float64", "list<element: int32>": "list of int32"}.get(kind, kind)
        spelled = spelled.replace("list<element: float>", "list of float32")
        assert f"| `{shown}` | {spelled} |" in page


def test_each_flipped_bit_of_a_file_is_noticed_and_the_file_is_named(tmp_path: Path) -> None:
    """Every bit of the footer's checksum, and one of each other byte."""
    files = RolloutFiles(tmp_path)
    files.write(3, batch(), 1)
    whole = files.path(3).read_bytes()
    name = whole.rindex(b"mindrl.checksum")
    checksum = range(name, name + 15 + 2 + 32)
    flips = [(at, bit) for at in checksum for bit in range(8)]
    flips += [(at, at % 8) for at in range(len(whole)) if at not in checksum]
    accepted = []
    for at, bit in flips:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        with suppress(ValueError, OSError):
            unpacked(bytes(damaged))
            accepted.append((at, bit))
    assert accepted == []
    files.path(3).write_bytes(damaged)
    with pytest.raises(DataError, match=r"^cannot read .*step-00000003.parquet: .* is damaged"):
        files.read(3)
    files.path(3).write_bytes(whole)
    assert files.read(3).prompts == batch().prompts


def test_files_of_the_last_steps_stay_and_those_of_later_ones_go(tmp_path: Path) -> None:
    files = RolloutFiles(tmp_path)
    assert files.steps() == []
    files.write(9, batch(), 1)
    for step in (1, 2, 3, 4):
        files.write(step, batch(), 3)
    assert files.steps() == [2, 3, 4]
    files.forget_later(3)
    assert files.steps() == [2, 3]
    files.forget_later(-1)
    assert files.steps() == []


def trained(root: Path, **changes: object) -> PolicyTrainer:
    roles = MemoryRoles()
    chosen = config(train_iters=4, **changes)
    log = run_log(root, 4)
    trainer = PolicyTrainer(chosen, data(), roles, rewards(roles), log, max_logprob_gap=0.1)
    trainer.run()
    return trainer


def test_a_run_keeps_what_was_asked_for_and_else_nothing(tmp_path: Path) -> None:
    trained(tmp_path / "none")
    assert not (tmp_path / "none/rollouts").exists()
    trained(tmp_path / "two", keep_rollouts=2)
    files = RolloutFiles(tmp_path / "two/rollouts")
    assert files.steps() == [3, 4]
    assert files.read(4).rewarded.responses == ["20 30", "20 31", "20 30", "20 31"]


def test_each_stored_response_that_a_report_shows_has_thumbnails(tmp_path: Path) -> None:
    trainer, stored = trained(tmp_path, keep_rollouts=1), batch()
    shown: list[str] = []
    trainer.run_log.show_pictures = shown.extend
    first, second = (PlacedImage(number, 0, 1) for number in (0xAB, 7))
    rollouts = stored.rollouts.with_images([[first], [], [second], [first, second]])
    metrics = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    del metrics["step"]
    # No response is a logged sample.
    trainer.rl = replace(trainer.rl, log_samples=0)
    trainer.record(5, metrics, replace(stored, rollouts=rollouts))
    assert shown == [f"{7:016x}", f"{0xAB:016x}"]
    assert stored_pictures(rollouts, 2) == [f"{0xAB:016x}"]
    assert stored_pictures(stored.rollouts, 2) == []


def test_a_disk_that_is_full_is_told_of_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The third step would fit again, but its place is left out from the first on."""
    tried = []
    original = Path.open

    def full(path: Path, *arguments: str, **named: object) -> object:
        if path.suffix == ".tmp" and "parquet" in path.name:
            tried.append(path.name)
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(path, *arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", full)
    trainer = trained(tmp_path, keep_rollouts=2)
    assert trainer.run_log.summary.steps == 4
    assert len(tried) == 1
    (warning,) = [record.message for record in caplog.records]
    assert warning.endswith(
        "step-00000001.parquet cannot be written: No space left on device; "
        "the run continues without it"
    )


def test_a_file_that_is_gone_or_cut_off_or_another_is_named(tmp_path: Path) -> None:
    files = RolloutFiles(tmp_path)
    files.write(1, batch(), 2)
    whole = files.path(1).read_bytes()
    files.path(2).write_bytes(whole[:-20])
    pq.write_table(pq.read_table(files.path(1)).replace_schema_metadata(None), files.path(3))
    for step in (2, 3, 4):
        with pytest.raises(DataError, match=f"^cannot read .*step-0000000{step}.parquet"):
            files.read(step)
    with pytest.raises(OutputError, match="rollouts cannot be written"):
        RolloutFiles(files.path(1) / "rollouts").write(1, batch(), 1)
