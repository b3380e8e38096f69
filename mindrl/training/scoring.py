"""A Megatron model that turns sequences into log-probs: the reference, and half of the actor.

Shapes: B sequences, T positions, N response tokens, V this rank's part of the vocabulary.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn
from torch.nn import functional

from mindrl.batch.experience import Scored, Sequences
from mindrl.models.decoder import training_side
from mindrl.models.description import read_description
from mindrl.training.logprobs import vocab_parallel_logprobs
from mindrl.training.model import ModelSettings, build_model, transformer_config
from mindrl.training.offload import StorageOffloader
from mindrl.training.parallel import most_passes
from mindrl.training.weights import (
    check_table,
    import_weights,
    local_tensors,
    mark_parameters,
)

_PADDING_LOGIT = -1e30


class ScoringModel:
    """This rank's part of a model, with its weights loaded."""

    def __init__(self, folder: str, settings: ModelSettings, *, temperature: float) -> None:
        """Build the model on its device and fill it from a Hugging Face folder.

        Raises:
            ModelError: The folder does not hold a supported model.
        """
        self.settings = settings
        self.temperature = temperature
        self.description = read_description(folder)
        self.config = transformer_config(self.description, settings)
        self.chunks: list[nn.Module] = build_model(self.description, self.config, settings)
        self.side = training_side(
            self.description, settings.layout, dtype="bfloat16" if settings.bf16 else "float32"
        )
        self.table = self.side.table(dist.get_rank())
        check_table(self.chunks, self.table)
        for chunk in self.chunks:
            mark_parameters(chunk)
        import_weights(folder, self.local_tensors(), self.table)

    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's weights by their local names, in the shapes of its table."""
        return local_tensors(self.chunks, self.table)

    @torch.no_grad()
    def compute_log_prob(self, sequences: Sequences, *, micro_batch_size: int) -> Scored:
        """Score the response tokens; every tensor-parallel rank gets the same result."""
        logprobs_BT = torch.zeros(sequences.tokens_BT.shape)
        entropy_BT = torch.zeros(sequences.tokens_BT.shape)
        parts = list(sequences.split(micro_batch_size))
        idle = self.idle_passes(len(parts))
        row = 0
        for part in parts:
            part_logprobs, part_entropy = self.score(self.logits(part), part)
            rows, width = slice(row, row + len(part)), part.tokens_BT.size(1)
            logprobs_BT[rows, :width] = part_logprobs.cpu()
            entropy_BT[rows, :width] = part_entropy.cpu()
            row += len(part)
        for _ in range(idle):
            self.logits(sequences.rows(slice(0, 1)))
        return Scored(logprobs_BT=logprobs_BT, entropy_BT=entropy_BT)

    def idle_passes(self, passes: int) -> int:
        """Return how many passes this rank must add to its own: ask first. A collective.

        Ranks that share experts send each other tokens in every pass of any of them.
        """
        layout = self.settings.layout
        if self.description.moe is None or layout.ep * layout.etp == 1:
            return 0
        return most_passes(passes, self.settings.device_type) - passes

    def logits(self, sequences: Sequences) -> Tensor:
        """Run the network; returns [B, T, V]."""
        layout = self.settings.layout
        assert layout.pp == layout.cp == 1, f"{layout} can be built and filled, not yet run"
        (network,) = self.chunks
        T = sequences.tokens_BT.size(1)
        # Sequence parallelism cuts the positions evenly between the tensor-parallel ranks.
        extra = -T % layout.tp if self.config.sequence_parallel else 0
        tokens_BT = functional.pad(sequences.tokens_BT, (0, extra)).to(self.settings.device_type)
        positions_BT = torch.arange(T + extra, device=tokens_BT.device).expand_as(tokens_BT)
        logits_BTV: Tensor = network(tokens_BT, positions_BT, None)
        return logits_BTV[:, :T]

    def score(self, logits_BTV: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Turn logits into log-probs and entropies of the response tokens, float32 [B, T]."""
        mask_BT = sequences.response_mask_BT.to(logits_BTV.device)
        # The logits at position t - 1 speak of the token at t.
        logits_NV = logits_BTV[mask_BT.roll(-1, dims=1)].float() / self.temperature
        vocab = logits_NV.size(1)
        first_token = parallel_state.get_tensor_model_parallel_rank() * vocab
        token_V = torch.arange(first_token, first_token + vocab, device=logits_NV.device)
        logits_NV = logits_NV.masked_fill(token_V >= self.description.vocab_size, _PADDING_LOGIT)
        logprobs_N, entropy_N = vocab_parallel_logprobs(
            logits_NV,
            sequences.tokens_BT.to(logits_NV.device)[mask_BT],
            first_token=first_token,
            group=parallel_state.get_tensor_model_parallel_group(),
        )
        empty_BT = torch.zeros(mask_BT.shape, device=logits_NV.device)
        return (
            empty_BT.masked_scatter(mask_BT, logprobs_N),
            empty_BT.masked_scatter(mask_BT, entropy_N),
        )


class ReferenceModel:
    """A scoring model that never changes and spends its time on the host."""

    def __init__(self, folder: str, settings: ModelSettings, *, temperature: float) -> None:
        """Load the model and take it off the device at once.

        Raises:
            ModelError: The folder does not hold a supported model.
        """
        self.model = ScoringModel(folder, settings, temperature=temperature)
        self.offloader = StorageOffloader()
        self.offloader.offload(self._weights(), keep=True)

    def compute_log_prob(self, sequences: Sequences, *, micro_batch_size: int) -> Scored:
        """Bring the weights in, score, and release them: they did not change."""
        self.offloader.onload(self._weights(), kept=True)
        scored = self.model.compute_log_prob(sequences, micro_batch_size=micro_batch_size)
        self.offloader.offload(self._weights(), keep=False)
        return scored

    def _weights(self) -> Iterator[Tensor]:
        yield from self.model.local_tensors().values()
