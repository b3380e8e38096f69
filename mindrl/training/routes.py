"""Routes of a mixture of experts: kept from one pass, replayed in others.

A route is the experts of one token in one layer. Passes that round differently choose different
experts for a token now and then, and its log-prob jumps. A replayed route fixes the choice alone:
the weights of the chosen experts are computed as always, so the router still learns (arXiv
2510.11370, arXiv 2512.01374).

Routes are stored as expert + 1; 0 lets a token choose. Shapes: B sequences, T positions, S tokens
of a pack that this rank's routers read, L layers with experts of this rank, K experts of a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.batch.sequences import Sequences
from mindrl.models.description import MoeDescription
from mindrl.models.expert_routes import number_bytes
from mindrl.training.pack_routes import PackRoutes
from mindrl.training.packs import Pack
from mindrl.training.slots import slots_of


class RouteGroups(NamedTuple):
    """Ranks that together have the routes of the same layers."""

    tokens: dist.ProcessGroup | None
    """Ranks that share the tokens of each sequence; None for a single rank."""
    replicas: dist.ProcessGroup
    """Ranks that read other sequences, at the same place in their replicas."""
    cut: tuple[int, int] = (1, 0)
    """Tensor-parallel ranks that share the tokens of hidden states, and the number of this one."""


@dataclass(kw_only=True)
class RouteStore:
    """Routes of the sequences that this rank's replica read last, on the host."""

    moe: MoeDescription
    layers: int
    """Layers with experts of this rank."""
    groups: RouteGroups
    device_type: str
    shares_prompts: bool
    rows: dict[int, Tensor] = field(default_factory=dict)
    """[T, L, K] of each sequence without its padding, by its route key."""
    replayed: list[PackRoutes] = field(default_factory=list)
    """Routes of the packs of the current update."""

    def begin_recording(self, packs: Sequence[Pack[Any]]) -> list[Pack[Any]]:
        """Let the routers note what they choose for packs."""
        self.rows.clear()
        return [replace(pack, routes=PackRoutes()) for pack in packs]

    def record(self, packs: Sequence[Pack[Any]]) -> None:
        """Keep what the routers chose for packs. A collective over ranks that share tokens."""
        for pack in packs:
            sequences: Sequences = pack.source
            routes_BTLK = self._whole(pack)
            for slot in (slots := slots_of(sequences, shares_prompts=self.shares_prompts)):
                if slot.prompt is not None:
                    lender = slots[slot.prompt].row
                    routes_BTLK[slot.row, : slot.first] = routes_BTLK[lender, : slot.first]
            assert sequences.route_keys_B is not None, "numbered by the trainer"
            keys, lengths = sequences.route_keys_B.tolist(), sequences.lengths_B.tolist()
            for key, length, routes_TLK in zip(keys, lengths, routes_BTLK, strict=True):
                self.rows[key] = routes_TLK[:length].clone()

    def replaying(self, packs: Sequence[Pack[Any]]) -> list[Pack[Any]]:
        """Give packs the routes of their sequences, for an update."""
        made = [replace(pack, routes=self._of_pack(pack)) for pack in packs]
        self.replayed = [pack.routes for pack in made if pack.routes and not pack.is_idle]
        return made

    def with_routes(self, sequences: Any) -> Any:
        """Return sequences with their routes, wherever they are. A collective over the replicas."""
        keys = sequences.route_keys_B.tolist()
        lengths = sequences.lengths_B.tolist()
        shape = (*sequences.tokens_BT.shape, self.layers, self.moe.num_experts_per_tok)
        routes_BTLK = torch.zeros(shape, dtype=self._dtype)
        if self.layers:
            found = self._fetched(dict(zip(keys, lengths, strict=True)))
            for row, (key, length) in enumerate(zip(keys, lengths, strict=True)):
                routes_BTLK[row, :length] = found[key]
        return replace(sequences, routes_BTLK=routes_BTLK)

    def metrics(self) -> dict[str, float]:
        """Return the share of replayed choices that differ from the router's own. A collective."""
        counts = [count for routes in self.replayed for count in routes.differing]
        self.replayed = []
        total_2 = torch.stack(counts).sum(0) if counts else torch.zeros(2, dtype=torch.int64)
        total_2 = total_2.to(self.device_type)
        dist.all_reduce(total_2)
        differing, given = total_2.tolist()
        return {"differing_routes": differing / given if given else 0.0}

    @property
    def _dtype(self) -> torch.dtype:
        return torch.uint8 if number_bytes(self.moe) == 1 else torch.int16

    def _own_places(self, pack: Pack[Any]) -> Tensor:
        """Return the index in the flattened [B, T] of the tokens that this rank's routers read."""
        ranks, rank = self.groups.cut
        return pack.place_S.view(ranks, -1)[rank]

    def _of_pack(self, pack: Pack[Any]) -> PackRoutes | None:
        if pack.source.routes_BTLK is None or not self.layers:
            return None
        place_S = self._own_places(pack)
        routes_SLK = pack.source.routes_BTLK.flatten(0, 1)[place_S.clamp(min=0)]
        routes_SLK[place_S < 0] = 0
        return PackRoutes(given_LSK=routes_SLK.transpose(0, 1).contiguous().to(self.device_type))

    def _whole(self, pack: Pack[Any]) -> Tensor:
        """Return the routes of a pack's sequences, [B, T, L, K], from all ranks with its tokens."""
        place_S, taken = self._own_places(pack), pack.routes.taken if pack.routes else {}
        assert len(taken) == self.layers, f"{len(taken)} routers of {self.layers} chose"
        shape, K = pack.source.tokens_BT.shape, self.moe.num_experts_per_tok
        flat = torch.zeros(shape.numel() + 1, self.layers, K, dtype=self._dtype)
        if self.layers:
            chosen = torch.stack([taken[layer] for layer in range(self.layers)], 1) + 1
            parts = [(place_S, chosen.to(self._dtype))]
            if self.groups.tokens is not None:
                places, routes = (self._gathered(each) for each in parts[0])
                parts = [*zip(places, routes, strict=True)]
            for places_S, routes_SLK in parts:
                # Padding, -1, falls into the row that is dropped.
                flat[places_S] = routes_SLK.cpu()
        return flat[:-1].view(*shape, self.layers, K)

    def _gathered(self, own: Tensor) -> list[Tensor]:
        own = own.to(self.device_type).contiguous()
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(self.groups.tokens))]
        dist.all_gather(parts, own, group=self.groups.tokens)
        return [part.cpu() for part in parts]

    def _fetched(self, lengths: dict[int, int]) -> dict[int, Tensor]:
        """Return the routes of these sequences, by key, from the replicas that read them."""
        group, size = self.groups.replicas, self.groups.replicas.size()
        if size == 1:
            return self.rows
        told: list[Any] = [None] * size
        dist.all_gather_object(told, (list(lengths), list(self.rows)), group=group)
        owner: dict[int, int] = {}
        for rank, (_, kept) in enumerate(told):
            owner |= {key: owner.get(key, rank) for key in kept}
        sent = [
            [self.rows[key] for key in wanted if owner[key] == group.rank()] for wanted, _ in told
        ]
        coming = [[key for key in lengths if owner[key] == rank] for rank in range(size)]
        shape = self.layers, self.moe.num_experts_per_tok
        empty = torch.empty(0, *shape, dtype=self._dtype)
        tokens = torch.cat([empty, *(row for rows in sent for row in rows)])
        received = empty.new_empty(sum(lengths.values()), *shape).to(self.device_type)
        dist.all_to_all_single(
            received.view(torch.uint8),
            tokens.to(self.device_type).view(torch.uint8),
            [sum(lengths[key] for key in keys) for keys in coming],
            [sum(len(row) for row in rows) for rows in sent],
            group=group,
        )
        order = [key for keys in coming for key in keys]
        parts = torch.split(received.cpu(), [lengths[key] for key in order])
        return dict(zip(order, parts, strict=True))
