"""Token weights: the weight of each token in the loss of one update.

They are normalised over a whole update, all ranks and micro-batches, and sum to 1 for means. The
loss is then a plain sum that does not depend on the micro-batch size, data parallelism, or packing.

Shapes: B sequences, T positions.
"""

import torch
from torch import Tensor


def token_mean_weights(mask_BT: Tensor) -> Tensor:
    """Return equal weights for all tokens in the mask.

    DAPO's mean over tokens (arXiv 2503.14476): longer responses have more weight. The mask, bool,
    is True at tokens to be trained on, of the whole update, not a shard of it. The weights are
    float32, 0 outside the mask.

    Raises:
        ValueError: if the mask is not bool, or has no token.
    """
    _require_token(mask_BT)
    return mask_BT.float() / mask_BT.sum()


def sequence_mean_weights(mask_BT: Tensor) -> Tensor:
    """Return weights with equal sums per sequence, shared equally by its tokens in the mask.

    The 1/G sum 1/|o_i| of GRPO (arXiv 2402.03300) eq. 3. A sequence without a token in the mask
    gets 0 and is not counted. Arguments, result and errors as `token_mean_weights`.
    """
    _require_token(mask_BT)
    tokens_B = mask_BT.sum(dim=1)
    sequences = (tokens_B > 0).sum()
    return mask_BT.float() / (tokens_B.clamp(min=1) * sequences).unsqueeze(1)


def sequence_sum_weights(mask_BT: Tensor, longest: int) -> Tensor:
    """Return equal weights for all tokens, independent of lengths: 1 / (sequences * longest).

    Dr. GRPO (arXiv 2503.20783): the mean over sequences of a sum over tokens divided by a constant,
    `longest`. The weights sum to the mean length as a fraction of `longest`. Arguments, result and
    errors as `token_mean_weights`.
    """
    _require_token(mask_BT)
    sequences = (mask_BT.sum(dim=1) > 0).sum()
    return mask_BT.float() / (sequences * longest)


def _require_token(mask_BT: Tensor) -> None:
    if mask_BT.dtype != torch.bool:
        raise ValueError(f"mask_BT has dtype {mask_BT.dtype}; must be torch.bool")
    if not mask_BT.any():
        raise ValueError(
            f"mask_BT of shape {list(mask_BT.shape)} selects no token; an update needs at least one"
        )
