"""Keys of sequences, computed from their tokens, under which a rollout engine keeps their routes.

The trainer computes a key from the tokens that it trains on, so the engine need not send it. The
tokens may have been sampled in one call or in several, each with a part of the routes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from mindrl.batch.sequences import StageT


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RoutePart:
    """Routes that one request computed, of some tokens of a sequence."""

    routes_TLK: Tensor
    """For T tokens, L layers and K experts the number of the expert + 1; 0 where none is known."""
    first: int = 0
    """Position of the first of these tokens in the sequence."""
    before: int | None = None
    """Key of the part with the routes of the tokens before them; None if this is the first."""


def content_key(token_ids: Sequence[int] | Tensor) -> int:
    """Return the key of a sequence: 63 bits of the hash of its tokens."""
    tokens = torch.as_tensor(token_ids, dtype=torch.int64).numpy()
    return int.from_bytes(blake2b(tokens.tobytes(), digest_size=8).digest(), "little") >> 1


def with_content_keys(sequences: StageT) -> StageT:
    """Name each sequence by its tokens up to the last that the policy sampled."""
    positions_T = torch.arange(1, sequences.tokens_BT.size(1) + 1)
    ends_B = (sequences.response_mask_BT * positions_T).amax(dim=1)
    rows = zip(sequences.tokens_BT, ends_B.tolist(), strict=True)
    return sequences.with_route_keys([content_key(tokens_T[:end]) for tokens_T, end in rows])
