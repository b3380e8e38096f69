"""Log-probs over a vocabulary that two ranks share, against torch on the whole of it."""

import pytest
import torch
from forked_workers import ForkedWorkers
from torch import Tensor

pytestmark = pytest.mark.distributed

N, H = 9, 4
TEMPERATURE = 0.7
CHUNKS = [1, 4, 9, 64]


def example(vocabulary: int, ranks: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(6)
    hidden_NH = torch.randn(N, H, dtype=torch.float64, generator=generator)
    weight_VH = torch.randn(vocabulary, H, dtype=torch.float64, generator=generator)
    targets_N = torch.randint(0, vocabulary, (N,), generator=generator)
    # On either side of the first cut, at the beginning, and next to the padding.
    cut = -(-vocabulary // ranks)
    targets_N[:4] = torch.tensor([0, cut - 1, cut, vocabulary - 1])
    grads_2N = torch.randn(2, N, dtype=torch.float64, generator=generator)
    return hidden_NH, weight_VH, targets_N, grads_2N


@pytest.mark.parametrize(
    ("vocabulary", "ranks", "padding"),
    # Parts of 6 and 5; of 6 and 6; of 2, 2 and 1: the last rank has one token.
    [(11, 2, 1), (12, 2, 0), (5, 3, 1)],
    ids=["11-over-2", "12-over-2", "5-over-3"],
)
def test_parts_of_a_vocabulary_give_values_and_gradients_of_the_whole(
    vocabulary: int, ranks: int, padding: int, forked_workers: ForkedWorkers
) -> None:
    hidden_NH, weight_VH, targets_N, grads_2N = example(vocabulary, ranks)
    replies: list[list[list[Tensor]]] = forked_workers.run(
        "training_probe:logprobs_over_ranks",
        *(hidden_NH, weight_VH, targets_N, grads_2N),
        TEMPERATURE,
        CHUNKS,
        ranks=ranks,
    )

    hidden_NH.requires_grad_()
    weight_VH.requires_grad_()
    all_NV = torch.log_softmax(hidden_NH @ weight_VH.T / TEMPERATURE, dim=-1)
    logprobs_N = all_NV.gather(1, targets_N[:, None])[:, 0]
    entropy_N = -(all_NV.exp() * all_NV).sum(-1)
    grads = torch.autograd.grad((logprobs_N, entropy_N), (hidden_NH, weight_VH), tuple(grads_2N))

    assert len(replies) == ranks
    for found in zip(*replies, strict=True):
        # One size of a chunk, all ranks.
        for found_logprobs_N, found_entropy_N, _, _ in found:
            close(found_logprobs_N, logprobs_N.detach())
            close(found_entropy_N, entropy_N.detach())
        close(sum(grad_NH for _, _, grad_NH, _ in found), grads[0])
        grad_VH = torch.cat([grad_VH for _, _, _, grad_VH in found])
        close(grad_VH[:vocabulary], grads[1])
        assert len(grad_VH) == vocabulary + padding
        assert not grad_VH[vocabulary:].any()


def test_all_sizes_of_a_chunk_give_log_probs_within_two_roundings_of_each_other(
    forked_workers: ForkedWorkers,
) -> None:
    arguments = [
        tensor.float() if tensor.is_floating_point() else tensor for tensor in example(11, 2)
    ]
    replies: list[list[list[Tensor]]] = forked_workers.run(
        "training_probe:logprobs_over_ranks", *arguments, TEMPERATURE, CHUNKS, ranks=2
    )
    for whole, *others in (reply[::-1] for reply in replies):
        for other in others:
            # In float32 a product may be added up in another order where a chunk is a single row;
            # the numbers reach 8, so a rounding is 5e-7. The gradient of the weight adds chunks.
            for found, expected in zip(other, whole, strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=2e-6)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
