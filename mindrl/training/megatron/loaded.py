"""A Megatron model that is loaded, and how sequences go through it, whatever its head.

Shapes: B sequences, T positions, S tokens of a pack, H hidden size, K numbers for each token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor, nn

from mindrl.batch.balance import MicroBatching
from mindrl.batch.experience import Sequences
from mindrl.models.decoder import Head
from mindrl.models.description import read_description
from mindrl.training.megatron.forward_backward import forward_backward
from mindrl.training.megatron.model import ModelSettings, build_model, transformer_config
from mindrl.training.megatron.packs import Pack, PackRules
from mindrl.training.megatron.parallel import max_micro_batches
from mindrl.training.megatron.sharding import megatron_sharding
from mindrl.training.megatron.weights import (
    check_table,
    copy_weights,
    import_weights,
    local_tensors,
    mark_parameters,
)

Batch = TypeVar("Batch", bound=Sequences)
Read = Callable[[Tensor, Pack[Sequences]], Tensor]
"""From the last hidden states [1, S, H] and their pack to [K, B, T]: 0 for other ranks' tokens."""


class LoadedModel:
    """This rank's part of a model."""

    def __init__(self, folder: str, settings: ModelSettings, head: Head) -> None:
        """Build the model on its device; `fill` gives it its weights.

        Raises:
            ModelError: The folder does not hold a supported model.
        """
        self.folder = folder
        self.settings = settings
        self.head: Head = head
        self.description = read_description(folder)
        self.config = transformer_config(self.description, settings)
        with settings.groups.active():
            self.chunks: list[nn.Module] = build_model(
                self.description, self.config, settings, head
            )
        self.sharding = megatron_sharding(
            self.description,
            settings.layout,
            dtype="bfloat16" if settings.bf16 else "float32",
            experts="grouped" if settings.grouped_experts else "sequential",
            head=head,
        )
        self.table = self.sharding.table(dist.get_rank())
        check_table(self.chunks, self.table)
        for chunk in self.chunks:
            mark_parameters(chunk)

    def fill(
        self, source: Mapping[str, Tensor] | None, drawn: Mapping[str, Tensor] | None = None
    ) -> None:
        """Give the model its weights.

        Args:
            source: The local tensors of a model with the same folder and layout; None reads files.
            drawn: Logical tensors that take the place of those that the folder lacks.

        Raises:
            ModelError: A file or tensor is missing, unreadable or of another shape.
        """
        if source is None:
            import_weights(self.folder, self.local_tensors(), self.table, drawn)
        else:
            copy_weights(source, self.local_tensors())

    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's weights by their local names, in the shapes of its table."""
        return local_tensors(self.chunks, self.table)

    def weights(self) -> list[Tensor]:
        """Return tensors over all storages that hold weights; several may share one."""
        return list(self.local_tensors().values())

    def packs(self, parts: Sequence[Batch]) -> list[Pack[Batch]]:
        """Lay micro-batches out, and add as many empty ones as the layout asks for. A collective.

        Ranks that share experts send each other tokens in every micro-batch of any of them, and an
        interleaved pipeline takes micro-batches in whole rounds. Needs active groups.
        """
        layout = self.settings.layout
        count = len(parts)
        if self.description.moe is not None and layout.ep * layout.etp > 1:
            count = max_micro_batches(count, self.settings.device_type)
        if layout.vpp > 1:
            count += -count % layout.pp
        rules = self._pack_rules()
        idle = islice(cycle(self._idle(parts)), count - len(parts))
        return [Pack.of(part, rules) for part in (*parts, *idle)]

    @torch.no_grad()
    def forward(self, parts: Sequence[Sequences], read: Read) -> list[Tensor] | None:
        """Run micro-batches through the network. A collective over the replica's ranks.

        Returns:
            What was read of each, [K, B, T] on the host, the same on every rank of the last
            pipeline stage; None on the others.
        """

        def no_loss(pack: Pack[Sequences], hidden_1SH: Tensor) -> tuple[Tensor, Tensor]:
            return torch.zeros((), device=hidden_1SH.device), read(hidden_1SH, pack)

        with self.settings.groups.active():
            found = forward_backward(self.chunks, self.packs(parts), no_loss, forward_only=True)
            if not parallel_state.is_pipeline_last_stage():
                return None
            found = found[: len(parts)]
            for read_KBT in found if self.settings.layout.cp > 1 else []:
                # Each token was read on one of these ranks and is 0 on the others.
                dist.all_reduce(read_KBT, group=parallel_state.get_context_parallel_group())
        return [read_KBT.cpu() for read_KBT in found]

    def _idle(self, parts: Sequence[Batch]) -> list[Batch]:
        """Return what to go through once more without asking for any token."""
        if self.settings.moe_aux_loss_coeff and torch.is_grad_enabled():
            # That loss is a mean over micro-batches: it stays the same if all are repeated.
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


def cut_by_rows(
    sequences: Batch, micro_batching: MicroBatching
) -> tuple[list[list[int]], list[Batch]]:
    """Return the rows of each micro-batch, and the micro-batches."""
    rows_of = micro_batching.cut(sequences.lengths_B.tolist())
    return rows_of, [sequences.rows(torch.tensor(rows)) for rows in rows_of]


def put_back(parts: Sequence[Tensor], rows_of: Sequence[Sequence[int]], width: int) -> list[Tensor]:
    """Put what was read of micro-batches, [K, B, T] each, to its rows.

    Returns:
        K times float32 [B, width]. No two in one storage, which would be pickled with each.
    """
    whole = [torch.zeros(sum(map(len, rows_of)), width) for _ in parts[0]]
    for found_KBT, rows in zip(parts, rows_of, strict=True):
        for whole_BT, found_BT in zip(whole, found_KBT, strict=True):
            whole_BT[rows, : found_BT.size(1)] = found_BT
    return whole


def _nothing_asked(batch: Batch) -> Batch:
    """Return a batch of which no token is asked for: it adds nothing to the loss of tokens."""
    return replace(batch, response_mask_BT=torch.zeros_like(batch.response_mask_BT))
