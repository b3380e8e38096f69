"""A Megatron model that turns sequences into log-probs: the reference, and half of the actor.

Shapes: B sequences, T positions, S tokens of a pack, N of them predict a token, H hidden size.
"""

from collections.abc import Mapping

import torch
from megatron.core import parallel_state
from torch import Tensor

from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Logprobs, Sequences
from mindrl.training.megatron.loaded import Batch, LoadedModel, cut_by_rows, put_back
from mindrl.training.megatron.logprobs import Vocabulary, chunked_logprobs
from mindrl.training.megatron.model import ModelSettings, vocabulary_weight
from mindrl.training.megatron.packs import Pack


class ScoringModel(LoadedModel):
    """A model whose head gives the logits of a vocabulary."""

    def __init__(
        self,
        folder: str,
        settings: ModelSettings,
        *,
        temperature: float,
        source: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Build the model on its device and give it its weights.

        Args:
            folder: Hugging Face's.
            settings: Of the layout and the numerics.
            temperature: Divides the logits.
            source: The local tensors of a model with the same folder and layout; None reads files.

        Raises:
            ModelError: The folder does not hold a supported model.
        """
        super().__init__(folder, settings, "vocabulary")
        self.temperature = temperature
        self.fill(source)

    def compute_logprobs(
        self, sequences: Sequences, micro_batching: MicroBatching
    ) -> Logprobs | None:
        """Score the response tokens. A collective over the replica's ranks.

        Returns:
            The same on every rank of the last pipeline stage, None on the others.
        """
        rows_of, parts = cut_by_rows(sequences, micro_batching)

        def both(hidden_1SH: Tensor, pack: Pack[Sequences]) -> Tensor:
            return torch.stack(self.score(hidden_1SH, pack))

        found = self.forward(parts, both)
        if found is None:
            return None
        logprobs_BT, entropy_BT = put_back(found, rows_of, sequences.tokens_BT.size(1))
        return Logprobs(logprobs_BT=logprobs_BT, entropy_BT=entropy_BT)

    def score(self, hidden_1SH: Tensor, pack: Pack[Batch]) -> tuple[Tensor, Tensor]:
        """Turn hidden states into log-probs and entropies of this rank's tokens, float32 [B, T].

        Needs active groups.
        """
        weight_VH = vocabulary_weight(self.chunks[-1])
        logprobs_N, entropy_N = chunked_logprobs(
            hidden_1SH[0, pack.predicting_N],
            weight_VH,
            pack.targets_N,
            Vocabulary(
                size=self.description.vocab_size,
                first_token=parallel_state.get_tensor_model_parallel_rank() * len(weight_VH),
                group=parallel_state.get_tensor_model_parallel_group(),
                temperature=self.temperature,
                chunk_tokens=self.settings.logprob_chunk_tokens,
            ),
        )
        return pack.spread(logprobs_N), pack.spread(entropy_N)
