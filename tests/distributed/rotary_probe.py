"""What the test of rotary frequencies calls in prepared processes; see forked_workers.run."""

import torch
from torch import Tensor
from training_messages import Case
from training_probe import build

from mindrl.training.megatron.model import unwrap


def frequencies(case: Case) -> list[tuple[torch.dtype, Tensor]]:
    """Return the type of each chunk's first weight, and its frequencies after the wrapping."""
    return [
        (next(chunk.parameters()).dtype, unwrap(chunk).rotary_pos_emb.inv_freq)
        for chunk in build(case).chunks
    ]
