"""Responses sampled in rounds of engine steps, which may stop before they are complete."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vllm import SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind

from mindrl.batch.prompts import PlacedImage
from mindrl.batch.rollouts import Responses
from mindrl.rollout.engine import Request, Sampling
from mindrl.rollout.parameters import vllm_parameters
from mindrl.rollout.vllm.placeholders import require_same

MakePrompt = Callable[[Any, Sequence[int], Sequence[PlacedImage]], TokensPrompt | Mapping[str, Any]]
"""Returns a prompt with pictures for an LLMEngine."""


class Rounds:
    """The requests of one rollout. The engine has no others meanwhile."""

    def __init__(
        self,
        engine: Any,
        sampling: Sampling,
        stages: int = 1,
        prompt_of: MakePrompt | None = None,
        ended: Callable[[str, Sequence[int], int], None] | None = None,
    ) -> None:
        """Set the engine, how the responses are sampled, and the number of pipeline stages.

        `prompt_of` makes the prompts of a model that reads pictures; `ended` is called when a
        request that has sampled a token ends, complete or not, with its name, the tokens of its
        sequence, and its `Request.sampled`.
        """
        self.engine, self.sampling, self.stages = engine, sampling, stages
        self.prompt_of, self.ended = prompt_of, ended
        self.given: dict[str, Request] = {}
        """Open requests, if `ended` is called."""
        self.expanded: dict[int, tuple[int, ...]] = {}
        """Token ids of the open requests with pictures, by index."""
        self.drawn: list[tuple[list[int], list[float]]] = []
        self.finished: list[bool] = []
        self.open: dict[str, int] = {}
        """Index of each incomplete request, by its name in the engine."""
        self._seeds = random.Random()

    def add(self, requests: Sequence[Request]) -> None:
        """Add requests to the engine after the existing ones."""
        if requests and not self.drawn:
            # All ranks of a replica have the same first request; no other replica has it.
            self._seeds.seed(requests[0].seed)
        for request in requests:
            place = len(self.drawn)
            values = vllm_parameters(self.sampling, request.seed, drawn=request.drawn)
            params = SamplingParams(**values)
            # Otherwise each step copies all tokens of all responses.
            params.output_kind = RequestOutputKind.DELTA
            name = f"round-{place}"
            prompt: TokensPrompt | Mapping[str, Any]
            prompt = TokensPrompt(prompt_token_ids=[*request.token_ids])
            if request.images:
                assert self.prompt_of is not None, "validated: the model reads pictures"
                prompt = self.prompt_of(self.engine, request.token_ids, request.images)
                self.expanded[place] = request.token_ids
            self.engine.add_request(name, prompt, params)
            self.open[name] = place
            if self.ended is not None:
                self.given[name] = request
            self.drawn.append(([], []))
            self.finished.append(False)

    def next_seed(self) -> int:
        """Return a seed for the next round, derived from the seed of the first request."""
        return self._seeds.getrandbits(63)

    def advance(self, steps: int, until: int | None = None) -> list[int]:
        """Run steps of the engine; return the indices of requests that were completed.

        Stops early when `until` requests are complete.
        """
        whole: list[int] = []
        while self.open and steps and (until is None or len(whole) < until):
            found = [self._store(output) for output in self.engine.step()]
            whole += [place for place, is_complete in found if is_complete]
            steps -= 1
        return whole

    def _store(self, output: Any) -> tuple[int, bool]:
        """Store the tokens of a step; return the index of the request, and if it is complete."""
        answer, place = output.outputs[0], self.open[output.request_id]
        if (prompt := self.expanded.pop(place, None)) is not None:
            require_same(output.prompt_token_ids, prompt)
        token_ids, logprobs = self.drawn[place]
        token_ids += answer.token_ids
        logprobs += token_logprobs(answer)
        if output.finished:
            if answer.finish_reason not in ("stop", "length"):
                raise RuntimeError(f"vLLM aborted a request (finish_reason={answer.finish_reason})")
            self.finished[place] = answer.finish_reason == "stop"
            del self.open[output.request_id]
            self._end(output.request_id, token_ids)
        return place, output.finished

    def _end(self, name: str, token_ids: Sequence[int]) -> None:
        """Report a request that ends with these tokens."""
        if self.ended is not None and token_ids:
            given = self.given.pop(name)
            self.ended(name, [*given.token_ids, *token_ids], given.sampled)

    def answers(self, places: Sequence[int]) -> Responses:
        """Return the responses of the requests at these indices."""
        drawn, finished = [self.drawn[place] for place in places], self.finished
        return Responses.of(
            token_ids=[each[0] for each in drawn],
            logprobs=[each[1] for each in drawn],
            finished=[finished[place] for place in places],
        )

    def take_back(self) -> Responses:
        """Return the sampled tokens, in order, and abort incomplete requests."""
        if self.open:
            self.engine.abort_request([*self.open])
            # The model runner drops them in the next step; each stage may have one under way.
            for _ in range(self.stages):
                self.engine.step()
            for name, place in self.open.items():
                self._end(name, self.drawn[place][0])
            self.open = {}
        return self.answers(range(len(self.drawn)))


def token_logprobs(answer: Any) -> list[float]:
    """Return the log-prob of each token of a completion; 0 for greedy ones, which have none."""
    if not answer.logprobs:
        return [0.0] * len(answer.token_ids)
    return [
        entry[token].logprob for token, entry in zip(answer.token_ids, answer.logprobs, strict=True)
    ]
