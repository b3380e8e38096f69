"""Responses that rollout jobs generate, requested and received through a spool."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path

import torch

from mindrl.batch.conversations import Dialogue
from mindrl.batch.prompts import Prompt, sample_numbers
from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.config.halves import prompts_per_record, published_version
from mindrl.config.run import RunConfig
from mindrl.errors import OutputError, SpoolError
from mindrl.observability.metrics import Metrics
from mindrl.spool.reader import RecordReader
from mindrl.spool.records import PromptRange
from mindrl.spool.requests import SpoolRequest
from mindrl.trainer.reward_manager import Rewarded
from mindrl.trainer.rollout_files import unpacked
from mindrl.trainer.source.generation import Generation, IsEnough, Measured
from mindrl.trainer.source.group import OpenGroup, OpenSequence, dialogue_of_json
from mindrl.trainer.source.interface import Answering
from mindrl.trainer.source.pool import GroupPool
from mindrl.trainer.weight_probe import known_logprobs, worst_gap


@dataclass(eq=False)
class _Received:
    """Scores of a record."""

    rewarded: Rewarded
    is_counted: bool = False
    """Whether its failures were returned."""

    def rows(self, rows: Sequence[int]) -> Rewarded:
        """Return some responses; the first call also returns the failures of all others."""
        if len(rows) == len(self.rewarded.responses):
            return self.rewarded
        kept = self.rewarded.rows(rows)
        failures = () if self.is_counted else kept.scores.failures
        self.is_counted = True
        scores = replace(kept.scores, failures=failures, left_out=0, left_out_of={})
        return replace(kept, scores=scores)


@dataclass(kw_only=True)
class SpoolGeneration(Generation):
    """Sends a request for each range of started groups, and reads the records in order.

    Groups are used in the order of the data, and a request names its weights, so that the data of a
    step does not depend on which job is faster. Reward functions are applied by the rollout job.
    """

    runs_ahead = True
    config: RunConfig
    pool: GroupPool
    reader: RecordReader
    committed: Callable[[], int]
    """Returns the last step that a checkpoint on disk contains."""
    check_interrupt: Callable[[], None] = field(default_factory=lambda: lambda: None, init=False)
    """Raises if the run must end."""
    is_ready: bool = field(default=False, init=False)
    """Whether the initial weights of the run are in the spool."""
    requests: list[SpoolRequest] = field(default_factory=list, init=False)
    """Requests with groups that are not used yet."""
    received: dict[OpenGroup, tuple[_Received, int]] = field(default_factory=dict, init=False)
    """Record of each complete unused group, and the index of its prompt in the record."""
    gaps: list[Metrics] = field(default_factory=list, init=False)
    """Log-prob gaps of the records that the current step has read."""
    trained: tuple[int, Sequence[OpenGroup]] | None = field(default=None, init=False)
    """The last step and its groups, published with the weights after it."""
    needed: dict[int, tuple[int, int]] = field(default_factory=lambda: {0: (0, 0)}, init=False)
    """First prompt and oldest weights that are needed after each step that a checkpoint may
    contain."""

    def begin(self, step: int, check_interrupt: Callable[[], None]) -> None:
        """Publish the initial weights, and delete data that no checkpoint needs."""
        self.check_interrupt = check_interrupt
        self.gaps = []
        if not self.is_ready:
            self.publish(step - 1)
            self.is_ready = True
        self._drop_used_requests()
        saved = self.committed()
        if saved in self.needed:
            self.reader.confirm(saved, *self.needed[saved])
            self.needed = {each: what for each, what in self.needed.items() if each >= saved}

    def generate(self, step: int, is_enough: IsEnough, check_interrupt: Callable[[], None]) -> None:
        """Wait for records, in the order of the data, until there are enough groups."""
        self._send(step)
        pool = self.pool
        self.reader.begin(step, min(pool.next_prompt, pool.first_open + pool.answering.per_step))
        with pool.answering.rewards.timer("rollout"):
            for request in self.requests:
                if is_enough(pool.complete_groups()):
                    break
                if not all(group in self.received for group in self._groups_of(request).values()):
                    self._receive(request, check_interrupt)

    def end(
        self,
        step: int,
        trained: Sequence[OpenGroup],
        check_interrupt: Callable[[], None],
    ) -> Measured:
        """Request the groups that were started ahead."""
        self._send(step)
        check_interrupt()
        self.trained = step, trained
        ages_N = self.pool.ages(step, trained)
        metrics = {
            "staleness/mean": ages_N.double().mean().item(),
            "staleness/max": float(ages_N.max()),
            "spool/records_bytes": float(self.reader.spool.records.nbytes()),
        }
        return Measured(metrics=metrics, gap=worst_gap(self.gaps))

    def publish(self, step: int) -> Metrics:
        """Publish the weights after a step, if they are due.

        On a full disk this waits until there is room.
        """
        self._drop_used_requests()
        version = published_version(self.config, step + 1)
        oldest = min((each.version for each in self.requests), default=version)
        self.needed[step] = self.pool.first_open, oldest
        if version != step:
            return {}
        began, spool, reported = time.perf_counter(), self.reader.spool, set[str]()
        known = None
        if self.trained is not None and self.config.rl_config.max_staleness:
            known = known_logprobs(self.pool.answering.workers, self.pool.rollouts(*self.trained))
        while True:
            try:
                spool.weights.publish(step, self._export, known)
                return {"seconds/publish": time.perf_counter() - began}
            except (OSError, OutputError) as error:
                if str(error) not in reported:
                    self.reader.notify(f"{error}; this job tries again until it can")
                reported.add(str(error))
            spool.wait(self.check_interrupt)

    def load(self, step: int) -> None:
        """Continue after a step; open groups are read from their records again.

        Raises:
            SpoolError: The spool lacks the request of an open group.
        """
        pool, spool = self.pool, self.reader.spool
        for number, group in pool.groups.items():
            fresh = tuple(pool.new_sequence(each.sample) for each in group.sequences)
            pool.groups[number] = replace(group, sequences=fresh)
        self.requests = spool.requests.all()
        self._drop_used_requests()
        there = {
            position
            for each in self.requests
            for position in range(each.prompts.first, each.prompts.end)
        }
        if lacking := {*range(pool.first_open, pool.next_prompt)} - there:
            why = "another run used this spool, or its files were removed"
            if step < (confirmed := spool.progress().confirmed):
                why = (
                    f"the spool keeps only what steps after {confirmed} need; restore the "
                    f"checkpoint of step {confirmed}, or start a new run with another "
                    "spool_config.folder"
                )
            raise SpoolError(
                f"{spool.requests.root} has no request for prompt {min(lacking)} in the order of "
                f"the data, which the checkpoint of step {step} needs: {why}"
            )
        oldest = min((each.version for each in self.requests), default=step)
        self.needed = {step: (pool.first_open, oldest)}

    def rewarded(self, groups: Sequence[OpenGroup]) -> Callable[[], Rewarded]:
        """Return the scores of complete groups, which are used now."""
        parts, samples = [], self.pool.samples
        used = ((*self.received.pop(group), group) for group in groups)
        for record, each in groupby(used, key=lambda found: found[0]):
            rows = [
                index * samples + place
                for _, index, group in each
                for place, sequence in enumerate(group.sequences)
                if not sequence.has_failed
            ]
            parts.append(record.rows(rows))
        joined = Rewarded.joined(parts)
        return lambda: joined

    def _send(self, step: int) -> None:
        """Send requests for the groups that have none."""
        pool = self.pool
        start = self.requests[-1].prompts.end if self.requests else pool.first_open
        before = [each for each in self.requests if each.step == step]
        step_first = before[0].step_first if before else start
        most = prompts_per_record(self.config)
        for part, first in enumerate(range(start, pool.next_prompt, most), len(before)):
            request = SpoolRequest(
                prompts=PromptRange(first, min(first + most, pool.next_prompt)),
                step=step,
                step_first=step_first,
                part=part,
                version=published_version(self.config, step),
            )
            self.reader.send(request, self.check_interrupt)
            self.requests.append(request)

    def _receive(self, request: SpoolRequest, check_interrupt: Callable[[], None]) -> None:
        """Give the groups of a request their responses."""
        pool = self.pool
        asked, answered = requested_prompts(pool.answering, request)
        ids = response_ids(asked, answered, pool.samples)
        record = self.reader.take(request, ids, check_interrupt)
        batch = unpacked(record.content)
        received = _Received(batch.rewarded)
        self.gaps.append(dict(record.gap))
        if pool.turns is not None:
            pool.turns.failures.update(record.failures)
        whole, talks = _whole_responses(batch.rollouts), record.conversations
        responses, finished = whole.each(), whole.finished_B.tolist()
        used = max(0, pool.first_open - request.prompts.first)
        for index, (number, group) in enumerate(self._groups_of(request).items(), used):
            rows = range(index * pool.samples, (index + 1) * pool.samples)
            sequences = [
                each.with_more(*responses[row], step=request.version + 1, finished=finished[row])
                for each, row in zip(group.sequences, rows, strict=True)
            ]
            if talks:
                turns = [dialogue_of_json(talks[row]) for row in rows]
                sequences = [*map(_with_turns, sequences, turns)]
            pool.groups[number] = replace(group, sequences=tuple(sequences))
            self.received[pool.groups[number]] = received, index

    def _groups_of(self, request: SpoolRequest) -> dict[int, OpenGroup]:
        """Return the open groups of a request, by number."""
        first, prompts = self.pool.first_open, request.prompts
        start, end = max(0, prompts.first - first), max(0, prompts.end - first)
        return dict(islice(self.pool.groups.items(), start, end))

    def _drop_used_requests(self) -> None:
        first, end = self.pool.first_open, self.pool.next_prompt
        self.requests = [each for each in self.requests if first < each.prompts.end <= end]

    def _export(self, folder: Path) -> None:
        # No date and no commit, so that equal weights give equal files.
        self.pool.answering.workers.export("actor", folder, {})


def _whole_responses(rollouts: Rollouts) -> Responses:
    """Return the response of each conversation, with all of its tokens after its prompts."""
    parts, talks = rollouts.responses(), rollouts.conversations()
    finished_C = talks.last(parts.finished_B)
    lengths_C = torch.zeros(len(finished_C), dtype=torch.int64)
    lengths_C.index_add_(0, talks.index(), parts.lengths_B)
    return replace(parts, lengths_B=lengths_C, finished_B=finished_C)


def _with_turns(sequence: OpenSequence, turns: Dialogue) -> OpenSequence:
    return replace(sequence, conversation=turns)


def requested_prompts(
    answering: Answering, request: SpoolRequest
) -> tuple[list[Prompt], list[Prompt]]:
    """Return the prompts of a request, and those that its step started before them."""
    first, count = request.prompts.first, request.prompts.end - request.prompts.first
    before = answering.prompts_from(request.step_first, first - request.step_first)
    return answering.prompts_from(first, count), before


def response_ids(
    asked: Sequence[Prompt], answered: Sequence[Prompt], samples: int
) -> list[tuple[int, int]]:
    """Return the uid and the sample number of each response to the prompts of a request."""
    uids = [prompt.uid for prompt in (*answered, *asked) for _ in range(samples)]
    return [*zip(uids, sample_numbers(uids), strict=True)][len(answered) * samples :]
