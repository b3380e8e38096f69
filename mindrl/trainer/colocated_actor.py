"""The trainer's view of the workers: whole batches in, whole batches out.

Shapes: B sequences, T positions.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from mindrl.batch.balance import partition
from mindrl.batch.experience import CriticMinibatch, Minibatch, PolicyUpdate
from mindrl.batch.prompts import Prompt, sample_numbers, sequence_seed
from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.batch.sequences import Logprobs, Sequences, SequenceScores, Values
from mindrl.checkpoint.commits import SavedFiles
from mindrl.config.layout_keys import Role
from mindrl.layouts.layout import TrainLayout, even_bounds
from mindrl.memory.plan import MemoryPlan
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.engines import Engines
from mindrl.trainer.ranks import Ranks, ReplicasCall, begin_replicas

AnswerT = TypeVar("AnswerT", Logprobs, Values, SequenceScores)


@dataclass(frozen=True)
class ColocatedActor:
    """Deals batches to the replicas of each role and joins what they return.

    Roles that share devices take turns: workers switch theirs themselves, from one role's call to
    the next.
    """

    group: Ranks
    layouts: Mapping[Role, TrainLayout]
    """Of the roles that the run has."""
    engines: Engines
    """Of the rollout."""
    seed: int = field(kw_only=True)
    """Of the run."""
    costs: Callable[[Sequence[int]], Sequence[float]] | None = field(default=None, kw_only=True)
    """Says from the lengths of sequences how much work they are; training replicas then get equal
    work. None gives them equally many sequences, in order."""
    engine_rows: int = field(kw_only=True)
    """Sequences that an engine draws a token of in one step."""
    begun: dict[str, deque[tuple[ReplicasCall, list[Tensor]]]] = field(
        default_factory=lambda: defaultdict(deque), init=False
    )
    """Calls that were begun ahead, by their methods, and the rows of each replica."""

    def generate_sequences(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        step: int,
        answered: Sequence[Prompt] = (),
    ) -> Rollouts:
        """Sample `sampling.samples_per_prompt` responses to each prompt, prompt by prompt.

        A prompt that the step has `answered` before gets others than then.
        """
        count, before = sampling.samples_per_prompt, len(answered)
        group = [index for index in range(len(prompts)) for _ in range(count)]
        token_ids = [prompts[index].token_ids for index in group]
        uids = [prompt.uid for prompt in (*answered, *prompts) for _ in range(count)]
        seeds = [
            sequence_seed(self.seed, step=step, uid=uid, sample=sample)
            for uid, sample in [*zip(uids, sample_numbers(uids), strict=True)][before * count :]
        ]
        shares = [
            (token_ids[start:end], sampling, seeds[start:end])
            for start, end in even_bounds(len(group), self.engines.replicas)
        ]
        replies: list[Responses] = self.engines.each("generate_sequences", shares)
        asked = [prompt.token_ids for prompt in prompts]
        return Rollouts.from_responses(asked, Responses.joined(replies), group)

    def next_logprobs(self, rows: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Return the log-prob of the last token of each row by the engine of each replica."""
        asked = [(rows, temperature)] * self.engines.replicas
        return self.engines.each("next_logprobs", asked)

    def generate_until(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        is_enough: Callable[[Collection[int]], bool],
        *,
        round_steps: int,
    ) -> Responses:
        """Answer requests until those that are whole are enough, whole or not, in their order.

        That is asked behind every `round_steps` steps of the engines, with the places of the whole.
        An engine has twice as many requests as rows at most; the others are dealt where some have
        become whole.
        """
        dealt, most = self._request_shares(requests), 2 * self.engine_rows
        waiting = deque(sorted(place for share in dealt for place in share[most:]))
        shares = [share[:most] for share in dealt]
        begun = [([requests[place] for place in share], sampling) for share in shares]
        self.engines.each("begin_sequences", begun)
        whole: set[int] = set()
        more: list[list[int]] = [[] for _ in shares]
        while True:
            steps = [(round_steps, [requests[place] for place in each]) for each in more]
            found = self.engines.each("advance_sequences", steps)
            for share, places in zip(shares, found, strict=True):
                whole |= {share[place] for place in places}
            if is_enough(whole):
                break
            more = self._refill(shares, whole, waiting)
        replies: list[Responses] = self.engines.each("take_sequences", [()] * len(shares))
        places = [place for share in [*shares, waiting] for place in share]
        none = [()] * len(waiting)
        left = Responses.of(none, none, [False] * len(waiting))
        return Responses.joined([*replies, left]).in_order(places)

    def _refill(
        self, shares: Sequence[list[int]], whole: Collection[int], waiting: deque[int]
    ) -> list[list[int]]:
        """Deal what waits, the first to who has least to do; returns what each gets."""
        more: list[list[int]] = [[] for _ in shares]
        counts = [sum(place not in whole for place in share) for share in shares]
        while waiting and min(counts) < 2 * self.engine_rows:
            replica, place = counts.index(min(counts)), waiting.popleft()
            more[replica].append(place)
            shares[replica].append(place)
            counts[replica] += 1
        return more

    def _request_shares(self, requests: Sequence[Request]) -> list[list[int]]:
        """Deal those that go on in turn, for they tend to be long, and new ones as ever."""
        count = self.engines.replicas
        begun = [place for place, request in enumerate(requests) if request.drawn]
        new = [place for place, request in enumerate(requests) if not request.drawn]
        return [
            begun[replica::count] + new[start:end]
            for replica, (start, end) in enumerate(even_bounds(len(new), count))
        ]

    def begin(self, method: str, role: Role, batches: Iterable[Sequences]) -> None:
        """Let a role begin what it is going to be asked for with these batches, in their order.

        Roles that are on other devices go on beside it. What was begun is asked for as ever.
        """
        for batch in batches:
            self.begun[method].append(self._begin(method, role, batch))

    def compute_logprobs(self, sequences: Sequences) -> Logprobs:
        """Score sequences with the actor's current weights."""
        return self._asked("compute_logprobs", "actor", sequences, Logprobs)

    def compute_ref_logprobs(self, sequences: Sequences) -> Logprobs:
        """Score sequences with the reference, which may be the actor's base."""
        role: Role = "ref" if "ref" in self.layouts else "actor"
        return self._asked("compute_ref_logprobs", role, sequences, Logprobs)

    def reset_reference(self) -> None:
        """Give the reference the actor's weights."""
        self._tell("reset_reference", "ref")

    def compute_values(self, sequences: Sequences) -> Values:
        """Value sequences with the critic's current weights."""
        return self._asked("compute_values", "critic", sequences, Values)

    def compute_rewards(self, sequences: Sequences) -> SequenceScores:
        """Score whole sequences with the reward model."""
        return self._asked("compute_rewards", "reward", sequences, SequenceScores)

    def update(self, minibatch: Minibatch) -> PolicyUpdate:
        """Take one optimizer step of the actor; says what it says of the whole minibatch."""
        replies, dealt = self._ask("update", "actor", minibatch)
        first: PolicyUpdate = replies[0]
        if first.logprobs_BT is None:
            return first
        parts = [reply.logprobs_BT for reply in replies]
        return replace(first, logprobs_BT=_joined(parts, dealt, minibatch.tokens_BT.shape))

    def update_critic(self, minibatch: CriticMinibatch) -> dict[str, float]:
        """Take one optimizer step of the critic; returns metrics of the whole minibatch."""
        replies, _ = self._ask("update_critic", "critic", minibatch)
        return dict(replies[0])

    def export(self, role: Role, folder: Path, record: Mapping[str, object]) -> None:
        """Write a role's weights as a Hugging Face folder, with a record of them."""
        method = "export" if role == "actor" else f"export_{role}"
        self._tell(method, role, str(folder), record)

    def save_bytes(self) -> int:
        """Count the bytes of a checkpoint, without names."""
        return sum(self.group.call_all("save_bytes"))

    def begin_save(self, folder: Path) -> None:
        """Have the state of the models that change written into a folder in the next rollout."""
        self.group.call_all("begin_save", str(folder))

    def finish_save(self) -> list[SavedFiles]:
        """Wait for what `begin_save` asked for; says what each rank has written."""
        return self.group.call_all("finish_save")

    def restore(self, folder: Path, updates: Mapping[str, int]) -> None:
        """Go on from a checkpoint."""
        self.group.call_all("restore", str(folder), updates)

    def load_weights(self, folder: Path, version: int) -> None:
        """Give the engines of a job that rolls out alone the weights of a Hugging Face folder."""
        self.group.call_all("load_weights", str(folder), version)

    def keep_export(self, folder: Path, kept: Path) -> None:
        """Keep an exported folder under a second name, whatever replaces the first."""
        self.group.call_all("keep_export", str(folder), str(kept))

    def memory_plan(self) -> MemoryPlan:
        """Return what lies on every device at each moment, as the workers have planned it."""
        plan: MemoryPlan = self.group.call_all("memory_plan")[0]
        return plan

    def record_memory(self, is_on: bool) -> None:
        """Let each worker note from now on what lies on its device, or no longer."""
        self.group.call_all("record_memory", is_on)

    def flush_moments(self) -> list[list[MeasuredSnapshot]]:
        """Return what each worker noted since the last call, by rank."""
        return self.group.call_all("flush_moments")

    def flush_metrics(self) -> dict[str, float]:
        """Return what the switches cost since the last call, each worker's memory and bad numbers.

        Seconds are those of the slowest worker, bytes are summed over the workers. A worker is idle
        for as long as the slowest still answers prompts. Ranks of a rollout apart have the numbers
        behind those that train.
        """
        replies: list[dict[str, float]] = self.group.call_all("flush_metrics")
        replies += self.engines.flush_metrics()
        metrics: dict[str, float] = {}
        for name in {name: None for reply in replies for name in reply}:
            values = {rank: reply[name] for rank, reply in enumerate(replies) if name in reply}
            kind, _, what = name.partition("/")
            if kind in {"memory", "nonfinite"}:
                for rank, value in values.items():
                    metrics[f"{kind}/worker_{rank}/{what}"] = value
            else:
                combine = max if kind == "seconds" else sum
                metrics[name] = combine(values.values())
            if name == "seconds/generate" and metrics[name]:
                for rank, value in values.items():
                    metrics[f"throughput/idle_worker_{rank}"] = 1 - value / metrics[name]
        return metrics

    def _tell(self, method: str, role: Role, *arguments: Any) -> None:
        """Call a method on each rank of a role with the same arguments."""
        layout = self.layouts[role]
        calls = [arguments] * layout.world_size
        self.group.begin(method, calls, (), first=layout.first_rank).wait()

    def _asked(self, method: str, role: Role, sequences: Sequences, kind: type[AnswerT]) -> AnswerT:
        """Deal sequences to the replicas of a role; put their answers in the order of the batch."""
        replies, dealt = self._ask(method, role, sequences)
        columns = {}
        for name in (column.name for column in fields(kind)):
            parts = [getattr(reply, name) for reply in replies]
            columns[name] = _joined(parts, dealt, sequences.tokens_BT.shape)
        return kind(**columns)

    def _ask(self, method: str, role: Role, sequences: Sequences) -> tuple[list[Any], list[Tensor]]:
        """Deal sequences to the replicas of a role; return what each says, and its rows."""
        ahead = self.begun[method]
        call, dealt = ahead.popleft() if ahead else self._begin(method, role, sequences)
        return call.wait(), dealt

    def _begin(
        self, method: str, role: Role, sequences: Sequences
    ) -> tuple[ReplicasCall, list[Tensor]]:
        layout, count = self.layouts[role], self.layouts[role].replicas
        if self.costs is None:
            assert len(sequences) % count == 0, "validated: a batch divides over its replicas"
            dealt = list(torch.arange(len(sequences)).chunk(count))
        else:
            costs = self.costs(sequences.lengths_B.tolist())
            dealt = [torch.tensor(share) for share in partition(costs, count)]
        shares = [(sequences.rows(rows),) for rows in dealt]
        return begin_replicas(self.group, layout, method, shares), dealt


def _joined(parts: Sequence[Tensor], dealt: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """Join parts of a batch of `shape`, [B] each or [B, T], the T of which differ; 0 elsewhere."""
    joined = torch.zeros(shape[: parts[0].dim()])
    for part, rows in zip(parts, dealt, strict=True):
        if part.dim() > 1:
            joined[rows, : part.size(1)] = part
        else:
            joined[rows] = part
    return joined
