"""The trainer's interface to the workers: whole batches in, whole batches out.

Shapes: B sequences, T positions.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from mindrl.batch.experience import CriticMinibatch, PolicyUpdate, WeightedSequences
from mindrl.batch.likely_tokens import LikelyTokens
from mindrl.batch.prompts import Prompt, sample_numbers, sequence_seed
from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.batch.sequence_trees import sequence_trees
from mindrl.batch.sequences import Logprobs, Sequences, SequenceScores, Values
from mindrl.batch.shared_prompts import deal
from mindrl.checkpoint.commits import SavedFiles
from mindrl.config.layout_keys import Role
from mindrl.layouts.layout import TrainLayout
from mindrl.memory.plan import MemoryPlan
from mindrl.observability.metrics import Metrics, joined_metrics
from mindrl.observability.timeline import MeasuredSnapshot
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.engine_rounds import EngineRounds, IsEnough, NextTurns, OnCompleted, RoundEnds
from mindrl.trainer.engines import ColocatedEngines, Engines
from mindrl.trainer.minibatches import MinibatchT
from mindrl.trainer.prompt_shares import PromptShares
from mindrl.trainer.ranks import Ranks, ReplicasCall, begin_replicas


class Watched(NamedTuple):
    """How a rollout reports complete responses while others are generated."""

    round_steps: int
    """Engine steps between two calls."""
    on_completed: OnCompleted
    """Receives complete responses by their rows."""


SequencesT = TypeVar("SequencesT", bound=Sequences)
AnswerT = TypeVar("AnswerT", Logprobs, Values, SequenceScores)


@dataclass(frozen=True)
class WorkerHandle:
    """Distributes batches to the replicas of each role and joins their results.

    Roles that share devices take turns: workers switch from one role's call to the next.
    """

    group: Ranks
    layouts: Mapping[Role, TrainLayout]
    """Layouts of the roles of the run."""
    engines: Engines
    """Engines of the rollout."""
    seed: int = field(kw_only=True)
    """Seed of the run."""
    costs: Callable[[Sequence[int]], Sequence[float]] | None = field(default=None, kw_only=True)
    """Returns the cost of sequences from their lengths; training replicas then get equal work. None
    gives them equal numbers of sequences, in order."""
    shares_prompts: frozenset[Role] = field(default=frozenset(), kw_only=True)
    """Roles whose engines compute a prompt once for all of its sequences: these go to the same
    replica, if the load stays balanced."""
    engine_rows: int = field(kw_only=True)
    """Number of sequences that an engine processes in one step."""
    teacher: Callable[[Sequences], Logprobs] | None = field(default=None, kw_only=True)
    """Returns the log-probs of a teacher on a server. None if a role of the workers has it."""
    prompt_shares: PromptShares = field(default_factory=PromptShares, init=False)
    started: dict[str, deque[tuple[ReplicasCall, list[Tensor]]]] = field(
        default_factory=lambda: defaultdict(deque), init=False
    )
    """Calls started ahead, by method, with the rows of each replica."""

    def generate_sequences(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        step: int,
        answered: Sequence[Prompt] = (),
        watched: Watched | None = None,
    ) -> Rollouts:
        """Sample `sampling.samples_per_prompt` responses to each prompt, prompt by prompt.

        A prompt that is also in `answered` gets different responses. With `watched` the
        engines generate in rounds.
        """
        count, before = sampling.samples_per_prompt, len(answered)
        group = [index for index in range(len(prompts)) for _ in range(count)]
        token_ids = [prompts[index].token_ids for index in group]
        images = [prompts[index].images for index in group]
        uids = [prompt.uid for prompt in (*answered, *prompts) for _ in range(count)]
        seeds = [
            sequence_seed(self.seed, step=step, uid=uid, sample=sample)
            for uid, sample in [*zip(uids, sample_numbers(uids), strict=True)][before * count :]
        ]
        rows_of = self.prompt_shares.deal(prompts, count, self.engines.replicas)
        if watched is not None:
            requests = [
                Request(token_ids=prompts[index].token_ids, drawn=0, seed=seed, images=placed)
                for index, seed, placed in zip(group, seeds, images, strict=True)
            ]
            rounds = self._rounds(requests, sampling, RoundEnds(watched.round_steps), rows_of)
            responses = rounds.run(
                lambda whole: len(whole) == len(requests), on_completed=watched.on_completed
            )
        else:
            # Only models that read pictures take the last argument.
            shares = [
                (
                    [token_ids[row] for row in rows],
                    sampling,
                    [seeds[row] for row in rows],
                    *([[images[row] for row in rows]] if any(images) else []),
                )
                for rows in rows_of
            ]
            replies: list[Responses] = self.engines.each("generate_sequences", shares)
            responses = Responses.joined(replies).in_order([*chain.from_iterable(rows_of)])
        self.prompt_shares.learn(prompts, count, responses.lengths_B.tolist())
        asked = [prompt.token_ids for prompt in prompts]
        return Rollouts.from_responses(asked, responses, group).with_images(images)

    def next_logprobs(self, rows: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Return the log-prob of the last token of each row, from each replica's engine."""
        asked = [(rows, temperature)] * self.engines.replicas
        return self.engines.each("next_logprobs", asked)

    def generate_until(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        is_enough: IsEnough,
        *,
        rounds: RoundEnds,
        next_turns: NextTurns | None = None,
        on_completed: OnCompleted | None = None,
    ) -> Responses:
        """Generate until the completed requests are enough; return all responses, in order.

        `is_enough` is called after rounds, with the indices of completed requests. An engine has at
        most twice as many requests as rows; further ones are sent when some have completed. With
        `next_turns` requests may follow others, and a round ends with the first completed request
        of an engine. Unless all engines share rounds, the order in which requests complete and
        follow depends on timing.
        """
        work = self._rounds(requests, sampling, rounds)
        responses = work.run(is_enough, next_turns, on_completed)
        # The length of a new response includes all requests that followed it.
        lengths = [0] * len(work.requests)
        for first, length in zip(work.first, responses.lengths_B.tolist(), strict=True):
            lengths[first] += length
        self.prompt_shares.learn_requests(work.requests, lengths)
        return responses

    def _rounds(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        rounds: RoundEnds,
        assigned: Sequence[Sequence[int]] | None = None,
    ) -> EngineRounds:
        engines, replicas = self.engines, self.engines.replicas
        assert isinstance(engines, ColocatedEngines), "separate replicas have rounds of their own"
        return EngineRounds(
            engines=engines,
            rows=self.engine_rows,
            sampling=sampling,
            rounds=rounds,
            requests=[*requests],
            assigned=assigned or self.prompt_shares.deal_requests(requests, replicas),
        )

    def begin(self, method: str, role: Role, batches: Iterable[Sequences]) -> None:
        """Start calls of a role with these batches, in order.

        Roles on other devices run concurrently. The results are fetched by the usual calls.
        """
        for batch in batches:
            if isinstance(batch, WeightedSequences):
                filled: Sequences = self._one_each(role, batch)
            else:
                filled = self._filled(role, batch)
            self.started[method].append(self._begin(method, role, filled))

    def keep_routes(self, parcels: Sequence[Any]) -> None:
        """Send references to the routes of sampled sequences to the actor's ranks."""
        ranks = self.layouts["actor"].world_size
        dealt = [tuple(parcels[rank::ranks]) for rank in range(ranks)]
        self.group.begin("keep_routes", dealt, ()).wait()

    def retain_routes(self, keys: Sequence[int]) -> None:
        """Let the actor's ranks forget the routes of all sequences but those with these keys."""
        self._call_ranks("retain_routes", "actor", keys)

    def compute_log_prob(self, sequences: Sequences) -> Logprobs:
        """Compute log-probs with the actor's current weights."""
        return self._forward("compute_log_prob", "actor", sequences, Logprobs)

    def compute_ref_log_prob(self, sequences: Sequences) -> Logprobs:
        """Compute log-probs with the reference, which may be the actor's base."""
        role: Role = "ref" if "ref" in self.layouts else "actor"
        return self._forward("compute_ref_log_prob", role, sequences, Logprobs)

    def compute_teacher_log_prob(self, sequences: Sequences) -> Logprobs:
        """Compute log-probs with the teacher of each sequence, one teacher after another."""
        if self.teacher is not None:
            return self.teacher(sequences)
        dealt, name = sequences.by_teacher(), "compute_teacher_log_prob"
        found = [self._forward(name, "teacher", sequences.rows(rows), Logprobs) for rows in dealt]
        return _joined_columns(Logprobs, found, dealt, sequences.tokens_BT.shape)

    def reset_reference(self) -> None:
        """Copy the actor's weights into the reference."""
        self._call_ranks("reset_reference", "ref")

    def compute_values(self, sequences: Sequences) -> Values:
        """Compute values with the critic's current weights."""
        return self._forward("compute_values", "critic", sequences, Values)

    def compute_scores(self, sequences: Sequences) -> Values:
        """Compute scores with the reward model that is trained."""
        return self._forward("compute_scores", "actor", sequences, Values)

    def compute_rewards(self, sequences: Sequences) -> SequenceScores:
        """Score whole sequences with the reward model."""
        return self._forward("compute_rewards", "reward", sequences, SequenceScores)

    def update(self, minibatch: WeightedSequences) -> PolicyUpdate:
        """Run one optimizer step of the actor; return the results for the whole minibatch."""
        filled = self._one_each("actor", minibatch)
        replies, dealt = self._call_replicas("update", "actor", filled)
        first: PolicyUpdate = replies[0]
        if first.logprobs_BT is None:
            return first
        parts = [reply.logprobs_BT for reply in replies]
        joined_BT = _joined(parts, dealt, filled.tokens_BT.shape)
        return replace(first, logprobs_BT=joined_BT[: len(minibatch)])

    def update_critic(self, minibatch: CriticMinibatch) -> dict[str, float]:
        """Run one optimizer step of the critic; return metrics of the whole minibatch."""
        filled = self._one_each("critic", minibatch)
        replies, _ = self._call_replicas("update_critic", "critic", filled)
        return dict(replies[0])

    def export(self, role: Role, folder: Path, record: Mapping[str, object]) -> None:
        """Export a role's weights as a Hugging Face folder, with a record about them."""
        method = "export" if role == "actor" else f"export_{role}"
        self._call_ranks(method, role, str(folder), record)

    def save_bytes(self) -> int:
        """Return the bytes of a checkpoint, without names."""
        return sum(self.group.call_all("save_bytes"))

    def begin_save(self, folder: Path) -> None:
        """Write the state of the trained models to a folder during the next rollout."""
        self.group.call_all("begin_save", str(folder))

    def finish_save(self) -> list[SavedFiles]:
        """Wait for `begin_save`; return the files that each rank has written."""
        return self.group.call_all("finish_save")

    def verify_checkpoint(self, folder: Path) -> list[str]:
        """Let each rank verify its share of a checkpoint; return the problems that they found."""
        return [each for each in self.group.call_all("verify_checkpoint", str(folder)) if each]

    def restore(self, folder: Path, updates: Mapping[str, int]) -> None:
        """Restore a checkpoint."""
        self.group.call_all("restore", str(folder), updates)

    def load_weights(self, folder: Path, version: int) -> None:
        """Load the weights of a Hugging Face folder into the engines of a rollout job."""
        self.group.call_all("load_weights", str(folder), version)

    def keep_export(self, role: Role, folder: Path, kept: Path) -> None:
        """Keep a role's export under a second name; replacing the first does not affect it."""
        # The role's first rank made the folder; other nodes may not see it.
        first, names = self.layouts[role].first_rank, (str(folder), str(kept))
        self.group.begin("keep_export", [names], (), first=first).wait()

    def memory_plan(self) -> MemoryPlan:
        """Return the workers' memory plan of all devices."""
        plan: MemoryPlan = self.group.call_all("memory_plan")[0]
        return plan

    def record_memory(self, is_on: bool) -> None:
        """Start or stop recording each worker's memory."""
        self.group.call_all("record_memory", is_on)

    def flush_moments(self) -> list[list[MeasuredSnapshot]]:
        """Return each worker's recorded moments since the last call, by rank."""
        return self.group.call_all("flush_moments")

    def flush_metrics(self) -> Metrics:
        """Return the costs of switches since the last call, memory, and non-finite counts."""
        replies: list[Metrics] = self.group.call_all("flush_metrics")
        return joined_metrics(replies, self.engines.flush_metrics())

    def _call_ranks(self, method: str, role: Role, *arguments: Any) -> None:
        """Call a method on each rank of a role with the same arguments."""
        layout = self.layouts[role]
        calls = [arguments] * layout.world_size
        self.group.begin(method, calls, (), first=layout.first_rank).wait()

    def _forward(
        self, method: str, role: Role, sequences: Sequences, kind: type[AnswerT]
    ) -> AnswerT:
        """Distribute sequences to the replicas of a role; return the results in batch order."""
        filled = self._filled(role, sequences)
        replies, dealt = self._call_replicas(method, role, filled)
        return _joined_columns(kind, replies, dealt, filled.tokens_BT.shape, len(sequences))

    def _filled(self, role: Role, sequences: Sequences) -> Sequences:
        """Add copies of the first sequence for equal shares; their results are dropped later."""
        return _with_copies(sequences, -len(sequences) % self.layouts[role].replicas)

    def _one_each(self, role: Role, minibatch: MinibatchT) -> MinibatchT:
        """Add copies without weight if there are fewer sequences than replicas.

        Failed conversations, which are not trained on, may leave so few.
        """
        count = len(minibatch)
        filled = _with_copies(minibatch, max(0, self.layouts[role].replicas - count))
        if filled is minibatch:
            return minibatch
        weights_BT = filled.token_weights_BT.clone()
        weights_BT[count:] = 0.0
        return replace(filled, token_weights_BT=weights_BT)

    def _call_replicas(
        self, method: str, role: Role, sequences: Sequences
    ) -> tuple[list[Any], list[Tensor]]:
        """Distribute sequences to the replicas of a role; return each one's result and rows."""
        ahead = self.started[method]
        call, dealt = ahead.popleft() if ahead else self._begin(method, role, sequences)
        return call.wait(), dealt

    def _begin(
        self, method: str, role: Role, sequences: Sequences
    ) -> tuple[ReplicasCall, list[Tensor]]:
        layout, count = self.layouts[role], self.layouts[role].replicas
        if self.costs is None:
            assert len(sequences) % count == 0, "validated: the replicas divide a batch"
            dealt = list(torch.arange(len(sequences)).chunk(count))
        else:
            lengths = sequences.lengths_B.tolist()
            found = sequence_trees(sequences, shares_prompts=role in self.shares_prompts)
            dealt = [torch.tensor(rows) for rows in deal(found, lengths, self.costs, count)]
        shares = [(sequences.rows(rows),) for rows in dealt]
        return begin_replicas(self.group, layout, method, shares), dealt


def _with_copies(sequences: SequencesT, count: int) -> SequencesT:
    """Add copies of the first sequence."""
    if not count:
        return sequences
    return sequences.rows(torch.tensor([*range(len(sequences)), *[0] * count]))


def _joined_columns(
    kind: type[AnswerT],
    parts: Sequence[object],
    dealt: Sequence[Tensor],
    shape: torch.Size,
    count: int | None = None,
) -> AnswerT:
    """Join the results of parts of a batch of `shape`, [B, T]; keep its first `count` rows."""
    columns: dict[str, Any] = {}
    for name in (column.name for column in fields(kind)):
        found = [getattr(part, name) for part in parts]
        if isinstance(found[0], LikelyTokens):
            order = torch.cat([*dealt]).argsort()[:count]
            columns[name] = LikelyTokens.joined(found).rows(order)
        elif found[0] is not None:
            columns[name] = _joined(found, dealt, shape)[:count]
    return kind(**columns)


def _joined(parts: Sequence[Tensor], dealt: Sequence[Tensor], shape: torch.Size) -> Tensor:
    """Join parts of a batch of `shape`, [B] or [B, T]; T may differ; 0 elsewhere."""
    joined = torch.zeros(shape[: parts[0].dim()], dtype=parts[0].dtype)
    for part, rows in zip(parts, dealt, strict=True):
        if part.dim() > 1:
            joined[rows, : part.size(1)] = part
        else:
            joined[rows] = part
    return joined
