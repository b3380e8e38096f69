"""Routes of a mixture of experts: kept from one pass, replayed in others.

A route is the experts of one token in one layer. Passes that round differently choose different
experts for a token now and then, and its log-prob jumps. A replayed route fixes the choice alone:
the weights of the chosen experts are computed as always, so the router still learns (arXiv
2510.11370, arXiv 2512.01374).

Routes are stored as expert + 1; 0 lets a token choose. Shapes: B sequences, T positions, S tokens
of a pack that this rank's routers read, L layers with experts of this rank, K experts of a token.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.models.description import MoeDescription
from mindrl.models.expert_routes import number_bytes
from mindrl.training.engine import Batch
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
class RouteStore(ABC):
    """Routes of sequences that some rank has, on the host, under their keys."""

    moe: MoeDescription
    layers: tuple[int, ...]
    """This rank's layers with experts, by their numbers among all of them."""
    groups: RouteGroups
    device_type: str
    shares_prompts: bool
    rows: dict[int, Tensor] = field(default_factory=dict)
    """Routes that this rank has, [T, L, K] of each sequence without its padding."""
    missing: list[bool] = field(default_factory=list)
    """Whether no rank has the routes of each sequence of the last update."""

    @abstractmethod
    def before_read(self, sequences: Batch) -> Batch:
        """Prepare a pass that computes old log-probs. A collective over the model's ranks."""

    @abstractmethod
    def after_read(self, packs: Sequence[Pack[Any]]) -> None:
        """Complete that pass, of these packs. A collective over the model's ranks."""

    @abstractmethod
    def keep(self, routes: Mapping[int, Tensor]) -> None:
        """Keep the routes of sampled sequences, of all layers with experts."""

    @abstractmethod
    def _sources(self) -> dist.ProcessGroup | None:
        """Return the ranks that may have routes for this one; None for all ranks of the model."""

    @abstractmethod
    def _part(self, row_TLK: Tensor, layers: Sequence[int]) -> Tensor:
        """Return the routes of a rank's layers."""

    def with_routes(self, sequences: Batch) -> Batch:
        """Return sequences with their routes, wherever they are. A collective over the ranks."""
        assert sequences.route_keys_B is not None, "the trainer names the sequences of a replay"
        keys, lengths = sequences.route_keys_B.tolist(), sequences.lengths_B.tolist()
        shape = (*sequences.tokens_BT.shape, len(self.layers), self.moe.num_experts_per_tok)
        routes_BTLK = torch.zeros(shape, dtype=self._dtype)
        found = self._fetched(dict(zip(keys, lengths, strict=True)))
        self.missing = [key not in found for key in keys]
        for row, key in enumerate(keys):
            if key in found:
                routes_BTLK[row, : len(found[key])] = found[key]
        return replace(sequences, routes_BTLK=routes_BTLK)

    def of_pack(self, pack: Pack[Any]) -> PackRoutes | None:
        """Return what the routers read and write of a pack; None if they choose unobserved."""
        if pack.source.routes_BTLK is None:
            return None if pack.source.route_keys_B is None else PackRoutes()
        place_S = self._own_places(pack)
        routes_SLK = pack.source.routes_BTLK.flatten(0, 1)[place_S.clamp(min=0)]
        routes_SLK[place_S < 0] = 0
        return PackRoutes(given_LSK=routes_SLK.transpose(0, 1).contiguous().to(self.device_type))

    def metrics(self, packs: Sequence[Pack[Any]]) -> dict[str, float]:
        """Return what an update of these packs replayed. A collective over the model's ranks."""
        of_packs = (pack.routes for pack in packs if pack.routes and not pack.is_idle)
        counts = [count for routes in of_packs for count in routes.differing]
        missing = torch.tensor([sum(self.missing), len(self.missing)])
        replayed = torch.stack(counts).sum(0) if counts else torch.zeros_like(missing)
        total_4 = torch.cat([replayed.cpu(), missing]).to(self.device_type)
        dist.all_reduce(total_4)
        differing, given, missed, sequences = total_4.tolist()
        return {
            "differing_routes": differing / given if given else 0.0,
            "without_routes": missed / sequences,
        }

    @property
    def _dtype(self) -> torch.dtype:
        return torch.uint8 if number_bytes(self.moe) == 1 else torch.int16

    def _own_places(self, pack: Pack[Any]) -> Tensor:
        """Return the index in the flattened [B, T] of the tokens that this rank's routers read."""
        ranks, rank = self.groups.cut
        return pack.place_S.view(ranks, -1)[rank]

    def _fetched(self, lengths: Mapping[int, int]) -> dict[int, Tensor]:
        """Return the routes of these sequences that some rank has, by key."""
        group = self._sources()
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        told: list[Any] = [None] * size
        dist.all_gather_object(told, ([*lengths], [*self.rows], self.layers), group=group)
        owner: dict[int, int] = {}
        for place, (_, kept, _) in enumerate(told):
            owner |= {key: owner.get(key, place) for key in kept}
        parts = [
            [self._part(self.rows[key], layers) for key in wanted if owner.get(key) == rank]
            for wanted, _, layers in told
        ]
        coming = [[key for key in lengths if owner.get(key) == place] for place in range(size)]
        order = [key for keys in coming for key in keys]
        width = len(self.layers) * self.moe.num_experts_per_tok
        flat = (part.flatten() for to in parts for part in to)
        sent = torch.cat([torch.empty(0, dtype=self._dtype), *flat])
        received = torch.empty(sum(lengths[key] for key in order) * width, dtype=self._dtype)
        received = received.to(self.device_type)
        bytes_each = sent.element_size()
        dist.all_to_all_single(
            received.view(torch.uint8),
            sent.to(self.device_type).view(torch.uint8),
            [sum(lengths[key] for key in keys) * width * bytes_each for keys in coming],
            [sum(part.numel() for part in to) * bytes_each for to in parts],
            group=group,
        )
        rows = torch.split(received.cpu(), [lengths[key] * width for key in order])
        shape = len(self.layers), self.moe.num_experts_per_tok
        return {key: row.view(lengths[key], *shape) for key, row in zip(order, rows, strict=True)}


class RecordedRoutes(RouteStore):
    """Routes of the pass that computes old log-probs: R2. A rank has those of its own layers."""

    def before_read(self, sequences: Batch) -> Batch:
        """Forget the routes of the pass before."""
        self.rows.clear()
        return sequences

    def after_read(self, packs: Sequence[Pack[Any]]) -> None:
        """Keep what the routers chose. A collective over ranks that share tokens."""
        for pack in packs:
            sequences, routes_BTLK = pack.source, self._whole(pack)
            for slot in (slots := slots_of(sequences, shares_prompts=self.shares_prompts)):
                if slot.prompt is not None:
                    lender = slots[slot.prompt].row
                    routes_BTLK[slot.row, : slot.first] = routes_BTLK[lender, : slot.first]
            keys, lengths = sequences.route_keys_B.tolist(), sequences.lengths_B.tolist()
            for key, length, routes_TLK in zip(keys, lengths, routes_BTLK, strict=True):
                self.rows[key] = routes_TLK[:length].clone()

    def keep(self, routes: Mapping[int, Tensor]) -> None:
        """Do not keep routes: no engine records them."""

    def _sources(self) -> dist.ProcessGroup | None:
        return self.groups.replicas

    def _part(self, row_TLK: Tensor, layers: Sequence[int]) -> Tensor:  # noqa: ARG002
        return row_TLK

    def _whole(self, pack: Pack[Any]) -> Tensor:
        """Return the routes of a pack's sequences, [B, T, L, K], from all ranks with its tokens."""
        place_S, taken = self._own_places(pack), pack.routes.taken if pack.routes else {}
        layers, K = range(len(self.layers)), self.moe.num_experts_per_tok
        assert len(taken) == len(layers), f"{len(taken)} routers of {len(layers)} chose"
        shape = pack.source.tokens_BT.shape
        flat = torch.zeros(shape.numel() + 1, len(layers), K, dtype=self._dtype)
        if layers:
            chosen = torch.stack([taken[layer] for layer in layers], 1) + 1
            parts = [(place_S, chosen.to(self._dtype))]
            if self.groups.tokens is not None:
                places, routes = (self._gathered(each) for each in parts[0])
                parts = [*zip(places, routes, strict=True)]
            for places_S, routes_SLK in parts:
                # Padding, -1, falls into the row that is dropped.
                flat[places_S] = routes_SLK.cpu()
        return flat[:-1].view(*shape, len(layers), K)

    def _gathered(self, own: Tensor) -> list[Tensor]:
        own = own.to(self.device_type).contiguous()
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(self.groups.tokens))]
        dist.all_gather(parts, own, group=self.groups.tokens)
        return [part.cpu() for part in parts]


@dataclass(kw_only=True)
class SampledRoutes(RouteStore):
    """Routes of the rollout engine: R3. A rank has those of its engine's sequences, all layers."""

    is_used: bool = False
    """Whether an update has replayed what is kept."""

    def before_read(self, sequences: Batch) -> Batch:
        """Replay the engine's routes in the pass."""
        return self.with_routes(sequences)

    def after_read(self, packs: Sequence[Pack[Any]]) -> None:
        """Do not keep routes: the engine has chosen."""

    def keep(self, routes: Mapping[int, Tensor]) -> None:
        """Keep routes of new sequences; forget those from before the last update."""
        if self.is_used:
            self.rows.clear()
        self.is_used = False
        self.rows |= routes

    def metrics(self, packs: Sequence[Pack[Any]]) -> dict[str, float]:
        """Return what an update of these packs replayed. A collective over the model's ranks."""
        self.is_used = True
        return super().metrics(packs)

    def _sources(self) -> dist.ProcessGroup | None:
        return None

    def _part(self, row_TLK: Tensor, layers: Sequence[int]) -> Tensor:
        return row_TLK[:, list(layers)]
