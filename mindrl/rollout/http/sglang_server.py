"""SGLang's server, through its published endpoints.

Checked against the source of SGLang 0.5.6.post2 and 0.5.23, not run:
scripts/check_engine_contract.py compares the endpoints with those of the published packages.
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
from mindrl.rollout.parameters import sglang_parameters

_GENERATE = "/generate"


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
    """Client of SGLang's API; see `EngineServer`."""

    client: ServerClient
    control_seconds: float
    ranks: int
    """Number of ranks of the server."""
    collectives: str
    """torch backend of the group with training rank 0."""
    tensors: Sequence[WholeTensor]
    """Tensors in the order in which training rank 0 broadcasts them."""
    bucket_bytes: int
    """Maximum bytes of tensors per call, for which the server allocates buffers."""
    group: str = ""
    """Group of the link; empty without one."""

    def join_link(self, address: tuple[str, int], replica: int, generation: int) -> None:
        """Let the server's ranks join a group with training rank 0."""
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
        """Let the server receive whole tensors, a bucket at a time, and load them."""
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
                    # Keys and values of the old weights, or of partly loaded ones, are useless.
                    "flush_cache": is_last,
                    **({"weight_version": str(version)} if is_last else {}),
                },
            )
        self._control("/continue_generation", {})

    def generate(self, request: Request, sampling: Sampling, name: str, seconds: float) -> Answer:
        """Request a response."""
        body = {
            "rid": name,
            "input_ids": list(request.token_ids),
            "sampling_params": sglang_parameters(sampling, request.seed, drawn=request.drawn),
            "return_logprob": True,
        }
        meta = self.client.request(_Reply, _GENERATE, body, seconds=seconds, again=True).meta_info
        if meta.id != name:
            said = f"it is the response to {meta.id} instead of {name}"
            raise self.client.garbage(_GENERATE, said)
        # Missing if the request was taken back before its first token.
        drawn = meta.output_token_logprobs or []
        return Answer(
            token_ids=[token for _, token, _ in drawn],
            logprobs=[] if sampling.is_greedy else [logprob for logprob, _, _ in drawn],
            ending=meta.finish_reason.type,
            versions=frozenset({meta.weight_version} if meta.weight_version else ()),
        )

    def take_back(self, names: list[str]) -> None:
        """Let the server answer open requests with the tokens so far."""
        for name in names:
            self._control("/abort_request", {"rid": name})

    def close(self) -> None:
        """End open requests, which the server drops; it keeps running."""
        self.client.close()

    def _leave(self) -> None:
        """Leave the last link, which may already be closed."""
        group, self.group = self.group, ""
        try:
            self._control("/destroy_weights_update_group", {"group_name": group})
        except WorkerDiedError as error:
            if not self.client.is_up():
                raise WorkerDiedError(f"{self.client.name} no longer responds") from error

    def _control(self, path: str, body: Any) -> None:
        self.client.post(path, body, seconds=self.control_seconds)

    def _require(self, path: str, body: Any) -> None:
        """Post a command that may fail.

        Raises:
            ReshardError: It failed.
        """
        said = self.client.request(_Done, path, body, seconds=self.control_seconds)
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
    """Yield buckets of tensors in order, up to `most` bytes or one larger tensor each."""
    bucket: list[WholeTensor] = []
    for tensor in tensors:
        if bucket and sum(each.nbytes for each in bucket) + tensor.nbytes > most:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
