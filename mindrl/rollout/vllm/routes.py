"""Routes of sampled sequences: the experts of each token, taken from the routers of an engine.

vLLM's own `enable_return_routed_experts` needs its second model runner, which needs Triton; hooks
on the routers work with the first. Routers report logical experts, before any is replicated. Tokens
whose keys and values come from the prefix cache are not computed and have no routes; nor has the
last token of a sequence. Routes are stored as expert + 1; 0 stands for none.

A request that continues a sequence computes all of it again, with newer weights. Its routes begin
with the last token of the previous request, whose weights sampled the tokens up to this one.

Shapes: S tokens of an engine step, T tokens of a sequence, L layers with experts, K experts of a
token.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindrl.batch.route_keys import RoutePart, content_key
from mindrl.models.description import MoeDescription
from mindrl.models.expert_routes import number_bytes
from mindrl.platform.engine_routers import watch_routers


class EngineRoutes:
    """The routes of an engine's requests."""

    def __init__(self, runner: Any, moe: MoeDescription) -> None:
        """Connect to the routers of vLLM's model runner, in the order of their layers."""
        self.runner, self.execute = runner, runner.execute_model
        self.dtype = torch.uint8 if number_bytes(moe) == 1 else torch.int16
        self.step: dict[int, Tensor] = {}
        """Experts [S, K] of each layer in the current step."""
        self.open: dict[str, _Row] = {}
        """Routes of the requests that have not ended, by name."""
        self.ended: dict[int, RoutePart] = {}
        """Routes of requests that ended, by the key of the tokens of their sequences."""
        self.layers = watch_routers(runner.get_model(), self._note)
        runner.execute_model = self._execute

    def end(self, request: str, token_ids: Sequence[int], sampled: int = 0) -> None:
        """Keep the routes of a request that has ended, with all tokens of its sequence.

        The policy had sampled the last of the first `sampled` tokens when the request began.
        """
        row = self.open.pop(request, None)
        if row is None:
            return
        before = content_key(token_ids[:sampled]) if sampled else None
        first = max(0, sampled - 1)
        routes_TLK = torch.from_numpy(row.cut(first, len(token_ids)))
        part = RoutePart(routes_TLK=routes_TLK, first=first, before=before)
        self.ended[content_key(token_ids)] = part

    def take(self) -> dict[int, RoutePart]:
        """Return the routes of requests that ended since the last call."""
        found, self.ended = self.ended, {}
        return found

    def forget(self) -> None:
        """Forget requests that ended without a token."""
        self.open.clear()

    def _note(self, layer: int, ids_SK: Tensor) -> None:
        self.step[layer] = (ids_SK.detach() + 1).to(self.dtype)

    def _execute(self, scheduled: Any, *rest: Any, **named: Any) -> Any:
        self.step.clear()
        found = self.execute(scheduled, *rest, **named)
        if scheduled.total_num_scheduled_tokens:
            self._store(scheduled.num_scheduled_tokens)
        return found

    def _store(self, counts: dict[str, int]) -> None:
        layers = [self.step[layer] for layer in range(self.layers)]
        routes_SLK, batch, at = torch.stack(layers, 1).cpu().numpy(), self.runner.input_batch, 0
        if len(routes_SLK) < sum(counts.values()):
            raise RuntimeError(
                f"vLLM routed {len(routes_SLK)} tokens of {sum(counts.values())} on this rank; "
                "set actor_config.router_replay=R2"
            )
        for place, name in enumerate(batch.req_ids):
            first, count = int(batch.num_computed_tokens_cpu[place]), counts[name]
            # vLLM adds a suffix of its own to the names of requests.
            request = name.rsplit("-", 1)[0]
            if (row := self.open.get(request)) is None:
                row = self.open[request] = _Row(routes_SLK)
            row.put(first, routes_SLK[at : at + count])
            at += count


class _Row:
    """Routes of an open request; numpy's slices take a tenth of the time of torch's."""

    def __init__(self, like_SLK: NDArray[Any]) -> None:
        self._routes_TLK = _zeros(0, like_SLK)

    def put(self, first: int, routes_NLK: NDArray[Any]) -> None:
        """Keep the routes of the tokens from a position on."""
        end = first + len(routes_NLK)
        if end > len(self._routes_TLK):
            longer_TLK = _zeros(2 * end, routes_NLK)
            longer_TLK[: len(self._routes_TLK)] = self._routes_TLK
            self._routes_TLK = longer_TLK
        self._routes_TLK[first:end] = routes_NLK

    def cut(self, first: int, end: int) -> NDArray[Any]:
        """Return the routes of tokens `first` to `end`; the last token has none."""
        found_TLK = _zeros(end - first, self._routes_TLK)
        # The place of the last token may have been that of a rejected draft.
        kept_TLK = self._routes_TLK[first : end - 1]
        found_TLK[: len(kept_TLK)] = kept_TLK
        return found_TLK


def _zeros(tokens: int, like_TLK: NDArray[Any]) -> NDArray[Any]:
    # `zeros_like` would touch the memory of tokens that never come.
    return np.zeros((tokens, *like_TLK.shape[1:]), like_TLK.dtype)
