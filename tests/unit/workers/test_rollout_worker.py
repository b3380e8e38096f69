"""An engine in a process of the run that answers with what it cannot have drawn."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from mindrl.batch.rollouts import Responses
from mindrl.config.generate import SamplingConfig
from mindrl.errors import AnswerError
from mindrl.rollout.engine import Request, Sampling
from mindrl.workers.device_ledger import DeviceLedger
from mindrl.workers.rollout_worker import RolloutWorker

SAMPLING = Sampling(section=SamplingConfig(max_tokens=3), stop_token_ids=(1,))


class Garbled:
    """An engine whose device has lost its mind."""

    token_ids: Sequence[Sequence[int]] = ([4, 1],)

    def generate(self, *_: Any) -> Responses:
        return Responses.of(
            self.token_ids,
            [[-1.0] * len(each) for each in self.token_ids],
            [each[-1:] == [1] for each in self.token_ids],
        )

    def begin(self, *_: Any) -> None:
        """Take requests."""

    def advance(self, *_: Any) -> list[int]:
        """Say that the first is whole."""
        return [0]

    def answers(self, _places: Sequence[int]) -> Responses:
        return self.generate()

    take_back = generate


@pytest.fixture
def engine() -> Garbled:
    return Garbled()


@pytest.fixture
def worker(engine: Garbled) -> RolloutWorker:
    return RolloutWorker(
        inference_model=cast("Any", engine),
        table={},
        ledger=DeviceLedger(None),
        plan=cast("Any", None),
        vocabulary=10,
        version=3,
    )


@pytest.mark.parametrize(
    ("token_ids", "said"),
    [
        ([4, 10, 1], "token 10 is outside the vocabulary of 10"),
        ([], "a response is empty"),
        ([4, 5], "a response was cut off at 2 of 3 tokens"),
        ([4, 5, 6, 1], "4 tokens, but the limit was 3"),
    ],
)
def test_garbage_never_leaves_the_worker(
    engine: Garbled, worker: RolloutWorker, token_ids: list[int], said: str
) -> None:
    worker.generate_sequences([[5]], SAMPLING, [0])
    engine.token_ids = (token_ids,)
    with pytest.raises(AnswerError, match=said):
        worker.generate_sequences([[5]], SAMPLING, [0])
    worker.begin_sequences([Request(token_ids=(5,), drawn=0, seed=0)], SAMPLING)
    with pytest.raises(AnswerError, match=said):
        worker.advance_sequences(1, [])


def test_what_goes_on_may_have_what_is_left_of_its_length(
    engine: Garbled, worker: RolloutWorker
) -> None:
    worker.begin_sequences([Request(token_ids=(5, 6, 7), drawn=2, seed=0)], SAMPLING)
    engine.token_ids = ([4],)
    assert worker.take_sequences().token_ids_N.tolist() == [4]
    engine.token_ids = ([4, 5],)
    with pytest.raises(AnswerError, match="2 tokens, but the limit was 1"):
        worker.take_sequences()
