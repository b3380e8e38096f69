"""Batches are pickled in a fraction of the bytes of their tensors, and are equal afterwards."""

import pickle
from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from mindrl.batch.experience import Minibatch, PolicyUpdate
from mindrl.batch.rollouts import Responses, Rollouts
from mindrl.batch.sequences import Logprobs

NOTHING = float("nan")
ROWS = {
    "nothing but padding": [[0.0, 0.0], [0.0, 0.0]],
    "one value in each row": [[0.0, 2.5, 2.5, 0.0], [0.0, 0.0, 0.0, 0.0], [1.5, 0.0, 0.0, 0.0]],
    "as many values as rows": [[0.0, 0.0], [1.0, 2.0]],
    "zeros between values": [[0.0, 1.0, 0.0, 1.0], [1.0, -0.0, 1.0, 0.0]],
    "no number": [[0.0, NOTHING, NOTHING], [NOTHING, 1.0, 0.0]],
    "rows without columns": [[], []],
}


def again(columns: Tensor) -> Tensor:
    """Pickle a column as part of a batch, with its large arrays apart and read-only as Ray does."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(
        Logprobs(logprobs_BT=columns),
        protocol=5,
        buffer_callback=buffers.append,
    )
    read_only = [memoryview(bytes(buffer.raw())) for buffer in buffers]
    found: Tensor = pickle.loads(text, buffers=read_only).logprobs_BT
    return found


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.equal(other)


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_equal_afterwards(name: str) -> None:
    sent = torch.tensor(ROWS[name])
    found = again(sent)
    assert found.dtype == sent.dtype
    assert torch.equal(found.view(torch.int32), sent.view(torch.int32))
    # A worker writes into its batch.
    found.fill_(1.0)


@given(
    kept=arrays.arrays(
        st.sampled_from(["bool", "int64", "float32", "float64"]),
        arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    )
)
def test_any_column_is_equal_afterwards(kept: object) -> None:
    sent = torch.tensor(kept)
    found = again(sent)
    assert (found.dtype, found.shape) == (sent.dtype, sent.shape)
    assert torch.equal(found.nan_to_num(7), sent.nan_to_num(7))


def test_every_stage_that_travels_is_equal_afterwards() -> None:
    responses = Responses.of([(1, 2**40), (3,)], [(-0.5, -1.5), (-2.0,)], [True, False])
    rollouts = Rollouts.from_responses([(5, 6), (8,)], responses, [0, 1])
    update = PolicyUpdate(metrics={"loss": 1.0}, logprobs_BT=None)
    for sent in (responses, rollouts, rollouts.sequences(), update):
        found = pickle.loads(pickle.dumps(sent))
        assert type(found) is type(sent)
        for column in fields(sent):
            one, other = getattr(sent, column.name), getattr(found, column.name)
            assert same(one, other) if isinstance(one, Tensor) else one == other, column.name


def test_an_update_takes_five_bytes_a_token() -> None:
    """Four for the token; advantages and weights are equal within a response."""
    lengths_B = torch.randint(1, 512, (64,), generator=torch.Generator().manual_seed(0))
    mask_BT = torch.arange(512) < lengths_B[:, None]
    update = Minibatch(
        tokens_BT=torch.full(mask_BT.shape, 99_999) * mask_BT + mask_BT.cumsum(1) * mask_BT,
        lengths_B=lengths_B,
        response_mask_BT=mask_BT,
        token_weights_BT=mask_BT / mask_BT.sum(),
        advantages_BT=torch.randn(64, 1) * mask_BT,
        old_logprobs_BT=None,
        ref_logprobs_BT=None,
    )
    assert len(pickle.dumps(update)) / int(mask_BT.sum()) < 5
