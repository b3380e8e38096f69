"""What a run asks of whatever answers its prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from mindrl.batch.rollouts import Responses
from mindrl.config.generate import SamplingConfig

EngineTag = Literal["weights", "kv_cache"]
"""What the engine gives back and takes apart from the rest."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How responses are drawn."""

    section: SamplingConfig
    stop_token_ids: tuple[int, ...]
    """A response ends behind the first of these; it is part of the response."""
    samples_per_prompt: int = 1
    is_greedy: bool = False
    """Take the most likely token each time; of the section, `max_tokens` alone then counts."""
    is_seeded: bool = True
    """Draw each sequence with its own seed. False draws those of a call together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A sequence that is to be answered, or to be answered further."""

    token_ids: tuple[int, ...]
    """Of the prompt, and of the response as far as it has come."""
    drawn: int
    """How many of them are the response's."""
    seed: int


class RolloutSink(Protocol):
    """Where this rank's shards of all weights go; for one load of them."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each local tensor that is expected."""

    def open(self, name: str) -> Tensor:
        """Return the memory that takes a local tensor."""

    def close(self, name: str) -> None:
        """Take a local tensor as complete."""

    def finish(self) -> None:
        """End the load; all tensors must be closed."""


class RolloutEngine(Protocol):
    """The engine of one rollout replica, as one of its ranks sees it.

    It starts with weights that mean nothing; the first reshard gives it real ones. Between
    rollouts its weights and its KV cache are off the device.
    """

    device_type: str

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[int]
    ) -> Responses:
        """Answer each prompt once, in order. All ranks of a replica must make the same call.

        Prompts are token ids; repeat one to sample it more than once. There is one seed for each:
        a sequence does not depend on which others share its batch or its replica, unless the
        sampling is not seeded.
        """

    def begin(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Take requests, which `advance` answers. All ranks of a replica must make the same calls.

        One that was taken back goes on with the tokens that it has; of a greedy one the rest is
        what it would have been.
        """

    def advance(self, steps: int, more: Sequence[Request] = ()) -> list[int]:
        """Take so many steps, or fewer until all is answered; a step draws a token of a sequence.

        More requests come behind those that there are. Returns the places of the requests whose
        responses have become whole.
        """

    def next_logprobs(self, rows: Sequence[Sequence[int]], temperature: float) -> list[float]:
        """Return the log-prob of the last token of each row, given the tokens before it.

        In nats, of the whole distribution at a temperature. Of a token that is not among the most
        likely ones it returns the least that it knows, which is an upper bound. No request may be
        open; all ranks of a replica must make the same call.
        """

    def answers(self, places: Sequence[int]) -> Responses:
        """Return what was drawn for requests that are whole, by their places; nothing changes."""

    def take_back(self) -> Responses:
        """Return what was drawn for each request, in order, whole or not; the engine drops them."""

    def forget(self) -> None:
        """Empty the KV cache, which stays: its weights are about to change. Nothing may be open."""

    def flush_preemptions(self) -> float:
        """Return how often a sequence was taken back for want of KV cache since the last call.

        Of a replica's ranks each returns its share: the sum over all ranks counts each once.
        """

    def weight_sink(self) -> RolloutSink:
        """Return where the weights go; they have to be on the device."""

    def offload(self) -> None:
        """Take weights and KV cache off the device; their contents are lost."""

    def onload(self, tag: EngineTag) -> None:
        """Give the weights their memory back, or the KV cache its own, empty.

        The weights have to be there first, and have to be loaded through `weight_sink`.
        """

    def nbytes(self, tag: EngineTag) -> int:
        """Return what the weights or the KV cache take on the device."""

    def device_bytes(self, tag: EngineTag) -> int:
        """Return what is on the device of the weights or of the KV cache now."""
