"""A Megatron model that turns sequences into log-probs: the reference, and half of the actor.

Shapes: B sequences, T positions, S tokens of a pack, N of them predict a token, H hidden size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn

from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Scored, Sequences
from mindrl.models.decoder import training_side
from mindrl.models.description import read_description
from mindrl.training.logprobs import Vocabulary, chunked_logprobs
from mindrl.training.model import (
    ModelSettings,
    build_model,
    transformer_config,
    vocabulary_weight,
)
from mindrl.training.offload import StorageOffloader
from mindrl.training.packs import Pack, PackRules
from mindrl.training.parallel import most_passes
from mindrl.training.passes import run_passes
from mindrl.training.weights import (
    check_table,
    import_weights,
    local_tensors,
    mark_parameters,
)

Batch = TypeVar("Batch", bound=Sequences)


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
            self.description,
            settings.layout,
            dtype="bfloat16" if settings.bf16 else "float32",
            experts="grouped" if settings.grouped_experts else "sequential",
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
    def compute_log_prob(
        self, sequences: Sequences, micro_batching: MicroBatching
    ) -> Scored | None:
        """Score the response tokens. A collective over the replica's ranks.

        Returns:
            The same on every rank of the last pipeline stage, None on the others.
        """
        parts = micro_batching.cut(sequences.lengths_B.tolist())
        packs = self.packs([sequences.rows(torch.tensor(rows)) for rows in parts])

        def both(pack: Pack[Sequences], hidden_1SH: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            return torch.zeros((), device=hidden_1SH.device), self.score(hidden_1SH, pack)

        found = run_passes(self.chunks, packs, both, forward_only=True)
        if not parallel_state.is_pipeline_last_stage():
            return None
        scored = torch.zeros(2, *sequences.tokens_BT.shape)
        for rows, both_BT in zip(parts, found, strict=False):
            stacked_2BT = torch.stack(both_BT)
            if self.settings.layout.cp > 1:
                # Each token was predicted on one of these ranks and is 0 on the others.
                dist.all_reduce(stacked_2BT, group=parallel_state.get_context_parallel_group())
            scored[:, rows, : stacked_2BT.size(2)] = stacked_2BT.cpu()
        return Scored(logprobs_BT=scored[0], entropy_BT=scored[1])

    def packs(self, parts: Sequence[Batch]) -> list[Pack[Batch]]:
        """Lay micro-batches out, and add as many empty ones as the layout asks for. A collective.

        Ranks that share experts send each other tokens in every pass of any of them, and an
        interleaved pipeline takes micro-batches in whole rounds.
        """
        layout = self.settings.layout
        count = len(parts)
        if self.description.moe is not None and layout.ep * layout.etp > 1:
            count = most_passes(count, self.settings.device_type)
        if layout.vpp > 1:
            count += -count % layout.pp
        rules = self._pack_rules()
        idle = islice(cycle(self._idle(parts)), count - len(parts))
        return [Pack.of(part, rules) for part in (*parts, *idle)]

    def score(self, hidden_1SH: Tensor, pack: Pack[Batch]) -> tuple[Tensor, Tensor]:
        """Turn hidden states into log-probs and entropies of this rank's tokens, float32 [B, T]."""
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

    def _idle(self, parts: Sequence[Batch]) -> list[Batch]:
        """Return what to go through once more without asking for any token."""
        if self.settings.moe_aux_loss_coeff and torch.is_grad_enabled():
            # That loss is a mean over passes: it stays the same if all are repeated.
            return [_nothing_asked(part) for part in parts]
        return [_nothing_asked(parts[0].rows(parts[0].lengths_B.argmin()[None]))]

    def _pack_rules(self) -> PackRules:
        layout = self.settings.layout
        return PackRules(
            removes_padding=self.settings.removes_padding,
            cp=layout.cp,
            cp_rank=parallel_state.get_context_parallel_rank(),
            # Sequence parallelism cuts the tokens evenly between the tensor-parallel ranks.
            tokens_multiple=layout.cp * (layout.tp if self.config.sequence_parallel else 1),
            device_type=self.settings.device_type,
        )


def _nothing_asked(batch: Batch) -> Batch:
    """Return a batch of which no token is asked for: it adds nothing to the loss of tokens."""
    return replace(batch, response_mask_BT=torch.zeros_like(batch.response_mask_BT))


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

    def compute_log_prob(
        self, sequences: Sequences, micro_batching: MicroBatching
    ) -> Scored | None:
        """Bring the weights in, score, and release them: they did not change."""
        self.offloader.onload(self._weights(), kept=True)
        scored = self.model.compute_log_prob(sequences, micro_batching)
        self.offloader.offload(self._weights(), keep=False)
        return scored

    def _weights(self) -> Iterator[Tensor]:
        yield from self.model.local_tensors().values()
