"""What a head reads: at the last token of a shared prompt, for each answer; a teacher's tokens.

Shapes: R response positions, K likely tokens at each.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from mindrl.algorithms.answer_loss import answer_loss
from mindrl.algorithms.divergence import TaughtLoss
from mindrl.batch.experience import WeightedSequences
from mindrl.batch.likely_tokens import LikelyTokens
from mindrl.batch.sequences import Sequences
from mindrl.config.teacher import Candidates
from mindrl.training.logprobs import Vocabulary
from mindrl.training.packs import Pack, PackRules
from mindrl.training.reading import ForwardPass, HeadReader, UpdatePass

PROMPTS, ANSWERS, TOKENS, H = 4, 64, 16, 64
"""Prompts, answers to each, tokens of a prompt and as many of an answer, hidden size."""
V, K = 40, 24
RULES = PackRules(
    removes_padding=True,
    shares_prompts=True,
    cp=1,
    cp_rank=0,
    ring=1,
    tokens_multiple=1,
    device_type="cpu",
)


@pytest.fixture
def reader() -> Iterator[HeadReader]:
    """A value head, in a process with several threads."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    assert group is not None
    vocabulary = Vocabulary(group=group, size=1, first_token=0, temperature=1.0, chunk_tokens=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    yield HeadReader(head="value", vocabulary=vocabulary, context=None, replicas=group)
    torch.set_num_threads(threads)
    dist.destroy_process_group()


def test_gradients_of_a_shared_prompt_are_equal_bitwise_whatever_threads_do(
    reader: HeadReader,
) -> None:
    """All answers to a prompt add to the gradient of its last token: always in one order."""
    generator = torch.Generator().manual_seed(7)
    rows, length = PROMPTS * ANSWERS, 2 * TOKENS
    tokens_BT = torch.randint(0, 99, (rows, length), generator=generator)
    tokens_BT[:, :TOKENS] = tokens_BT[::ANSWERS, :TOKENS].repeat_interleave(ANSWERS, dim=0)
    sequences = Sequences(
        tokens_BT=tokens_BT,
        lengths_B=torch.full((rows,), length),
        response_mask_BT=(torch.arange(length) >= TOKENS).repeat(rows, 1),
    )
    pack = Pack.of(sequences, RULES)
    hidden_1SH = torch.randn(1, pack.tokens_1S.size(1), H, generator=generator).requires_grad_()
    weight_1H = torch.randn(1, H, generator=generator)
    upstream_BT = torch.randn(rows, length, generator=generator)

    def gradient() -> torch.Tensor:
        (values_BT,) = reader.read(pack, hidden_1SH, weight_1H).each
        (found,) = torch.autograd.grad(values_BT, hidden_1SH, upstream_BT)
        return found

    first = gradient()
    assert len(pack.predicting_N) > len({*pack.predicting_N.tolist()})
    for _ in range(20):
        assert torch.equal(gradient(), first)


def of_vocabulary(reader: HeadReader, candidates: Candidates | None = None) -> HeadReader:
    vocabulary = replace(reader.vocabulary, size=V, chunk_tokens=16)
    return replace(reader, head="vocabulary", vocabulary=vocabulary, candidates=candidates)


def mixed_lengths() -> Sequences:
    """Make a sequence of 96 tokens and 15 of six; all begin with the same two tokens."""
    lengths_B = torch.tensor([96] + 15 * [6])
    places_T = torch.arange(96)
    inside_BT = places_T < lengths_B[:, None]
    drawn_BT = torch.randint(0, V, inside_BT.shape, generator=torch.Generator().manual_seed(3))
    return Sequences(
        tokens_BT=torch.where(places_T < 2, 7, drawn_BT) * inside_BT,
        lengths_B=lengths_B,
        response_mask_BT=inside_BT & (places_T >= 2),
    )


def test_a_teachers_most_probable_tokens_come_in_the_order_of_the_batch_without_padding(
    reader: HeadReader,
) -> None:
    generator, given = torch.Generator().manual_seed(5), mixed_lengths()
    hidden_VH, weight_VH = torch.randn(2, V, H, generator=generator)
    reading = ForwardPass(of_vocabulary(reader, Candidates(number=K, below=V)))
    rows_of = [[15, 3, 0], [*range(4, 15), 1, 2]]
    for rows in rows_of:
        pack = Pack.of(given.rows(torch.tensor(rows)), RULES)
        logprobs_BT = reading.outputs_of(pack, hidden_VH[pack.tokens_1S], weight_VH)
        assert logprobs_BT.shape == pack.source.tokens_BT.shape
    ids_KR, logprobs_KR = reading.joined(rows_of)
    row_R, place_R = given.response_mask_BT.nonzero(as_tuple=True)
    before_R = given.tokens_BT[row_R, place_R - 1]
    expected_RK, expected_ids_RK = (
        (hidden_VH @ weight_VH.T).log_softmax(dim=-1)[before_R].topk(K, dim=-1)
    )
    assert ids_KR.T.equal(expected_ids_RK)
    # float32 sums in another order.
    torch.testing.assert_close(logprobs_KR.T, expected_RK, rtol=1e-5, atol=1e-5)


def test_an_update_keeps_likely_tokens_of_response_tokens_and_none_of_padding(
    reader: HeadReader,
) -> None:
    generator, given = torch.Generator().manual_seed(6), mixed_lengths()
    mask_BT = given.response_mask_BT
    scores_RV = torch.randn(int(mask_BT.sum()), V, generator=generator)
    logprobs_RK, ids_RK = scores_RV.log_softmax(dim=-1).topk(K, dim=-1)
    likely = LikelyTokens(
        ids_KR=ids_RK.T.contiguous(),
        logprobs_KR=logprobs_RK.T.contiguous(),
        counts_B=mask_BT.sum(dim=1),
    )
    weights_BT = mask_BT / mask_BT.sum()
    batch = given.into(WeightedSequences, token_weights_BT=weights_BT, likely=likely)
    pack = Pack.of(batch, RULES)
    hidden_1SH = torch.randn(1, pack.tokens_1S.size(1), H, generator=generator).requires_grad_()
    weight_VH = torch.randn(V, H, generator=generator)
    loss = TaughtLoss(own=answer_loss, form="reverse", coef=1.0)
    update, kept = UpdatePass(of_vocabulary(reader), loss, keeps=True), list[Tensor]()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        update.loss_of(pack, hidden_1SH, weight_VH).backward()
    storages = {each.data_ptr(): each for each in (one.untyped_storage() for one in kept)}
    own = hidden_1SH.nbytes + weight_VH.nbytes
    # The plan has 72 bytes for each; padded they would take nine times as many.
    assert mask_BT.numel() > 8 * len(logprobs_RK)
    assert sum(each.nbytes() for each in storages.values()) < own + 72 * logprobs_RK.numel()
    assert [each.shape for each in update.kept] == [mask_BT.shape]
