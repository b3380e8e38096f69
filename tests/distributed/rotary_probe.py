"""What the test of rotary frequencies calls in prepared processes; see forked_workers.run."""

from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from torch import Tensor
from training_messages import Case
from training_probe import build

from mindrl.batch.balance import MicroBatching
from mindrl.batch.sequences import Sequences
from mindrl.training.megatron.model import unwrap


def frequencies(case: Case) -> list[tuple[torch.dtype, Tensor]]:
    """Return the type of each chunk's first weight, and its frequencies after the wrapping."""
    return [
        (next(chunk.parameters()).dtype, unwrap(chunk).rotary_pos_emb.inv_freq)
        for chunk in build(case).chunks
    ]


def kept_tables(case: Case, sequences: Sequences) -> tuple[int, int, bool]:
    """Read sequences one by one.

    Returns the modules that make angles, the tables that Megatron keeps afterwards, and whether
    those of a module are the ones that Megatron would keep, to the bit.
    """
    model = build(case)
    model.forward(sequences, MicroBatching(sequences=1))
    modules = [each for each in unwrap(model.chunks[0]).modules() if _makes_angles(each)]
    kept = sum(kind.forward.cache_info().currsize for kind in {type(each) for each in modules})
    found, megatrons = modules[0].forward(7), type(modules[0]).forward(modules[0], 7)
    pairs = zip(_as_tuple(found), _as_tuple(megatrons), strict=True)
    return len(modules), kept, all(torch.equal(ours, theirs) for ours, theirs in pairs)


def _makes_angles(module: Any) -> bool:
    return isinstance(module, RotaryEmbedding)


def _as_tuple(angles: Any) -> tuple[Tensor, ...]:
    """Return angles as a tuple; yarn returns a factor too."""
    return tuple(map(torch.as_tensor, angles if isinstance(angles, tuple) else (angles,)))
