"""The trainer's view of the workers: whole batches in, whole batches out.

Shapes: B sequences, T positions.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from mindrl.allocation.layout import RolloutLayout, TrainLayout, even_bounds
from mindrl.batch.balance import partition
from mindrl.batch.experience import Minibatch, Scored, Sequences
from mindrl.batch.prompts import Prompt, Sampling, sequence_seed
from mindrl.batch.rollouts import Response, Rollouts


class Ranks(Protocol):
    """Workers that are called together, such as a `WorkerGroup`."""

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method on each rank with its own arguments."""

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on each rank with the same arguments."""


class ColocatedActor:
    """Deals batches to the replicas of either side and joins what they return."""

    def __init__(
        self,
        group: Ranks,
        train: TrainLayout,
        rollout: RolloutLayout,
        *,
        seed: int,
        costs: Callable[[Sequence[int]], Sequence[float]] | None = None,
    ) -> None:
        """Take the layouts of both sides and the seed of the run.

        Args:
            group: The workers.
            train: Layout of the training side.
            rollout: Layout of the rollout side.
            seed: Of the run.
            costs: From the lengths of sequences to their work; training replicas then get equal
                work. None gives them equally many sequences, in order.
        """
        self.group = group
        self.train = train
        self.rollout = rollout
        self.seed = seed
        self.costs = costs

    @contextmanager
    def rollout_phase(self) -> Iterator[None]:
        """Give the devices to the rollout engine for a while."""
        with self._phase("rollout"):
            yield

    @contextmanager
    def train_phase(self) -> Iterator[None]:
        """Bring gradients and optimizer state to the devices for a while."""
        with self._phase("train"):
            yield

    def generate_sequences(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, step: int
    ) -> Rollouts:
        """Sample `sampling.samples_per_prompt` responses to each prompt, prompt by prompt."""
        count = sampling.samples_per_prompt
        # A step that goes over the end of an epoch may hold a prompt twice: go on counting.
        drawn: Counter[int] = Counter()
        repeated = []
        for index, prompt in enumerate(prompts):
            first = drawn[prompt.uid]
            repeated += [(index, prompt, first + sample) for sample in range(count)]
            drawn[prompt.uid] += count
        token_ids = [prompt.token_ids for _, prompt, _ in repeated]
        seeds = [
            sequence_seed(self.seed, step=step, uid=prompt.uid, sample=sample)
            for _, prompt, sample in repeated
        ]
        shares = [
            (token_ids[start:end], sampling, seeds[start:end])
            for start, end in even_bounds(len(repeated), self.rollout.replicas)
        ]
        replies: list[list[Response]] = self._per_replica(
            "generate_sequences", self.rollout, shares
        )
        responses = [response for reply in replies for response in reply]
        return Rollouts.from_responses(token_ids, responses, [index for index, _, _ in repeated])

    def compute_log_prob(self, sequences: Sequences) -> Scored:
        """Score sequences with the actor's current weights."""
        return self._score("compute_log_prob", sequences)

    def compute_ref_log_prob(self, sequences: Sequences) -> Scored:
        """Score sequences with the reference."""
        return self._score("compute_ref_log_prob", sequences)

    def update(self, minibatch: Minibatch) -> dict[str, float]:
        """Take one optimizer step; returns metrics of the whole minibatch."""
        shares = [(minibatch.rows(rows),) for rows in self._deal(minibatch)]
        replies: list[dict[str, float]] = self._per_replica("update", self.train, shares)
        return replies[0]

    def export(self, folder: Path) -> None:
        """Write the actor's weights as a Hugging Face folder."""
        self.group.call_all("export", str(folder))

    def flush_metrics(self) -> dict[str, float]:
        """Return what the switches cost since the last call, and each worker's memory.

        Seconds are those of the slowest worker, bytes are summed over the workers.
        """
        replies: list[dict[str, float]] = self.group.call_all("flush_metrics")
        metrics: dict[str, float] = {}
        for name in replies[0]:
            values = [reply[name] for reply in replies]
            if name.startswith("memory/"):
                for rank, value in enumerate(values):
                    metrics[name.replace("memory/", f"memory/worker_{rank}/")] = value
            else:
                metrics[name] = max(values) if name.startswith("seconds/") else sum(values)
        return metrics

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        self.group.call_all("enter", name)
        yield
        # Not in a finally: after an error the workers may be gone, and the run ends anyway.
        self.group.call_all("enter", "forward")

    def _score(self, method: str, sequences: Sequences) -> Scored:
        dealt = self._deal(sequences)
        shares = [(sequences.rows(rows),) for rows in dealt]
        replies: list[Scored] = self._per_replica(method, self.train, shares)
        shape = sequences.tokens_BT.shape
        return Scored(
            logprobs_BT=_join([reply.logprobs_BT for reply in replies], dealt, shape),
            entropy_BT=_join([reply.entropy_BT for reply in replies], dealt, shape),
        )

    def _deal(self, sequences: Sequences) -> list[Tensor]:
        """Return the rows of each training replica."""
        count = self.train.replicas
        if self.costs is None:
            assert len(sequences) % count == 0, "validated: a batch divides over its replicas"
            return list(torch.arange(len(sequences)).chunk(count))
        shares = partition(self.costs(sequences.lengths_B.tolist()), count)
        return [torch.tensor(share) for share in shares]

    def _per_replica(
        self, method: str, layout: TrainLayout | RolloutLayout, shares: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Give all ranks of a replica its share; return what the replicas' first ranks say."""
        arguments = [shares[layout.replica_of(rank)] for rank in range(layout.world_size)]
        replies = self.group.call(method, arguments)
        return [replies[rank] for rank in layout.leaders]


def _join(parts: Sequence[Tensor], dealt: Sequence[Tensor], shape: torch.Size) -> Tensor:
    joined_BT = torch.zeros(shape)
    for part, rows in zip(parts, dealt, strict=True):
        joined_BT[rows, : part.size(1)] = part
    return joined_BT
