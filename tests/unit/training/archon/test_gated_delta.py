"""Gated delta nets over packs, against the equations of the paper token by token.

Shapes: S tokens of a pack, T of a sequence, C channels, N key heads, M value heads, K and V their
widths.
"""

from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from torch import Tensor

from mindrl.platform.attention import Packing
from mindrl.training.archon.gated_delta import Chunks, convolved, delta_rule

LENGTHS = [37, 130, 1, 64, 65]
"""Of one chunk of 64 tokens, of two, and of three."""
WIDTHS = {"query": (2, 8), "key": (2, 8), "value": (4, 6)}


def chunks_of(lengths: list[int]) -> Chunks:
    starts = tuple(accumulate(lengths, initial=0))
    cumulative = torch.tensor(starts, dtype=torch.int32)
    return Chunks.of(Packing(starts=starts, longest=max(lengths), cumulative=cumulative), 4)


def recurrence(given: tuple[Tensor, ...]) -> Tensor:
    """Return the answers [T, M, V] of one sequence (arXiv:2412.06464, equation 10)."""
    query, key, value, rate_TM, decay_TM = given
    query, key = (
        (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(2, 1)
        for each in (query, key)
    )
    state_MVK, answers = torch.zeros(4, 6, 8, dtype=query.dtype), []
    for t in range(len(query)):
        state_MVK = state_MVK * decay_TM[t].exp()[:, None, None]
        known_MV = (state_MVK @ key[t][..., None])[..., 0]
        written_MV = rate_TM[t][:, None] * (value[t] - known_MV)
        state_MVK = state_MVK + written_MV[..., None] * key[t][:, None]
        answers.append((state_MVK @ query[t][..., None])[..., 0] / 8**0.5)
    return torch.stack(answers)


@pytest.fixture
def given() -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(1)
    heads = [torch.randn(sum(LENGTHS), *size, generator=draw) for size in WIDTHS.values()]
    rate_SM, decay_SM = (torch.rand(sum(LENGTHS), 4, generator=draw) for _ in range(2))
    # A state keeps most of itself: what one sequence leaked would be seen in the next.
    return *heads, rate_SM, -0.2 * decay_SM


def outcome(
    rule: Callable[[tuple[Tensor, ...]], Tensor], given: tuple[Tensor, ...], dtype: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """Return answers, and the gradients of their weighted sum."""
    leaves = [each.to(dtype).requires_grad_() for each in given]
    made = rule(tuple(leaves))
    weights = torch.randn(made.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    return made.detach().double(), [*torch.autograd.grad((made * weights).sum(), leaves)]


def packed(given: tuple[Tensor, ...], lengths: list[int]) -> Tensor:
    *heads, rate_SM, decay_SM = given
    return delta_rule(heads, rate_SM, decay_SM, chunks_of(lengths))


def one_by_one(rule: Callable[[tuple[Tensor, ...]], Tensor], given: tuple[Tensor, ...]) -> Tensor:
    parts = zip(*(each.split(LENGTHS) for each in given), strict=True)
    return torch.cat([rule(part) for part in parts])


def test_a_pack_follows_the_recurrence_from_an_empty_state_for_each_sequence(
    given: tuple[Tensor, ...],
) -> None:
    exact, gradients = outcome(lambda whole: one_by_one(recurrence, whole), given, torch.float64)
    found, ours = outcome(lambda whole: packed(whole, LENGTHS), given, torch.float32)
    # Float32; answers of size 1.
    torch.testing.assert_close(found, exact, atol=2e-6, rtol=0)
    for mine, theirs in zip(ours, gradients, strict=True):
        assert (mine - theirs).norm() <= 2e-6 * theirs.norm()


def test_a_pack_has_answers_and_gradients_of_its_sequences_one_by_one(
    given: tuple[Tensor, ...],
) -> None:
    def alone(part: tuple[Tensor, ...]) -> Tensor:
        return packed(part, [len(part[0])])

    expected, gradients = outcome(lambda each: one_by_one(alone, each), given, torch.float32)
    found, ours = outcome(lambda each: packed(each, LENGTHS), given, torch.float32)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    for mine, theirs in zip(ours, gradients, strict=True):
        assert (mine - theirs).norm() <= 1e-6 * theirs.norm()


def test_the_convolution_of_a_token_sees_up_to_three_earlier_tokens_of_its_own_sequence() -> None:
    lengths, draw = [1, 3, 7], torch.Generator().manual_seed(1)
    mixed_SC, weight_C1T = (
        torch.randn(*size, generator=draw, dtype=torch.float64) for size in ((11, 5), (5, 1, 4))
    )
    found_SC = convolved(mixed_SC, weight_C1T, chunks_of(lengths))
    expected = []
    for part_TC in mixed_SC.split(lengths):
        for t in range(len(part_TC)):
            seen = [part_TC[t - back] * weight_C1T[:, 0, 3 - back] for back in range(min(t + 1, 4))]
            expected.append(torch.stack(seen).sum(0))
    torch.testing.assert_close(found_SC, torch.stack(expected))


def test_no_token_changes_an_earlier_one_or_one_of_another_sequence(
    given: tuple[Tensor, ...],
) -> None:
    before_SMV = packed(given, LENGTHS)
    changed = 37 + 70
    for each in given:
        each[changed] *= 0.5
    is_other_S = (packed(given, LENGTHS) == before_SMV).flatten(1).all(1)
    assert is_other_S[:changed].all()
    assert is_other_S[37 + 130 :].all()
    assert not is_other_S[changed : 37 + 130].any()
