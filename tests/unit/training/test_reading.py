"""What a head reads at the last token of a shared prompt, for each answer to it."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from mindrl.batch.sequences import Sequences
from mindrl.training.logprobs import Vocabulary
from mindrl.training.packs import Pack, PackRules
from mindrl.training.reading import HeadReader

PROMPTS, ANSWERS, TOKENS, H = 4, 64, 16, 64
"""Prompts, answers to each, tokens of a prompt and as many of an answer, hidden size."""


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
    rules = PackRules(
        removes_padding=True,
        shares_prompts=True,
        cp=1,
        cp_rank=0,
        ring=1,
        tokens_multiple=1,
        device_type="cpu",
    )
    pack = Pack.of(sequences, rules)
    hidden_1SH = torch.randn(1, pack.tokens_1S.size(1), H, generator=generator).requires_grad_()
    weight_1H = torch.randn(1, H, generator=generator)
    upstream_BT = torch.randn(rows, length, generator=generator)

    def gradient() -> torch.Tensor:
        (values_BT,) = reader.read(pack, hidden_1SH, weight_1H)
        (found,) = torch.autograd.grad(values_BT, hidden_1SH, upstream_BT)
        return found

    first = gradient()
    assert len(pack.predicting_N) > len({*pack.predicting_N.tolist()})
    for _ in range(20):
        assert torch.equal(gradient(), first)
