"""A rollout engine on its own device, and the transfer of its weights."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch

from mindrl.batch.parcels import Parcel
from mindrl.batch.prompts import PlacedImage
from mindrl.batch.rollouts import Responses
from mindrl.checkpoint.readers import fill, folder_reader
from mindrl.errors import AnswerError, ReshardError
from mindrl.memory.plan import MemoryPlan
from mindrl.models.placement import ShardingTable
from mindrl.observability.timing import StageTimer
from mindrl.platform.host_memory import process_memory
from mindrl.rollout.engine import Request, RolloutEngine, RolloutSink, Sampling
from mindrl.rollout.response_checks import response_error
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.weight_links import ReceivingEnd


@dataclass(kw_only=True)
class RolloutWorker:
    """Generates with weights sent by training ranks; all ranks of a replica make the same calls.

    Weights and KV cache always stay on the device. It refuses to generate before its first weights,
    and after a failed transfer.
    """

    inference_model: RolloutEngine
    table: ShardingTable
    """Sharding of the weights in this rank's engine."""
    end: ReceivingEnd | None = None
    """None if weights are only loaded from folders."""
    ledger: DeviceLedger
    plan: MemoryPlan
    vocabulary: int
    """Vocabulary size of the model."""
    in_flight_bytes: int = 0
    """Maximum bytes that this rank has in flight during a transfer."""
    version: int | None = None
    """Version of the weights; None if they are not valid."""
    sampling: Sampling | None = None
    """Sampling of the current requests."""
    most: list[int] = field(default_factory=list)
    """Maximum number of tokens of each request."""
    timer: StageTimer = field(default_factory=StageTimer)
    metrics: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def join_link(self, address: tuple[str, int], replica: int, generation: int) -> None:
        """Join a link with the training ranks, in their `open_link`. A collective.

        Raises:
            ReshardError: Names the ranks that did not join in time.
        """
        self._end.join(address, replica, generation)

    def receive_weights(self, version: int) -> None:
        """Receive the weights that the training ranks send. A collective with them.

        Raises:
            ReshardError: A peer has ended or does not respond, or the weights arrived corrupted.
        """
        new = self._new_weights(version, self._end.kept)
        with new as sink, self.ledger.staging(self.in_flight_bytes):
            moved = self._end.receive(sink)
        for name, nbytes in moved.items():
            self.metrics[f"bytes/reshard_{name}"] += nbytes

    def load_weights(self, folder: str, version: int) -> None:
        """Load this rank's part of the weights of a Hugging Face folder.

        Raises:
            ModelError: A file is missing, unreadable, or lacks a tensor; the weights are then not
                valid.
        """
        with ExitStack() as stack, self._new_weights(version) as sink:
            read = folder_reader(folder, stack)
            for name, entry in self.table.items():
                fill(sink.open(name), entry, read)
                sink.close(name)

    def generate_sequences(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        images: Sequence[Sequence[PlacedImage]] = (),
    ) -> Responses:
        """Generate a response to each of this replica's prompts, in order.

        Raises:
            ReshardError: There are no weights.
            AnswerError: The engine returns responses that it cannot have sampled.
        """
        self._require_weights()
        self.sampling, self.most = sampling, [sampling.section.max_tokens] * len(prompts)
        with self.timer("generate"):
            return self._noted(self.inference_model.generate(prompts, sampling, seeds, images))

    def next_logprobs(self, rows: Sequence[Sequence[int]], temperature: float) -> list[float]:
        """Return the log-prob of the last token of each row, as `RolloutEngine.next_logprobs`.

        Raises:
            ReshardError: There are no weights.
        """
        self._require_weights()
        return self.inference_model.next_logprobs(rows, temperature)

    def begin_sequences(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Start this replica's requests, which `advance_sequences` completes.

        Raises:
            ReshardError: There are no weights.
        """
        self._require_weights()
        self.sampling, self.most = sampling, []
        self._expect(requests)
        self.inference_model.begin(requests, sampling)

    def advance_sequences(
        self, steps: int, more: Sequence[Request], until: int | None = None
    ) -> tuple[list[int], Responses]:
        """Add requests and run steps of the engine, as `RolloutEngine.advance`.

        Returns the indices of requests that were completed, and their responses. Raises like
        `generate_sequences`.
        """
        self._require_weights()
        self._expect(more)
        with self.timer("generate"):
            whole = self.inference_model.advance(steps, more, until)
            responses = self.inference_model.answers(whole)
        return whole, self._sound(responses, [self.most[place] for place in whole])

    def take_sequences(self) -> Responses:
        """Return the sampled tokens of this replica's requests, in order; may raise AnswerError."""
        return self._noted(self.inference_model.take_back(), are_complete=False)

    def take_routes(self) -> Parcel:
        """Return the routes of requests that ended, as `RolloutEngine.take_routes`."""
        return Parcel(self.inference_model.take_routes())

    def memory_plan(self) -> MemoryPlan:
        """Return the memory plan of this replica's devices."""
        return self.plan

    def flush_metrics(self) -> dict[str, float]:
        """Return the metrics since the last call, and this process's memory."""
        memory = process_memory()
        metrics, self.metrics = dict(self.metrics), defaultdict(float)
        return {
            **metrics,
            "seconds/generate": 0.0,
            **self.timer.flush(),
            **self.inference_model.flush_counts(),
            "memory/device_peak_bytes": float(self.ledger.flush_peak()),
            "memory/rss_bytes": float(memory.rss_bytes),
            "memory/peak_rss_bytes": float(memory.peak_rss_bytes),
        }

    @contextmanager
    def _new_weights(self, version: int, kept: str | None = None) -> Iterator[RolloutSink]:
        """Load new weights, except those of a prefix, in the body; set the version on success."""
        began, self.version = time.perf_counter(), None
        # The KV cache belongs to the old weights.
        self.inference_model.forget()
        sink = self.inference_model.weight_sink(kept)
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
            raise ReshardError("this replica has no weights: the last transfer did not complete")

    def _expect(self, requests: Sequence[Request]) -> None:
        assert self.sampling is not None, "generation has started"
        longest = self.sampling.section.max_tokens
        self.most += [longest - request.drawn for request in requests]

    def _noted(self, responses: Responses, *, are_complete: bool = True) -> Responses:
        if bad := int((~responses.logprobs_N.isfinite()).sum()):
            what = "rollout_logprobs"
            self.metrics[f"nonfinite/{what}"] += bad
        return self._sound(responses, self.most, are_complete=are_complete)

    def _sound(
        self, responses: Responses, most: Sequence[int], *, are_complete: bool = True
    ) -> Responses:
        """Raise if the tokens are impossible; the run checks log-probs itself."""
        tokens = replace(responses, logprobs_N=torch.zeros_like(responses.logprobs_N))
        if what := response_error(tokens, most, self.vocabulary, are_complete=are_complete):
            raise AnswerError(f"the engine of this replica returned an invalid response: {what}")
        return responses
