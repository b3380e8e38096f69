"""Token weights: what each token counts for in the loss of one update.

They are those of a whole update, over all ranks and micro-batches, and add to 1 where they are
means. The loss is then a plain sum, and neither the micro-batch size, nor data parallelism, nor
packing can change it.

Shapes: B sequences, T positions.
"""

import torch
from torch import Tensor


def token_mean_weights(mask_BT: Tensor) -> Tensor:
    """Give every token in the mask the same weight.

    The mean over tokens of DAPO (arXiv 2503.14476): a long response counts for more. The mask,
    bool, is True at tokens to be trained on, of the whole update, not a shard of it. The weights
    are float32, 0 outside the mask.

    Raises:
        ValueError: if the mask is not bool, or holds no token.
    """
    _require_token(mask_BT)
    return mask_BT.float() / mask_BT.sum()


def sequence_mean_weights(mask_BT: Tensor) -> Tensor:
    """Give every sequence the same weight, shared equally by its tokens in the mask.

    The 1/G sum 1/|o_i| of GRPO (arXiv 2402.03300) eq. 3. A sequence without a token in the
    mask gets 0 and is not counted. Arguments, result and errors as `token_mean_weights`.
    """
    _require_token(mask_BT)
    tokens_B = mask_BT.sum(dim=1)
    sequences = (tokens_B > 0).sum()
    return mask_BT.float() / (tokens_B.clamp(min=1) * sequences).unsqueeze(1)


def sequence_sum_weights(mask_BT: Tensor, longest: int) -> Tensor:
    """Give every token the same weight, whatever the lengths: 1 / (sequences * longest).

    Dr. GRPO (arXiv 2503.20783): a sum over the tokens of a sequence over a constant, `longest`, the
    mean over sequences. The weights add to the share of the longest responses that were written.
    Arguments, result and errors as `token_mean_weights`.
    """
    _require_token(mask_BT)
    sequences = (mask_BT.sum(dim=1) > 0).sum()
    return mask_BT.float() / (sequences * longest)


def _require_token(mask_BT: Tensor) -> None:
    if mask_BT.dtype != torch.bool:
        raise ValueError(f"mask_BT has dtype {mask_BT.dtype}; it must be torch.bool")
    if not mask_BT.any():
        raise ValueError(
            f"mask_BT of shape {list(mask_BT.shape)} holds no token; an update needs at least one"
        )
