"""What each rank of a test takes of a batch, whichever engine trains it."""

from dataclasses import replace
from typing import TypeVar

import torch
import torch.distributed as dist
from training_messages import Case

from mindrl.batch.sequences import Sequences

Share = TypeVar("Share", bound=Sequences)


def with_all_asked(sequences: Sequences) -> Sequences:
    """Ask for every token but the first of a row, so for the logits of all but the last."""
    asked_BT = torch.arange(sequences.tokens_BT.size(1)) < sequences.lengths_B[:, None]
    asked_BT[:, 0] = False
    return replace(sequences, response_mask_BT=asked_BT)


def share(case: Case, sequences: Share) -> Share:
    """Take what this rank's replica gets of a batch."""
    replica = case.layout.replica_of(dist.get_rank())
    dp = case.layout.dp
    shares = case.shares or (len(sequences) // dp,) * dp
    start = sum(shares[:replica])
    return sequences.rows(slice(start, start + shares[replica]))
