"""The open groups of a run: started, extended by tokens, and converted to training data.

Shapes: B responses, N concatenated tokens, T positions.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mindrl.batch.conversations import Dialogue
from mindrl.batch.prompts import Prompt, sample_numbers, sequence_seed
from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.batch.route_keys import content_key
from mindrl.config.run import RunConfig
from mindrl.observability.metrics import Metrics
from mindrl.rollout.engine import Request
from mindrl.trainer.conversation_samples import ShownConversations
from mindrl.trainer.source.group import (
    OpenGroup,
    OpenSequence,
    PoolState,
    sampled_prefixes,
    segments_of,
    turns_of,
)
from mindrl.trainer.source.interface import Answering


class ResponseNumber(NamedTuple):
    """A response: the number of its group in the run, and its index in the group."""

    group: int
    response: int


class GroupPool:
    """Open groups by number, the oldest first, and the position in the data."""

    def __init__(self, config: RunConfig, answering: Answering) -> None:
        """Create an empty pool at the start of the data."""
        self.answering, self.turns = answering, answering.turns
        self.seed = config.megatron_training.seed
        self.samples = answering.sampling.samples_per_prompt
        self.longest = answering.sampling.section.max_tokens
        self.has_routes = config.actor_config.router_replay == "R3"
        """Whether workers keep the routes of responses."""
        self.routes: list[Any] = []
        """References to routes of engines that the training workers have not received yet."""
        self.load(PoolState(next_prompt=0))

    def load(self, state: PoolState) -> None:
        """Replace all groups and the position by those of a state."""
        self.next_prompt = state.next_prompt
        self.groups = dict(enumerate(state.groups))
        self._complete: dict[OpenGroup, bool] = {}
        if self.turns is not None:
            self.turns.forget()
            for row in self.incomplete():
                self._begin(row)
        self._changed = {*self.incomplete()}
        self._numbers = count(len(state.groups))
        self._started_in, self._started = 0, list[int]()

    def start(self, step: int, number: int) -> None:
        """Start groups with the next prompts, in a step."""
        if step != self._started_in:
            self._started_in, self._started = step, []
        indices = self.answering.order.indices(self.next_prompt, number)
        every = [*self._started, *indices]
        uids = [self.answering.prompts[each].uid for each in every for _ in range(self.samples)]
        samples = iter(sample_numbers(uids)[len(self._started) * self.samples :])
        for index in indices:
            sequences = [self.new_sequence(next(samples)) for _ in range(self.samples)]
            group = next(self._numbers)
            self.groups[group] = OpenGroup(
                prompt=index, start_step=step, sequences=tuple(sequences)
            )
            for response in range(self.samples):
                row = ResponseNumber(group, response)
                self._begin(row)
                self._changed.add(row)
        self.next_prompt += number
        self._started = every

    def new_sequence(self, sample: int) -> OpenSequence:
        """Return a response without tokens, and without turns if it is a conversation."""
        return OpenSequence.started(sample, None if self.turns is None else Dialogue())

    def skip(self, step: int, start: int, number: int) -> None:
        """Skip prompts from an index on, because other pools start their groups in this step."""
        self._started_in, self._started = step, [*self.answering.order.indices(start, number)]
        self.next_prompt = start + number

    def used_prompts(self) -> list[Prompt]:
        """Return the prompts that the current step started and took, if no older group is open."""
        used = self._started[: len(self._started) - len(self.groups)]
        return [self.answering.prompts[index] for index in used]

    @property
    def first_open(self) -> int:
        """Position in the data of the oldest open group, if groups are used in order."""
        return self.next_prompt - len(self.groups)

    def prompt(self, group: int) -> Prompt:
        """Return the prompt of a group."""
        return self.answering.prompts[self.groups[group].prompt]

    def incomplete(self) -> list[ResponseNumber]:
        """Return the responses that need more tokens of the policy."""
        waiting = () if self.turns is None else self.turns.waiting
        rows = (
            ResponseNumber(number, response)
            for number, group in self.groups.items()
            for response in group.incomplete(self.longest)
        )
        return [row for row in rows if row not in waiting]

    def take_changed(self) -> set[ResponseNumber]:
        """Return the responses that began, or got tokens or an answer, since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def needs_tokens(self, row: ResponseNumber) -> bool:
        """Return whether a response is open, and its next tokens come from the policy."""
        if row.group not in self.groups or (self.turns is not None and row in self.turns.waiting):
            return False
        return not self._sequence(row).is_complete(self.longest)

    def complete_groups(self) -> list[bool]:
        """Return for each group whether it can be trained on."""
        known = self._complete
        self._complete = {
            group: known[group] if group in known else not group.incomplete(self.longest)
            for group in self.groups.values()
        }
        return [*self._complete.values()]

    def request(self, row: ResponseNumber) -> Request:
        """Return the request for the rest of a response."""
        sequence = self._sequence(row)
        place = drawn = len(sequence.tokens_N)
        if self.turns is not None:
            drawn = self.longest - self.turns.tokens_left(row, sequence)
            place = self.turns.place(sequence)
        prompt = self.prompt(row.group)
        segment, sampled = segments_of(sequence, prompt)[-1], 0
        if self.has_routes:
            sampled = len(sampled_prefixes(sequence, prompt)[-1])
        return Request(
            token_ids=(*segment.prompt_ids, *sequence.tokens_N[segment.start :].tolist()),
            drawn=drawn,
            seed=self._seed(row, place),
            images=segment.images,
            sampled=sampled,
        )

    def extend(
        self, row: ResponseNumber, sampled: tuple[Tensor, Tensor], *, step: int, finished: bool
    ) -> None:
        """Append to a response the tokens and log-probs sampled in a step."""
        group = self.groups[row.group]
        self.groups[row.group] = group.with_more(
            row.response, sampled, step=step, finished=finished
        )
        self._changed.add(row)
        if self.turns is not None:
            turns, prompt = self.turns, self.prompt(row.group)
            self._replace(row, turns.drawn(row, self._sequence(row), prompt))

    def hear(self, seconds: float = 0.0) -> bool:
        """Add answers of environments within `seconds`; return whether more will come."""
        if self.turns is None:
            return False
        for found, answer in self.turns.answers(seconds):
            row = ResponseNumber(*found)
            prompt = self.prompt(row.group)
            self._replace(row, self.turns.answered(row, self._sequence(row), prompt, answer))
        return self.turns.is_answering()

    def _sequence(self, row: ResponseNumber) -> OpenSequence:
        return self.groups[row.group].sequences[row.response]

    def _replace(self, row: ResponseNumber, sequence: OpenSequence) -> None:
        group = self.groups[row.group]
        self.groups[row.group] = group.with_sequence(row.response, sequence)
        self._changed.add(row)

    def _seed(self, row: ResponseNumber, drawn: int = 0) -> int:
        """Return the seed of a response, or of its continuation at a position."""
        group = self.groups[row.group]
        uid, sample = self.prompt(row.group).uid, group.sequences[row.response].sample
        step = group.start_step
        return sequence_seed(self.seed, step=step, uid=uid, sample=sample, drawn=drawn)

    def _begin(self, row: ResponseNumber) -> None:
        """Let the conversation of a response begin."""
        if self.turns is not None:
            self.turns.begin(row, self._sequence(row), self.prompt(row.group), self._seed(row))

    def take(self, indices: Sequence[int]) -> list[OpenGroup]:
        """Remove and return the groups at these indices."""
        numbers = [*self.groups]
        taken = [self.groups.pop(numbers[index]) for index in indices]
        self._changed = {row for row in self._changed if row.group in self.groups}
        for group in taken:
            self._complete.pop(group, None)
        return taken

    def prompts_of(self, groups: Sequence[OpenGroup]) -> list[Prompt]:
        """Return the prompt of each group."""
        return [self.answering.prompts[group.prompt] for group in groups]

    def rollouts(
        self, step: int, groups: Sequence[OpenGroup], *, with_failed: bool = False
    ) -> Rollouts:
        """Return groups as rollouts, with the age of each token if some are old.

        Failed conversations are left out by default.
        """
        rows = _rows(groups, with_failed=with_failed)
        sequences = [each for _, each in rows]
        prompts = self.prompts_of(groups)
        found = [
            (number, place, each.finished, segment)
            for number, (place, each) in enumerate(rows)
            for segment in segments_of(each, prompts[place])
        ]
        numbers = None
        if len(found) > len(rows):
            numbers = torch.tensor([number for number, *_ in found])
        responses = Responses(
            token_ids_N=torch.cat([each.tokens_N for each in sequences]),
            logprobs_N=torch.cat([each.logprobs_N for each in sequences]),
            lengths_B=torch.tensor([segment.end - segment.start for *_, segment in found]),
            finished_B=torch.tensor([finished for *_, finished, _ in found]),
        )
        rollouts = Rollouts.of_turns(
            [torch.tensor(segment.prompt_ids) for *_, segment in found],
            responses,
            [place for _, place, *_ in found],
            turns_of(sequences, numbers),
        )
        rollouts = rollouts.with_images([segment.images for *_, segment in found])
        ages_N = step - torch.cat([each.steps_N for each in sequences])
        return rollouts.with_ages(ages_N) if ages_N.any() else rollouts

    def fetch_routes(self) -> None:
        """Note the routes of engines on their own devices; call it when they have no requests."""
        if self.has_routes:
            self.routes += self.answering.workers.engines.take_routes()

    def send_routes(self) -> None:
        """Send the noted routes to the workers that train."""
        if self.routes:
            self.answering.workers.keep_routes(self.routes)
            self.routes.clear()

    def retain_routes(self, groups: Sequence[OpenGroup]) -> None:
        """Let the workers forget the routes of all responses but those of these groups."""
        if not self.has_routes:
            return
        self.send_routes()
        pairs = zip(groups, self.prompts_of(groups), strict=True)
        keys = {
            content_key(prefix)
            for group, prompt in pairs
            for sequence in group.sequences
            for prefix in sampled_prefixes(sequence, prompt)
            if len(prefix)
        }
        self.answering.workers.retain_routes(sorted(keys))

    def conversations(
        self, groups: Sequence[OpenGroup], *, with_failed: bool = False
    ) -> ShownConversations | None:
        """Return the conversations of these rollouts for people; None without environments."""
        if self.turns is None:
            return None
        talks = [each.conversation for _, each in _rows(groups, with_failed=with_failed)]
        return ShownConversations(
            dialogues=[talk for talk in talks if talk is not None],
            template=self.turns.template,
            decode=self.turns.decode,
        )

    def sampled_in(self, step: int, most: int) -> Rollouts | None:
        """Return at most `most` open responses, masked to the tokens of a step's weights.

        None if there are no such tokens, except of failed conversations.
        """
        groups = [*self.groups.values()]
        if not (self.ages(step, groups) == 0).any():
            return None
        found = self.rollouts(step, groups)
        mask_BT = found.response_mask_BT
        if found.ages_BT is not None:
            mask_BT = mask_BT & (found.ages_BT == 0)
        rows_B = mask_BT.any(dim=1).nonzero()[:most, 0]
        if not len(rows_B):
            return None
        of_one = torch.zeros_like(found.group_B)
        return replace(found, response_mask_BT=mask_BT, group_B=of_one).rows(rows_B)

    def ages(self, step: int, groups: Sequence[OpenGroup]) -> Tensor:
        """Return the age of each token in steps, [N], without those of failed conversations."""
        steps = [each.steps_N for _, each in _rows(groups, with_failed=False)]
        return step - torch.cat(steps) if steps else torch.zeros(0, dtype=torch.int64)

    def staleness(self, step: int, trained: Sequence[OpenGroup]) -> Metrics:
        """Return metrics about the age of a step's data, and the groups that stay open."""
        ages_N = self.ages(step, trained)
        lengths = [len(each.tokens_N) for group in self.groups.values() for each in group.sequences]
        return {
            "staleness/mean": ages_N.double().mean().item(),
            "staleness/max": float(max(step - group.start_step for group in trained)),
            "staleness/stale_tokens": (ages_N > 0).double().mean().item(),
            "staleness/open_groups": float(len(self.groups)),
            "staleness/open_tokens": float(sum(lengths)),
        }


def _rows(groups: Sequence[OpenGroup], *, with_failed: bool) -> list[tuple[int, OpenSequence]]:
    """Return the responses of groups that become rollouts, each with the index of its group."""
    return [
        (place, each)
        for place, group in enumerate(groups)
        for each in group.sequences
        if with_failed or not each.has_failed
    ]
