"""A rollout engine on a device of its own, and the way that its weights come."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch

from mindrl.batch.rollouts import Responses
from mindrl.checkpoint.readers import fill, folder_reader
from mindrl.errors import AnswerError, ReshardError
from mindrl.memory.plan import MemoryPlan
from mindrl.models.placement import ShardingTable
from mindrl.observability.timing import StageTimer
from mindrl.platform.host_memory import process_memory
from mindrl.rollout.engine import Request, RolloutEngine, RolloutSink, Sampling
from mindrl.rollout.soundness import unsound
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.weight_links import ReceivingEnd


@dataclass(kw_only=True)
class RolloutWorker:
    """Answers prompts with weights that training ranks send; every rank of a replica does alike.

    Its weights and its KV cache are on the device always. It answers nothing before its first
    weights, and nothing behind a transfer that failed.
    """

    rollout: RolloutEngine
    table: ShardingTable
    """What this rank's engine takes of the weights."""
    end: ReceivingEnd | None = None
    """None where they come from folders alone."""
    ledger: DeviceLedger
    plan: MemoryPlan
    vocabulary: int
    """Tokens of the model."""
    in_flight_bytes: int = 0
    """The most that this rank has in flight while weights come."""
    version: int | None = None
    """Of the weights; None where they mean nothing."""
    sampling: Sampling | None = None
    """Of the requests that there are."""
    most: list[int] = field(default_factory=list)
    """How many tokens each of them may have."""
    timer: StageTimer = field(default_factory=StageTimer)
    metrics: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def join_link(self, address: tuple[str, int], replica: int, generation: int) -> None:
        """Meet the training ranks, which `open_link`. A collective with them.

        Raises:
            ReshardError: Names who did not come in time.
        """
        self._end.join(address, replica, generation)

    def receive_weights(self, version: int) -> None:
        """Take the weights that the training ranks send. A collective with them.

        Raises:
            ReshardError: A peer is gone or silent, or what arrived is not what was sent.
        """
        with self._new_weights(version) as sink, self.ledger.staging(self.in_flight_bytes):
            moved = self._end.receive(sink)
        for name, nbytes in moved.items():
            self.metrics[f"bytes/reshard_{name}"] += nbytes

    def load_weights(self, folder: str, version: int) -> None:
        """Take this rank's part of the weights of a Hugging Face folder.

        Raises:
            ModelError: A file is missing, unreadable, or lacks a tensor; there are no weights then.
        """
        with ExitStack() as stack, self._new_weights(version) as sink:
            read = folder_reader(folder, stack)
            for name, entry in self.table.items():
                fill(sink.open(name), entry, read)
                sink.close(name)

    def generate_sequences(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> Responses:
        """Answer this replica's prompts, in order.

        Raises:
            ReshardError: There are no weights.
            AnswerError: The engine answers with what it cannot have drawn.
        """
        self._require_weights()
        self.sampling, self.most = sampling, [sampling.section.max_tokens] * len(prompts)
        with self.timer("generate"):
            return self._noted(self.rollout.generate(prompts, sampling, seeds))

    def next_logprobs(self, rows: Sequence[Sequence[int]], temperature: float) -> list[float]:
        """Return the log-prob of the last token of each row, as `RolloutEngine.next_logprobs`.

        Raises:
            ReshardError: There are no weights.
        """
        self._require_weights()
        return self.rollout.next_logprobs(rows, temperature)

    def begin_sequences(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Take this replica's requests, which `advance_sequences` answers.

        Raises:
            ReshardError: There are no weights.
        """
        self._require_weights()
        self.sampling, self.most = sampling, []
        self._expect(requests)
        self.rollout.begin(requests, sampling)

    def advance_sequences(self, steps: int, more: Sequence[Request]) -> tuple[list[int], Responses]:
        """Let the engine take steps, with more requests behind those that it has.

        Returns the places of requests that are now answered whole, and the responses to them;
        raises as `generate_sequences`.
        """
        self._require_weights()
        self._expect(more)
        with self.timer("generate"):
            whole = self.rollout.advance(steps, more)
            responses = self.rollout.answers(whole)
        return whole, self._sound(responses, [self.most[place] for place in whole])

    def take_sequences(self) -> Responses:
        """Return what was drawn for this replica's requests, in order; raises as above."""
        return self._noted(self.rollout.take_back(), are_whole=False)

    def memory_plan(self) -> MemoryPlan:
        """Return what lies on every device of this replica."""
        return self.plan

    def flush_metrics(self) -> dict[str, float]:
        """Return what was measured since the last call, and this process's memory."""
        memory = process_memory()
        metrics, self.metrics = dict(self.metrics), defaultdict(float)
        return {
            **metrics,
            "seconds/generate": 0.0,
            **self.timer.flush(),
            "throughput/preemptions": self.rollout.flush_preemptions(),
            "memory/device_peak_bytes": float(self.ledger.flush_peak()),
            "memory/rss_bytes": float(memory.rss_bytes),
            "memory/peak_rss_bytes": float(memory.peak_rss_bytes),
        }

    @contextmanager
    def _new_weights(self, version: int) -> Iterator[RolloutSink]:
        """Let the body fill the engine's weights, which then are of a version."""
        began, self.version = time.perf_counter(), None
        # What lies in the KV cache is of other weights.
        self.rollout.forget()
        sink = self.rollout.weight_sink()
        yield sink
        sink.finish()
        self.version = version
        self.metrics["seconds/receive_weights"] += time.perf_counter() - began

    @property
    def _end(self) -> ReceivingEnd:
        assert self.end is not None, "weights travel"
        return self.end

    def _require_weights(self) -> None:
        if self.version is None:
            raise ReshardError("this replica has no weights: none came, or the last did not arrive")

    def _expect(self, requests: Sequence[Request]) -> None:
        assert self.sampling is not None, "it has begun"
        longest = self.sampling.section.max_tokens
        self.most += [longest - request.drawn for request in requests]

    def _noted(self, responses: Responses, *, are_whole: bool = True) -> Responses:
        if bad := int((~responses.logprobs_N.isfinite()).sum()):
            what = "rollout_logprobs"
            self.metrics[f"nonfinite/{what}"] += bad
        return self._sound(responses, self.most, are_whole=are_whole)

    def _sound(
        self, responses: Responses, most: Sequence[int], *, are_whole: bool = True
    ) -> Responses:
        """Refuse what no engine can have drawn; log-probs the run judges by itself."""
        tokens = replace(responses, logprobs_N=torch.zeros_like(responses.logprobs_N))
        if what := unsound(tokens, most, self.vocabulary, are_whole=are_whole):
            raise AnswerError(f"the engine of this replica answered with garbage: {what}")
        return responses
