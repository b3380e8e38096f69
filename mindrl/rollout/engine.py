"""Interface of rollout engines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from mindrl.batch.prompts import PlacedImage
from mindrl.batch.rollouts import Responses
from mindrl.batch.route_keys import RoutePart
from mindrl.config.generate import SamplingConfig

EngineTag = Literal["weights", "kv_cache"]
"""Parts of the engine's memory that are released and allocated separately."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How responses are sampled."""

    section: SamplingConfig
    stop_token_ids: tuple[int, ...]
    """Tokens that end a response and are part of it."""
    samples_per_prompt: int = 1
    is_greedy: bool = False
    """Use the most likely token each time; then only `max_tokens` of the section applies."""
    is_seeded: bool = True
    """Sample each sequence with its own seed. False samples the sequences of a call together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A sequence to be completed, possibly with part of its response."""

    token_ids: tuple[int, ...]
    """Tokens of the prompt and of the response so far."""
    drawn: int
    """Number to subtract from the section's `max_tokens`: the response tokens so far, or more if a
    turn is limited."""
    seed: int
    images: tuple[PlacedImage, ...] = ()
    """Pictures of the prompt."""
    sampled: int = 0
    """Number of tokens up to the last that the policy sampled; 0 before the first one, or if no
    routes are replayed."""


class RolloutSink(Protocol):
    """Destination of this rank's shards of all weights, for one load."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each expected local tensor."""

    def open(self, name: str) -> Tensor:
        """Return the buffer of a local tensor."""

    def close(self, name: str) -> None:
        """Mark a local tensor as complete."""

    def finish(self) -> None:
        """Finish the load; all tensors must be closed."""


class RolloutEngine(Protocol):
    """The engine of one rollout replica, on one of its ranks.

    It starts with dummy weights; the first reshard loads real ones. Between rollouts its weights
    and its KV cache are off the device.
    """

    device_type: str

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[int],
        images: Sequence[Sequence[PlacedImage]] = (),
    ) -> Responses:
        """Complete each prompt once, in order. All ranks of a replica must make the same call.

        Prompts are token ids, and `images` the pictures of each if any has some; repeat a prompt to
        sample it more than once. There is one seed per prompt: a sequence does not depend on the
        others in its batch or replica, unless the sampling is not seeded.
        """

    def begin(self, requests: Sequence[Request], sampling: Sampling) -> None:
        """Start requests, which `advance` completes; all ranks of a replica make the same calls.

        A request that was taken back continues after its tokens; with greedy sampling the rest is
        the same as without the interruption.
        """

    def advance(
        self, steps: int, more: Sequence[Request] = (), until: int | None = None
    ) -> list[int]:
        """Run up to `steps` steps; each samples a token per sequence.

        `more` are further requests, appended to the existing ones. Stops early when `until`
        requests are complete, which depends on tokens alone. Returns the indices of the requests
        that were completed.
        """

    def next_logprobs(self, rows: Sequence[Sequence[int]], temperature: float) -> list[float]:
        """Return the log-prob of the last token of each row, given the tokens before it.

        In nats, of the full distribution at a temperature. No request may be open; all ranks of a
        replica must make the same call.
        """

    def answers(self, places: Sequence[int]) -> Responses:
        """Return the responses of completed requests, by index, without removing them."""

    def take_back(self) -> Responses:
        """Return the tokens of each request, in order, complete or not, and drop all requests."""

    def forget(self) -> None:
        """Invalidate the KV cache, because new weights follow. No request may be open."""

    def take_routes(self) -> dict[int, RoutePart]:
        """Return the routes of requests that ended since the last call, complete or not.

        Each key is that of all tokens of a sequence so far. Empty on all but one rank of a replica,
        and without router replay.
        """

    def flush_counts(self) -> dict[str, float]:
        """Return, by metric, the engine's steps and its preemptions for lack of KV cache.

        Counted since the last call. Each rank of a replica returns its share: the sum over all
        ranks counts each once.
        """

    def weight_sink(self, kept: str | None = None) -> RolloutSink:
        """Return the destination of the weights, which must be on the device.

        Weights whose names start with `kept` (a vision tower's) stay unchanged.
        """

    def offload(self) -> None:
        """Take weights and KV cache off the device; their contents are lost."""

    def onload(self, tag: EngineTag) -> None:
        """Allocate the weights, or the empty KV cache.

        Allocate the weights first, and load them through `weight_sink`.
        """

    def nbytes(self, tag: EngineTag) -> int:
        """Return the bytes of the weights or the KV cache on the device when allocated."""

    def device_bytes(self, tag: EngineTag) -> int:
        """Return the bytes of the weights or the KV cache on the device now."""
