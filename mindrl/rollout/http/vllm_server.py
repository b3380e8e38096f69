"""vLLM's server, through its token route and its control routes.

Written for vLLM 0.32 and tested with it.
"""

from dataclasses import dataclass as plain_dataclass
from typing import Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from mindrl.errors import ReshardError
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.http.answers import STRICT, Answer, Ending, ScoredToken, TokenId
from mindrl.rollout.http.client import ServerClient
from mindrl.rollout.parameters import vllm_parameters

_GENERATE = "/inference/v1/generate"
_OF_NAMES = "generate-tokens-"
"""Prefix that the server adds to the name of a request."""


@plain_dataclass(frozen=True, kw_only=True)
class VllmServer:
    """Client of vLLM's API; see `EngineServer`."""

    client: ServerClient
    control_seconds: float
    configuration: str
    """The run's configuration as JSON, from which the server plans its link."""

    def join_link(self, address: tuple[str, int], replica: int, generation: int) -> None:
        """Let the server's ranks join a link with the training ranks."""
        host, port = address
        given = [self.configuration, host, str(port), str(replica), str(generation)]
        self._of_all_ranks("mindrl_join", given)

    def receive_weights(self, version: int) -> None:
        """Let the server receive the weights, slice by slice into its own parameters."""
        self._control("/pause?mode=keep")
        self._of_all_ranks("mindrl_receive", [])
        self._control("/update_weight_version", {"new_version": str(version)})
        self._control("/reset_prefix_cache?reset_running_requests=true")
        self._control("/resume")

    def generate(self, request: Request, sampling: Sampling, name: str, seconds: float) -> Answer:
        """Request a response."""
        body = {
            "request_id": name,
            "token_ids": list(request.token_ids),
            "sampling_params": vllm_parameters(sampling, request.seed, drawn=request.drawn),
        }
        reply = self.client.request(_Reply, _GENERATE, body, seconds=seconds, again=True)
        if not (reply.request_id or name).endswith(name):
            said = f"it is the response to {reply.request_id} instead of {name}"
            raise self.client.garbage(_GENERATE, said)
        (choice,) = reply.choices
        return Answer(
            token_ids=choice.token_ids,
            logprobs=[each.logprob for each in choice.logprobs.content] if choice.logprobs else [],
            ending=choice.finish_reason,
            versions=frozenset(span.version for span in choice.weight_versions or ()),
        )

    def take_back(self, names: list[str]) -> None:
        """Let the server answer open requests with the tokens so far."""
        self.take_back_from(self.client, names)

    def take_back_from(self, server: ServerClient, names: list[str]) -> None:
        """Let any server answer open requests."""
        body = {"request_ids": [_OF_NAMES + name for name in names]}
        server.post("/inference/v1/abort_requests", body, seconds=self.control_seconds)

    def close(self) -> None:
        """End open requests, which the server drops; it keeps running."""
        self.client.close()

    def _control(self, path: str, body: Any = None) -> None:
        self.client.post(path, body, seconds=self.control_seconds)

    def _of_all_ranks(self, method: str, arguments: list[str]) -> None:
        body = {"method": method, "args": arguments}
        said = self.client.request(_Results, "/collective_rpc", body, seconds=self.control_seconds)
        if failed := sorted({each for each in said.results if each}):
            raise ReshardError(f"{self.client.name}: {'; '.join(failed)}")


@dataclass(frozen=True, config=STRICT)
class _Results:
    results: list[str]


@dataclass(frozen=True, config=STRICT)
class _Logprobs:
    content: list[ScoredToken]


@dataclass(frozen=True, config=STRICT)
class _Span:
    version: str


@dataclass(frozen=True, config=STRICT)
class _Choice:
    token_ids: list[TokenId]
    finish_reason: Ending
    logprobs: _Logprobs | None = None
    weight_versions: list[_Span] | None = None


@dataclass(frozen=True, config=STRICT)
class _Reply:
    choices: list[_Choice] = Field(min_length=1, max_length=1)
    request_id: str | None = None
