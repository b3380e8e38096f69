"""What torch does in a process that must give the same bits every time."""

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from mindrl.platform.determinism import deterministic_gradients, make_deterministic


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    fill = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = fill


def put() -> Tensor:
    """An operation that torch has no deterministic kernel of, on any device."""
    return torch.zeros(3).put_(torch.tensor([1, 1]), torch.tensor([4.0, 4.0]))


def test_outside_a_training_pass_an_operation_without_such_a_kernel_warns_and_goes_on() -> None:
    make_deterministic()
    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        assert put().tolist() == [0, 4, 0]


def test_inside_a_training_pass_it_raises_and_afterwards_it_warns_again() -> None:
    make_deterministic()
    with (
        pytest.raises(RuntimeError, match="put_ does not have a deterministic implementation"),
        deterministic_gradients(),
    ):
        put()
    with pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        put()


def test_a_process_that_was_never_made_deterministic_neither_warns_nor_raises() -> None:
    with warnings.catch_warnings(), deterministic_gradients():
        warnings.simplefilter("error")
        assert put().tolist() == [0, 4, 0]


def test_a_new_tensor_is_not_filled_with_nan_which_would_outlive_a_product_with_0() -> None:
    # Filling makes every element NaN. The block that is freed holds ones, so that a reused one does
    # not look filled; other memory may hold anything, single NaNs included.
    elements = 16 * 2**20
    torch.use_deterministic_algorithms(True, warn_only=True)
    filled = torch.empty(elements)
    assert filled.isnan().all(), "torch fills no longer, and the line may go"
    filled.fill_(1.0)
    del filled
    make_deterministic()
    assert not torch.empty(elements).isnan().all()
