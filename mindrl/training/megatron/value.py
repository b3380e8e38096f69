"""A Megatron model that turns sequences into numbers: half of the critic, and the reward model.

Shapes: B sequences, T positions, S tokens of a pack, N of them are read, H hidden size.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Sequences, SequenceScores, Values
from mindrl.models.decoder import VALUE_HEAD
from mindrl.training.megatron.loaded import Batch, LoadedModel, cut_by_rows, put_back
from mindrl.training.megatron.model import ModelSettings, value_weight
from mindrl.training.megatron.packs import Pack


class ValueModel(LoadedModel):
    """A model whose head gives one number for a token."""

    def __init__(
        self,
        folder: str,
        settings: ModelSettings,
        *,
        head_seed: int | None = None,
        source: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Build the model on its device and give it its weights.

        Args:
            folder: Hugging Face's.
            settings: Of the layout and the numerics.
            head_seed: Draws the head where the folder has none; None refuses such a folder.
            source: The local tensors of a model with the same folder and layout; None reads files.

        Raises:
            ModelError: The folder does not hold a supported model.
        """
        super().__init__(folder, settings, "value")
        drawn = {}
        if head_seed is not None:
            drawn[VALUE_HEAD] = drawn_head(self.description.hidden_size, head_seed)
        self.fill(source, drawn)

    def compute_values(self, sequences: Sequences, micro_batching: MicroBatching) -> Values | None:
        """Value each response token before it is chosen. A collective over the replica's ranks.

        Returns:
            The same on every rank of the last pipeline stage, None on the others.
        """
        rows_of, parts = cut_by_rows(sequences, micro_batching)
        found = self.forward(parts, self._read)
        if found is None:
            return None
        (values_BT,) = put_back(found, rows_of, sequences.tokens_BT.size(1))
        return Values(values_BT=values_BT)

    def compute_rewards(
        self, sequences: Sequences, micro_batching: MicroBatching
    ) -> SequenceScores | None:
        """Score whole sequences at their last tokens. A collective over the replica's ranks.

        Returns:
            The same on every rank of the last pipeline stage, None on the others.
        """
        rows_of, parts = cut_by_rows(sequences, micro_batching)
        found = self.forward([_asked_behind(part) for part in parts], self._read)
        if found is None:
            return None
        (values_BT,) = put_back(found, rows_of, sequences.tokens_BT.size(1) + 1)
        return SequenceScores(rewards_B=values_BT.sum(dim=1))

    def values(self, hidden_1SH: Tensor, pack: Pack[Batch]) -> Tensor:
        """Turn hidden states into values of this rank's tokens, float32 [B, T].

        The value of a token is read where its log-prob is: at the token before it.
        """
        hidden_NH = hidden_1SH[0, pack.predicting_N].float()
        values_N1 = functional.linear(hidden_NH, value_weight(self.chunks[-1]).float())
        return pack.spread(values_N1[:, 0])

    def _read(self, hidden_1SH: Tensor, pack: Pack[Sequences]) -> Tensor:
        return self.values(hidden_1SH, pack)[None]


def drawn_head(hidden_size: int, seed: int) -> Tensor:
    """Return a random head [1, H], the same on every rank; as wide as TRL draws its own.

    Normal, with a deviation of 1 / sqrt(H + 1): values of size 1 where hidden states are.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, hidden_size, generator=generator).div((hidden_size + 1) ** 0.5)


def _asked_behind(sequences: Sequences) -> Sequences:
    """Ask for the token behind the last one, which is read at the last one."""
    T = sequences.tokens_BT.size(1)
    return replace(
        sequences,
        tokens_BT=functional.pad(sequences.tokens_BT, (0, 1)),
        response_mask_BT=torch.arange(T + 1) == sequences.lengths_B[:, None],
    )
