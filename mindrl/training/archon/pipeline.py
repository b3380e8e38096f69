"""Run packs through the chunks of a model: forward only, or forward and backward.

The schedules of torch.distributed.pipelining receive into buffers of one shape. So hidden states of
an update are padded to its longest pack for sending, and cut before any computation: this costs
bytes on the wire, but no compute. All ranks of a replica have all packs, and refer to them by
number.

Shapes: S tokens of a pack on this rank, H hidden size; with sequence parallelism hidden states
between chunks are [1, S / tp, H].
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.nn import functional

from mindrl.config.archon import Schedule
from mindrl.layouts.layout import TrainLayout
from mindrl.observability.progress import tick
from mindrl.observability.trace import span
from mindrl.training.archon.network import Network
from mindrl.training.archon.shards import give_back
from mindrl.training.packs import Pack
from mindrl.training.reading import Reader


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """Hidden states as they are sent between chunks."""

    size: int
    dtype: torch.dtype
    ranks: int
    """Number of ranks that share the tokens of hidden states."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """This rank's chunks of a model, and their connection to the chunks of other ranks."""

    networks: Mapping[int, Network]
    """Chunks by their number in the model, ascending."""
    layout: TrainLayout
    schedule: Schedule
    """Schedule of an update."""
    group: dist.ProcessGroup
    """Stages of a replica."""
    hidden: Hidden
    device_type: str

    @property
    def has_head(self) -> bool:
        """Whether this rank has the last chunk."""
        return self._last in self.networks

    def packs_of_update(self, count: int) -> int:
        """Return the smallest number of packs, at least `count`, that the schedule supports."""
        pp = self.layout.pp
        if self.schedule == "1F1B":
            return max(count, pp)
        if self.schedule != "ZBVZeroBubble":
            # Rounds must be equal, with at least one pack per stage.
            while count % max(1, count // pp):
                count += 1
        return count

    def forward(self, packs: Sequence[Pack[Any]], read: Reader) -> list[Tensor]:
        """Run packs forward, without gradients. A collective over the ranks of a replica.

        The schedules' own `eval` does not support chunks that run back through the stages. Rounds
        of `pp` packs keep the messages between any two ranks in one order; each message has its own
        size.

        Returns:
            Results of `read` for each pack; empty on ranks without the head.
        """
        pp, found, sent = self.layout.pp, list[Tensor](), deque[dist.Work]()
        for first in range(0, len(packs), pp):
            taken, made = packs[first : first + pp], list[Tensor]()
            for chunk in self.networks:
                made = self._through(chunk, taken, made, sent)
            if self.has_head:
                weight = self.networks[self._last].head_weight()
                pairs = zip(taken, made, strict=True)
                found += [read(pack, hidden_1SH, weight) for pack, hidden_1SH in pairs]
            # Wait for the sends of the previous round.
            while len(sent) > pp * len(self.networks):
                sent.popleft().wait()
        for work in sent:
            work.wait()
        self._give_back()
        return found

    def update(self, packs: Sequence[Pack[Any]], loss: Reader) -> None:
        """Run packs forward and backward. A collective over the ranks of a replica.

        The number of packs must be one that `packs_of_update` returns. The rank with the head calls
        `loss` in the order of the packs.
        """
        if self.layout.pp == 1:
            (network,) = self.networks.values()
            for pack in packs:
                tick()
                with span("forward"):
                    found = loss(pack, network(pack.tokens_1S, pack), network.head_weight())
                with span("backward"):
                    found.backward()  # type: ignore[no-untyped-call]
        else:
            self._scheduled(packs, loss)
        self._give_back()

    def _through(
        self, chunk: int, packs: Sequence[Pack[Any]], made: list[Tensor], sent: deque[dist.Work]
    ) -> list[Tensor]:
        """Run packs through a chunk; returns the hidden states that stay on this rank."""
        # Post all receives before any send: two ranks may send to each other.
        coming, kept = self._coming(chunk, packs, made), []
        for pack, (given, work) in zip(packs, coming, strict=True):
            tick()
            if work is not None:
                work.wait()
            with span("forward"):
                hidden_1SH = self.networks[chunk](given, pack)
            if chunk == self._last or chunk + 1 in self.networks:
                kept.append(hidden_1SH)
            else:
                sent.append(self._sent(hidden_1SH, chunk + 1))
        return kept

    def _scheduled(self, packs: Sequence[Pack[Any]], loss: Reader) -> None:
        width = max(self._tokens(pack) for pack in packs)
        numbers = torch.arange(len(packs))

        def of_pack(hidden_1SH: Tensor, number: Tensor) -> Tensor:
            return loss(packs[int(number)], hidden_1SH, self.networks[self._last].head_weight())

        with ExitStack() as stack:
            for chunk, network in self.networks.items():
                stack.enter_context(self._padded(chunk, network, packs, width))
            held = self.networks.items()
            stages = [self._stage(chunk, network, width) for chunk, network in held]
            kind: Any = get_schedule_class(self.schedule)
            schedule = kind(
                stages[0] if self.schedule == "1F1B" else stages,
                n_microbatches=len(packs),
                loss_fn=of_pack,
                scale_grads=False,
            )
            schedule.step(
                *([numbers] if 0 in self.networks else []),
                target=numbers if self.has_head else None,
                return_outputs=False,
                number=numbers,
            )

    def _stage(self, chunk: int, network: Network, width: int) -> "_TracedStage":
        """Describe a chunk to the schedules, with its shapes: they then skip shape inference."""
        # Gradients are sent only for inputs that require them.
        hidden = self._room(width, "meta").requires_grad_()
        return _TracedStage(
            network,
            chunk,
            self._last + 1,
            torch.device(self.device_type),
            input_args=hidden if chunk else torch.empty(1, dtype=torch.int64, device="meta"),
            output_args=hidden,
            group=self.group,
        )

    @contextmanager
    def _padded(
        self, chunk: int, network: Network, packs: Sequence[Pack[Any]], width: int
    ) -> Iterator[None]:
        """Make a chunk take packs by number, and hidden states padded to `width`.

        Uses hooks, because the schedules look for FSDP2 in the module that they get.
        """
        gradients = [(parameter, parameter.grad) for parameter in network.parameters()]

        def take(_: Any, given: Any, named: Any) -> Any:
            tick()
            # Restore the gradients to add into: the schedules remove them when they start.
            for parameter, gradient in gradients:
                parameter.grad = gradient
            pack = packs[int(named["number"])]
            return (given[0][:, : self._tokens(pack)] if chunk else pack.tokens_1S, pack), {}

        def give(_: Any, __: Any, hidden_1SH: Tensor) -> Tensor:
            if chunk == self._last:
                return hidden_1SH
            return functional.pad(hidden_1SH, (0, 0, 0, width - hidden_1SH.size(1)))

        # Must run before FSDP2 moves the number to the device.
        taking = network.register_forward_pre_hook(take, prepend=True, with_kwargs=True)
        giving = network.register_forward_hook(give)
        try:
            yield
        finally:
            taking.remove()
            giving.remove()

    def _coming(
        self, chunk: int, packs: Sequence[Pack[Any]], made: Sequence[Tensor]
    ) -> list[tuple[Tensor, dist.Work | None]]:
        """Return a chunk's inputs for each pack, and the receive to wait for if any."""
        if chunk == 0:
            return [(pack.tokens_1S, None) for pack in packs]
        if chunk - 1 in self.networks:
            return [(hidden_1SH, None) for hidden_1SH in made]
        source, coming = self.layout.stage_with(chunk - 1), []
        for pack in packs:
            room_1SH = self._room(self._tokens(pack), self.device_type)
            coming.append((room_1SH, dist.irecv(room_1SH, group=self.group, group_src=source)))
        return coming

    def _sent(self, hidden_1SH: Tensor, chunk: int) -> dist.Work:
        target = self.layout.stage_with(chunk)
        work = dist.isend(hidden_1SH.contiguous(), group=self.group, group_dst=target)
        assert work is not None, "this rank is not in the group"
        return work

    def _room(self, tokens: int, device: str) -> Tensor:
        return torch.empty(1, tokens, self.hidden.size, dtype=self.hidden.dtype, device=device)

    def _tokens(self, pack: Pack[Any]) -> int:
        return pack.tokens_1S.size(1) // self.hidden.ranks

    @property
    def _last(self) -> int:
        return self.layout.pp * self.layout.vpp - 1

    def _give_back(self) -> None:
        for network in self.networks.values():
            give_back(network)


class _TracedStage(PipelineStage):
    """A chunk whose passes are recorded in the trace, in any schedule."""

    def forward_one_chunk(self, *given: Any, **named: Any) -> Any:
        with span("forward"):
            return super().forward_one_chunk(*given, **named)

    def backward_one_chunk(self, *given: Any, **named: Any) -> Any:
        with span("backward"):
            return super().backward_one_chunk(*given, **named)

    def backward_weight_one_chunk(self, *given: Any, **named: Any) -> Any:
        with span("backward of weights"):
            return super().backward_weight_one_chunk(*given, **named)
