"""What a head says of the tokens of a pack.

Shapes: B sequences, T positions, S tokens of a pack, N of them predict a token, H hidden size.
"""

import torch
from megatron.core import parallel_state
from torch import Tensor, nn
from torch.nn import functional

from mindrl.models.description import ModelDescription
from mindrl.training.megatron.logprobs import Vocabulary, chunked_logprobs
from mindrl.training.megatron.model import ModelSettings, value_weight, vocabulary_weight
from mindrl.training.megatron.packs import Pack, Source


def logprob_head(
    pack: Pack[Source],
    hidden_1SH: Tensor,
    last_chunk: nn.Module,
    model: ModelDescription,
    settings: ModelSettings,
) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies of this rank's tokens, float32 [B, T].

    Needs active groups.
    """
    weight_VH = vocabulary_weight(last_chunk)
    logprobs_N, entropy_N = chunked_logprobs(
        hidden_1SH[0, pack.predicting_N],
        weight_VH,
        pack.targets_N,
        Vocabulary(
            size=model.vocab_size,
            first_token=parallel_state.get_tensor_model_parallel_rank() * len(weight_VH),
            group=parallel_state.get_tensor_model_parallel_group(),
            temperature=settings.temperature,
            chunk_tokens=settings.logprob_chunk_tokens,
        ),
    )
    return pack.spread(logprobs_N), pack.spread(entropy_N)


def value_head(pack: Pack[Source], hidden_1SH: Tensor, last_chunk: nn.Module) -> tuple[Tensor]:
    """Return values of this rank's tokens, float32 [B, T].

    The value of a token is read where its log-prob is: at the token before it.
    """
    hidden_NH = hidden_1SH[0, pack.predicting_N].float()
    values_N1 = functional.linear(hidden_NH, value_weight(last_chunk).float())
    return (pack.spread(values_N1[:, 0]),)


def drawn_value_head(hidden_size: int, seed: int) -> Tensor:
    """Return a random head [1, H], the same on every rank; as wide as TRL draws its own.

    Normal, with a deviation of 1 / sqrt(H + 1): values of size 1 where hidden states are.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, hidden_size, generator=generator).div((hidden_size + 1) ** 0.5)
