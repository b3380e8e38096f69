"""Workers of a handle that record each call, and answer from memory."""

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

from mindrl.batch.rollouts import Responses
from mindrl.batch.sequences import Logprobs, SequenceScores, Values
from mindrl.config.generate import SamplingConfig
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.rollout.engine import Request, Sampling
from mindrl.trainer.engines import ColocatedEngines
from mindrl.trainer.worker_handle import WorkerHandle


class RecordingGroup:
    """Four ranks that answer with token 9, and score each token with its own number."""

    def __init__(self) -> None:
        self.given: list[Sequence[tuple[Any, ...]]] = []
        self.asked: list[Collection[int] | None] = []
        self.firsts: list[int] = []

    def call(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
    ) -> list[Any]:
        self.given.append(arguments)
        self.asked.append(answering)
        answers = enumerate(self.answers(method, arguments))
        return [each if answering is None or rank in answering else None for rank, each in answers]

    def begin(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
        *,
        first: int = 0,
    ) -> SimpleNamespace:
        self.firsts.append(first)
        said = self.call(method, arguments, answering)
        return SimpleNamespace(wait=lambda: said)

    def answers(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        if method == "generate_sequences":
            counts = [len(prompts) for prompts, _, _ in arguments]
            return [Responses.of([[9]] * n, [[-1.0]] * n, [True] * n) for n in counts]
        if method == "flush_metrics":
            bad: dict[str, float] = {"nonfinite/ref_logprobs": 3.0}
            spent = [{"seconds/swap": float(rank), "seconds/generate": 2.0} for rank in range(4)]
            return [*spent[:2], spent[2] | bad, {"seconds/swap": 3.0, "seconds/generate": 8.0}]
        if method.startswith(("update", "keep_export")):
            return [{"rank": float(rank)} for rank in range(4)]
        tokens = [part.tokens_BT.float() for (part,) in arguments]
        if method == "compute_values":
            return [Values(values_BT=each / 2) for each in tokens]
        if method == "compute_rewards":
            return [SequenceScores(rewards_B=each.sum(1)) for each in tokens]
        return [Logprobs(logprobs_BT=each) for each in tokens]

    def call_all(self, method: str, *arguments: Any) -> list[Any]:
        return self.call(method, [arguments] * 4)


class DrawingGroup(RecordingGroup):
    """Draws a token of each request in a step, of `rows` at a time.

    The seed of a request is the length of its response.
    """

    rows = 8

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[int, list[int]]] = []
        """The first rank of each round of a replica, and the last tokens of its new requests."""

    def begin(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        answering: Collection[int] | None = None,
        *,
        first: int = 0,
    ) -> Any:
        if method != "advance_sequences":
            return super().begin(method, arguments, answering, first=first)
        assert [given[1] for given in arguments] == [arguments[0][1]] * len(arguments)
        self.sent.append((first, [request.token_ids[1] for request in arguments[0][1]]))
        return self.round_of(first, arguments)

    def round_of(self, first: int, arguments: Sequence[tuple[Any, ...]]) -> Any:
        found = [self.whole_of(first + at, *given) for at, given in enumerate(arguments)]
        return SimpleNamespace(wait=lambda: [found[0], *[None] * (len(found) - 1)])

    def answers(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        if method == "begin_sequences":
            self.left = [[each.seed - each.drawn for each in asked] for asked, _ in arguments]
            self.lengths = [[*each] for each in self.left]
            return [None] * 4
        drawn = [
            [length - left for length, left in zip(*each, strict=True)]
            for each in zip(self.lengths, self.left, strict=True)
        ]
        tokens = [[[length] * length for length in each] for each in drawn]
        logprobs = [[[-1.0] * length for length in each] for each in drawn]
        return [
            Responses.of(ids, scores, [True] * len(ids))
            for ids, scores in zip(tokens, logprobs, strict=True)
        ]

    def whole_of(
        self, rank: int, steps: int, more: Sequence[Request], until: int | None = None
    ) -> tuple[list[int], Responses]:
        lengths = [each.seed - each.drawn for each in more]
        self.lengths[rank] += lengths
        left = self.left[rank] = self.left[rank] + lengths
        was_open = [place for place, each in enumerate(left) if each]
        whole: list[int] = []
        for _ in range(steps):
            for place in [place for place, each in enumerate(left) if each][: self.rows]:
                left[place] -= 1
            whole = [place for place in was_open if not left[place]]
            if until is not None and len(whole) >= until:
                break
        tokens = [[self.lengths[rank][place]] * self.lengths[rank][place] for place in whole]
        logprobs = [[-1.0] * len(each) for each in tokens]
        return whole, Responses.of(tokens, logprobs, [True] * len(whole))


def dealing_actor(
    group: "RecordingGroup", *, train: int, rollout: int, rows: int = 8
) -> WorkerHandle:
    return WorkerHandle(
        group,
        {"actor": TrainLayout(tp=train, dp=4 // train)},
        ColocatedEngines(group, RolloutLayout(tp=rollout, dp=4 // rollout)),
        seed=1,
        engine_rows=rows,
    )


SAMPLING = Sampling(
    section=SamplingConfig(temperature=1.0, max_tokens=1), stop_token_ids=(), samples_per_prompt=3
)
