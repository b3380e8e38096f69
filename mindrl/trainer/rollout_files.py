"""Responses of the last steps as Parquet files, one row each, restored bitwise exactly."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from mindrl.batch.prompts import PlacedImage, Prompt, sample_numbers
from mindrl.batch.rollouts import Responses, Rollouts, Turns
from mindrl.batch.segments import last_rows
from mindrl.checkpoint.earlier_runs import ROLLOUT_SUFFIX
from mindrl.checkpoint.step_names import step_name, steps_in
from mindrl.errors import DataError
from mindrl.observability.checked_parquet import checked_parquet, read_checked_parquet
from mindrl.observability.output_files import json_text, output_errors, replace_file
from mindrl.observability.picture_names import picture_name
from mindrl.observability.regular_files import read_regular
from mindrl.rewards.functions import ScoreRange
from mindrl.rewards.scores import Failure, Failures, Scores
from mindrl.trainer.reward_manager import RatedBatch, Rewarded

_PART = "reward/"
_SCORES = b"mindrl.scores"
"""Metadata key of the JSON with data on the scores that no column has."""


@dataclass(frozen=True)
class RolloutFiles:
    """Folder of the rollout files."""

    root: Path

    def path(self, step: int) -> Path:
        """Return the file of a step."""
        return self.root / f"{step_name(step)}{ROLLOUT_SUFFIX}"

    def steps(self) -> list[int]:
        """Return the steps with files, in ascending order."""
        with output_errors(self.root):
            return steps_in(self.root, ROLLOUT_SUFFIX)

    def write(self, step: int, batch: RatedBatch, kept: int) -> None:
        """Write the file of a step atomically, and keep the files of the last `kept` steps.

        Raises:
            OutputError: It cannot be written, or another cannot be removed.
        """
        with output_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
        replace_file(self.path(step), packed(step, batch))
        self._forget({*self.steps()} - {*range(step - kept + 1, step + 1)})

    def forget_later(self, step: int) -> None:
        """Remove the files of the steps after `step`, which the run repeats.

        Raises:
            OutputError: One cannot be removed.
        """
        self._forget(each for each in self.steps() if each > step)

    def _forget(self, steps: Iterable[int]) -> None:
        for step in steps:
            with output_errors(self.path(step)):
                self.path(step).unlink()

    def read(self, step: int) -> RatedBatch:
        """Read the batch of a step.

        Raises:
            DataError: It cannot be read.
        """
        path = self.path(step)
        try:
            return unpacked(read_regular(path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"cannot read the responses of a step from {path}: {error}") from error


def stored_pictures(rollouts: Rollouts, rows: int) -> list[str]:
    """Return the names of the pictures of the first `rows` responses, each once."""
    if rollouts.image_numbers_BI is None:
        return []
    numbers = {*rollouts.image_numbers_BI[:rows].flatten().tolist()}
    return [picture_name(number) for number in sorted(numbers) if number > 0]


def packed(step: int, batch: RatedBatch) -> bytes:
    """Return the responses of a step as the bytes of a Parquet file."""
    return checked_parquet(_table(step, batch))


def unpacked(content: bytes) -> RatedBatch:
    """Return the batch from packed bytes, bitwise exact.

    Raises:
        ValueError, KeyError, TypeError, OSError: The bytes are of another kind, or damaged.
    """
    table = read_checked_parquet(content)
    if "data_source" not in table.column_names:
        # Earlier versions had one set per run and no sources.
        table = table.append_column("data_source", pa.array([""] * len(table)))
    return _batch(table, json.loads(table.schema.metadata[_SCORES]))


def _table(step: int, batch: RatedBatch) -> pa.Table:
    rollouts, scores = batch.rollouts, batch.rewarded.scores
    asked = [batch.prompts[group] for group in rollouts.group_B.tolist()]
    talks = rollouts.conversations()
    index = talks.index().tolist()
    samples = sample_numbers([asked[row].uid for row in talks.rows().tolist()])
    mask_BT = rollouts.after_prompts()
    positions_BT = torch.arange(mask_BT.size(1)) < rollouts.lengths_B[:, None]
    columns = {
        "step": pa.array([step] * len(asked), pa.int64()),
        "group": pa.array(rollouts.group_B.tolist(), pa.int64()),
        "uid": pa.array([prompt.uid for prompt in asked], pa.int64()),
        "sample": pa.array([samples[at] for at in index], pa.int64()),
        "prompt": pa.array([prompt.text for prompt in asked], pa.string()),
        "response": pa.array([batch.rewarded.responses[at] for at in index], pa.string()),
        "reference": pa.array([prompt.answer for prompt in asked], pa.string()),
        "data_source": pa.array([prompt.source for prompt in asked], pa.string()),
        "prompt_token_ids": _lists(rollouts.tokens_BT.int(), positions_BT & ~mask_BT),
        "response_token_ids": _lists(rollouts.tokens_BT.int(), mask_BT),
        "rollout_logprobs": _lists(rollouts.rollout_logprobs_BT, mask_BT),
        **{name: _lists(values_BT, mask_BT) for name, values_BT in _of_tokens(batch)},
        "finished": pa.array(rollouts.finished_B.tolist(), pa.bool_()),
        "reward": pa.array([scores.rewards[at] for at in index], pa.float64()),
    }
    if batch.conversations is not None:
        texts = [batch.conversation(row) for row in range(len(batch.rewarded.responses))]
        records = [None if each is None else json_text(each.record()) for each in texts]
        columns["conversation"] = pa.array([records[at] for at in index], pa.string())
    columns |= {
        f"{_PART}{name}": pa.array([part[at] for at in index], pa.float64())
        for name, part in scores.components.items()
    }
    if rollouts.conversation_B is not None:
        columns["conversation_index"] = pa.array(index, pa.int64())
    if rollouts.image_numbers_BI is not None and rollouts.image_starts_BI is not None:
        is_there_BI = rollouts.image_numbers_BI > 0
        columns["image_numbers"] = _lists(rollouts.image_numbers_BI, is_there_BI)
        columns["image_starts"] = _lists(rollouts.image_starts_BI, is_there_BI)
    known = {
        "ranges": scores.ranges,
        "failures": [asdict(each) for each in scores.failures],
        "left_out": scores.left_out,
        "left_out_of": scores.left_out_of,
        "judges": scores.judges,
        "accuracies": scores.accuracies,
    }
    return pa.table(columns, metadata={_SCORES: json.dumps(known).encode()})


def _of_tokens(batch: RatedBatch) -> Iterator[tuple[str, Tensor]]:
    """Yield further columns per token that some steps have."""
    rollouts = batch.rollouts
    if rollouts.ages_BT is not None:
        yield "ages", rollouts.ages_BT.int()
    if rollouts.turn_rewards_BT is not None:
        yield "written", rollouts.response_mask_BT
        yield "turn_rewards", rollouts.turn_rewards_BT
    if batch.advantages_BT is not None:
        yield "advantages", batch.advantages_BT
    if batch.logprobs_BT is not None:
        yield "logprobs", batch.logprobs_BT


def _lists(values_BT: Tensor, mask_BT: Tensor) -> pa.ListArray:
    """Return the masked values, one list per row."""
    ends_B = mask_BT.sum(dim=1).cumsum(dim=0)
    offsets = pa.array([0, *ends_B.tolist()], pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values_BT[mask_BT].numpy()))


def _batch(table: pa.Table, known: Mapping[str, Any]) -> RatedBatch:
    stored, tokens = table["group"].to_pylist(), table["response_token_ids"]
    # A group without rows has failed as a whole: the others are numbered without it.
    firsts = {group: row for row, group in reversed([*enumerate(stored)])}
    numbers = {group: number for number, group in enumerate(sorted(firsts))}
    groups = [numbers[group] for group in stored]
    responses = Responses(
        token_ids_N=_flat(tokens).long(),
        logprobs_N=_flat(table["rollout_logprobs"]),
        lengths_B=torch.tensor(pc.list_value_length(tokens).to_pylist()),
        finished_B=torch.tensor(table["finished"].to_pylist()),
    )
    prompts = _prompts(table, [firsts[group] for group in numbers])
    turns = _turns(table)
    rated = table
    if turns is not None and turns.conversation_B is not None:
        rated = table.take(pa.array(last_rows(turns.conversation_B).tolist()))
    sources = tuple(rated["data_source"].to_pylist())
    failures = (
        Failures(**{**each, "first": Failure(**each["first"])}) for each in known["failures"]
    )
    scores = Scores(
        rewards=tuple(rated["reward"].to_pylist()),
        components={
            name.removeprefix(_PART): tuple(rated[name].to_pylist())
            for name in table.column_names
            if name.startswith(_PART)
        },
        ranges={name: ScoreRange(*ends) for name, ends in known["ranges"].items()},
        failures=tuple(failures),
        left_out=known.get("left_out", 0),
        left_out_of=known.get("left_out_of", {}),
        sources=sources if any(sources) else (),
        judges=known.get("judges", {}),
        accuracies={name: tuple(each) for name, each in known.get("accuracies", {}).items()},
    )
    asked = [*map(torch.tensor, table["prompt_token_ids"].to_pylist())]
    rollouts = Rollouts.of_turns(asked, responses, groups, turns)
    if "image_numbers" in table.column_names:
        columns = (table[name].to_pylist() for name in ("image_numbers", "image_starts"))
        placed = [
            [PlacedImage(number, first, 0) for number, first in zip(*row, strict=True)]
            for row in zip(*columns, strict=True)
        ]
        rollouts = rollouts.with_images(placed)
    if "ages" in table.column_names:
        rollouts = rollouts.with_ages(_flat(table["ages"]).long())
    return RatedBatch(
        prompts=prompts,
        rollouts=rollouts,
        rewarded=Rewarded(responses=rated["response"].to_pylist(), scores=scores),
    )


def _turns(table: pa.Table) -> Turns | None:
    if "written" not in table.column_names:
        return None
    numbers = None
    if "conversation_index" in table.column_names:
        numbers = torch.tensor(table["conversation_index"].to_pylist())
    return Turns(
        written_N=_flat(table["written"]),
        rewards_N=_flat(table["turn_rewards"]),
        conversation_B=numbers,
    )


def _prompts(table: pa.Table, rows: Sequence[int]) -> list[Prompt]:
    """Return the prompts of some rows."""
    names = ["uid", "prompt_token_ids", "prompt", "reference", "data_source"]
    columns = table.select(names).take(rows).to_pydict()
    return [
        Prompt(uid=uid, token_ids=tuple(token_ids), text=text, answer=answer, source=source)
        for uid, token_ids, text, answer, source in zip(*columns.values(), strict=True)
    ]


def _flat(lists: pa.ChunkedArray) -> Tensor:
    """Concatenate the lists of a column."""
    return torch.tensor(lists.combine_chunks().flatten().to_numpy(zero_copy_only=False))
