"""Cut a batch into micro-batches, and put their results back in the rows of the batch.

Shapes: B sequences, T positions.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from mindrl.batch.balance import MicroBatching
from mindrl.batch.sequence_trees import sequence_trees
from mindrl.batch.sequences import Sequences
from mindrl.batch.shared_prompts import cut
from mindrl.training.engine import Batch


def cut_by_rows(
    sequences: Batch, micro_batching: MicroBatching, *, shares_prompts: bool = False
) -> tuple[list[list[int]], list[Batch]]:
    """Return the rows of each micro-batch, and the micro-batches.

    With `shares_prompts` sequences that begin alike stay together as far as the tokens allow.
    """
    found = sequence_trees(sequences, shares_prompts=shares_prompts)
    rows_of = cut(found, sequences.lengths_B.tolist(), micro_batching)
    return rows_of, [sequences.rows(torch.tensor(rows)) for rows in rows_of]


def put_back(parts: Sequence[Tensor], rows_of: Sequence[Sequence[int]], width: int) -> Tensor:
    """Put the results of micro-batches, [B, T] each, back in their rows: float32 [B, width]."""
    whole_BT = torch.zeros(sum(map(len, rows_of)), width)
    for found_BT, rows in zip(parts, rows_of, strict=True):
        whole_BT[rows, : found_BT.size(1)] = found_BT
    return whole_BT


def read_after_last(sequences: Sequences) -> Sequences:
    """Request the position after the last token of each sequence (predicted at the last token)."""
    T = sequences.tokens_BT.size(1)
    return replace(
        sequences,
        tokens_BT=functional.pad(sequences.tokens_BT, (0, 1)),
        response_mask_BT=torch.arange(T + 1) == sequences.lengths_B[:, None],
    )


def without_targets(batch: Batch) -> Batch:
    """Return a batch with an empty response mask: it adds nothing to the token loss."""
    return replace(batch, response_mask_BT=torch.zeros_like(batch.response_mask_BT))
