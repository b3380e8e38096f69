"""Names of sequences by their tokens, under which a rollout engine keeps the routes of each.

The trainer names a sequence by the tokens that it trains on, so it needs no name from the engine
but the tokens: they may have been sampled in one call or in several.
"""

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from mindrl.batch.sequences import StageT


def content_key(token_ids: Sequence[int] | Tensor) -> int:
    """Return the key of a sequence: 63 bits of the hash of its tokens."""
    tokens = torch.as_tensor(token_ids, dtype=torch.int64).numpy()
    return int.from_bytes(blake2b(tokens.tobytes(), digest_size=8).digest(), "little") >> 1


def with_content_keys(sequences: StageT) -> StageT:
    """Name each sequence by its tokens."""
    rows = zip(sequences.tokens_BT, sequences.lengths_B.tolist(), strict=True)
    return sequences.with_route_keys([content_key(tokens_T[:length]) for tokens_T, length in rows])
