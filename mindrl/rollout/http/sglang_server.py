"""SGLang's own server, by its published endpoints.

Read in SGLang 0.5.6.post2 and 0.5.23, and not run: scripts/check_engine_contract.py compares the
endpoints with those of the published packages.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from math import prod
from typing import Any, NamedTuple

from pydantic.dataclasses import dataclass

from mindrl.errors import ReshardError, WorkerDiedError
from mindrl.models.decoder import ELEMENT_BYTES, DType
from mindrl.platform.rendezvous import link_name
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.http.answers import STRICT, Answer, Ending, Logprob, TokenId
from mindrl.rollout.http.client import ServerClient

_GENERATE = "/generate"
_WHOLE = -1
"""The `top_k` that cuts nothing."""


class WholeTensor(NamedTuple):
    """A tensor as the server loads it: under its Hugging Face name."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]


@plain_dataclass(kw_only=True)
class SglangServer:
    """Asks a server in SGLang's words; see `EngineServer`."""

    client: ServerClient
    control_seconds: float
    ranks: int
    """Of the server."""
    collectives: str
    """What the group with training rank 0 runs over, as torch calls it."""
    tensors: Sequence[WholeTensor]
    """In the order in which training rank 0 broadcasts them."""
    bucket_bytes: int
    """Bound on the tensors that the server is told of at a time, which it makes room for."""
    group: str = ""
    """Of the link; empty where there is none."""

    def join_link(self, address: tuple[str, int], replica: int, generation: int) -> None:
        """Let the server's ranks meet training rank 0."""
        if self.group:
            self._leave()
        host, port = address
        group = link_name(replica, generation)
        self._require(
            "/init_weights_update_group",
            {
                "master_address": host,
                "master_port": port,
                "rank_offset": 1,
                "world_size": 1 + self.ranks,
                "group_name": group,
                "backend": self.collectives,
            },
        )
        self.group = group

    def receive_weights(self, version: int) -> None:
        """Let the server take whole tensors, a bucket at a time, and load them itself."""
        self._control("/pause_generation", {"mode": "retract"})
        buckets = [*_buckets(self.tensors, self.bucket_bytes)]
        for number, bucket in enumerate(buckets, start=1):
            is_last = number == len(buckets)
            self._require(
                "/update_weights_from_distributed",
                {
                    "names": [each.name for each in bucket],
                    "dtypes": [each.dtype for each in bucket],
                    "shapes": [list(each.shape) for each in bucket],
                    "group_name": self.group,
                    # Keys and values of the old weights are of no use, and may be of none of both.
                    "flush_cache": is_last,
                    **({"weight_version": str(version)} if is_last else {}),
                },
            )
        self._control("/continue_generation", {})

    def generate(self, request: Request, sampling: Sampling, name: str, seconds: float) -> Answer:
        """Ask until there is an answer."""
        body = {
            "rid": name,
            "input_ids": list(request.token_ids),
            "sampling_params": _parameters(sampling, request),
            "return_logprob": True,
        }
        meta = self.client.ask(_Reply, _GENERATE, body, seconds=seconds, again=True).meta_info
        if meta.id != name:
            said = f"it is the answer to {meta.id}, and {name} was asked"
            raise self.client.garbage(_GENERATE, said)
        # One that was taken back before its first token has none.
        drawn = meta.output_token_logprobs or []
        return Answer(
            token_ids=[token for _, token, _ in drawn],
            logprobs=[] if sampling.is_greedy else [logprob for logprob, _, _ in drawn],
            ending=meta.finish_reason.type,
            versions=frozenset({meta.weight_version} if meta.weight_version else ()),
        )

    def take_back(self, names: list[str]) -> None:
        """Have the server answer with what there is of requests."""
        for name in names:
            self._control("/abort_request", {"rid": name})

    def close(self) -> None:
        """Do nothing: it lives on."""

    def _leave(self) -> None:
        """Give the last link up, which may be gone already."""
        group, self.group = self.group, ""
        try:
            self._control("/destroy_weights_update_group", {"group_name": group})
        except WorkerDiedError as error:
            if not self.client.is_up():
                raise WorkerDiedError(f"{self.client.name} does not answer any more") from error

    def _control(self, path: str, body: Any) -> None:
        self.client.post(path, body, seconds=self.control_seconds)

    def _require(self, path: str, body: Any) -> None:
        """Ask for what may fail.

        Raises:
            ReshardError: It did.
        """
        said = self.client.ask(_Done, path, body, seconds=self.control_seconds)
        if not said.success:
            raise ReshardError(f"{self.client.name}: {path}: {said.message}")


@dataclass(frozen=True, config=STRICT)
class _Done:
    success: bool
    message: str = ""


@dataclass(frozen=True, config=STRICT)
class _Ended:
    type: Ending


@dataclass(frozen=True, config=STRICT)
class _Meta:
    id: str
    finish_reason: _Ended
    weight_version: str | None = None
    output_token_logprobs: list[tuple[Logprob, TokenId, str | None]] | None = None


@dataclass(frozen=True, config=STRICT)
class _Reply:
    meta_info: _Meta


def _buckets(tensors: Sequence[WholeTensor], most: int) -> Iterator[list[WholeTensor]]:
    """Deal tensors in their order, up to so many bytes or one larger tensor at a time."""
    bucket: list[WholeTensor] = []
    for tensor in tensors:
        if bucket and sum(each.nbytes for each in bucket) + tensor.nbytes > most:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _parameters(sampling: Sampling, request: Request) -> dict[str, Any]:
    """Say how the rest of a response is drawn."""
    section, greedy = sampling.section, sampling.is_greedy
    said: dict[str, Any] = {
        "temperature": 0.0 if greedy else section.temperature,
        "max_new_tokens": section.max_tokens - request.drawn,
        "top_p": section.top_p,
        "top_k": section.top_k if section.top_k > 0 else _WHOLE,
        "min_p": section.min_p,
        "stop_token_ids": list(sampling.stop_token_ids),
    }
    if sampling.is_seeded and not greedy:
        said["sampling_seed"] = request.seed
    return said
