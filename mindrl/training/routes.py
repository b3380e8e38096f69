"""Routes of a mixture of experts: kept from one pass, replayed in others.

A route is the experts of one token in one layer. Passes that round differently choose different
experts for a token now and then, and its log-prob jumps. A replayed route fixes the choice alone:
the weights of the chosen experts are computed as always, so the router still learns (arXiv
2510.11370, arXiv 2512.01374).

If an engine sampled a sequence in several requests, each request has a part of its routes, on any
rank. Each token keeps the routes of the weights that sampled the token after it.

Routes are stored as expert + 1; 0 lets a token choose. Shapes: B sequences, T positions, S tokens
of a pack that this rank's routers read, L layers with experts of this rank, K experts of a token.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from mindrl.batch.route_keys import RoutePart
from mindrl.batch.sequence_trees import slots_of
from mindrl.models.description import MoeDescription
from mindrl.models.expert_routes import number_bytes
from mindrl.training.engine import Batch
from mindrl.training.pack_routes import PackRoutes
from mindrl.training.packs import Pack


class RouteGroups(NamedTuple):
    """Ranks that together have the routes of the same layers."""

    tokens: dist.ProcessGroup | None
    """Ranks that share the tokens of each sequence; None for a single rank."""
    replicas: dist.ProcessGroup
    """Ranks that read other sequences, at the same place in their replicas."""
    cut: tuple[int, int] = (1, 0)
    """Tensor-parallel ranks that share the tokens of hidden states, and the number of this one."""


class KeptPart(NamedTuple):
    """The rank with the routes of a part, and the tokens of the part."""

    rank: int
    first: int
    length: int
    before: int | None


@dataclass(kw_only=True)
class RouteStore(ABC):
    """Routes of sequences, on the host of one or more ranks, by key."""

    moe: MoeDescription
    layers: tuple[int, ...]
    """This rank's layers with experts, by their numbers among all of them."""
    groups: RouteGroups
    device_type: str
    shares_prompts: bool
    rows: dict[int, RoutePart] = field(default_factory=dict)
    """Routes that this rank has, of sequences without their padding."""
    missing: list[bool] = field(default_factory=list)
    """For each sequence of the last update, whether routes are missing on all ranks."""

    @abstractmethod
    def before_read(self, sequences: Batch) -> Batch:
        """Prepare a pass that computes old log-probs. A collective over the model's ranks."""

    @abstractmethod
    def after_read(self, packs: Sequence[Pack[Any]]) -> None:
        """Complete that pass, of these packs. A collective over the model's ranks."""

    @abstractmethod
    def keep(self, routes: Mapping[int, RoutePart]) -> None:
        """Keep the routes of sampled sequences: see `KeptRoutes`."""

    @abstractmethod
    def retain(self, keys: Collection[int]) -> None:
        """Forget the routes of other sequences: see `KeptRoutes`."""

    @abstractmethod
    def kept(self) -> dict[int, RoutePart]:
        """Return the routes that a checkpoint needs: see `KeptRoutes`."""

    @abstractmethod
    def _sources(self) -> dist.ProcessGroup | None:
        """Return the ranks that may have routes for this one; None for all ranks of the model."""

    @abstractmethod
    def _part(self, row_TLK: Tensor, layers: Sequence[int]) -> Tensor:
        """Return the routes of a rank's layers."""

    def with_routes(self, sequences: Batch) -> Batch:
        """Return sequences with their routes, from any rank. A collective over the ranks."""
        assert sequences.route_keys_B is not None, "the trainer names the sequences of a replay"
        keys = sequences.route_keys_B.tolist()
        shape = (*sequences.tokens_BT.shape, len(self.layers), self.moe.num_experts_per_tok)
        routes_BTLK = torch.zeros(shape, dtype=self._dtype)
        spans, found = self._fetched(keys)
        self.missing = [None in _parts_of(key, spans) for key in keys]
        for row, key in enumerate(keys):
            # The last token of a part has its routes in the part after it.
            for part in reversed(_parts_of(key, spans)):
                if part is not None:
                    first, routes_TLK = spans[part].first, found[part]
                    routes_BTLK[row, first : first + len(routes_TLK)] = routes_TLK
        return replace(sequences, routes_BTLK=routes_BTLK)

    def of_pack(self, pack: Pack[Any]) -> PackRoutes | None:
        """Return the routes that routers read and write for a pack; None if they do neither."""
        if pack.source.routes_BTLK is None:
            return None if pack.source.route_keys_B is None else PackRoutes()
        place_S = self._own_places(pack)
        routes_SLK = pack.source.routes_BTLK.flatten(0, 1)[place_S.clamp(min=0)]
        routes_SLK[place_S < 0] = 0
        return PackRoutes(given_LSK=routes_SLK.transpose(0, 1).contiguous().to(self.device_type))

    def metrics(self, packs: Sequence[Pack[Any]]) -> dict[str, float]:
        """Return the shares of differing and of missing routes in an update of these packs.

        A collective over the model's ranks.
        """
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

    def _spans(self, *more: Any) -> tuple[dict[int, KeptPart], list[Any]]:
        """Return the parts that the ranks have, by key, and each rank's `more`. A collective."""
        group, spans = self._sources(), dict[int, KeptPart]()
        told: list[Any] = [None] * dist.get_world_size(group)
        own = {
            key: (each.first, len(each.routes_TLK), each.before) for key, each in self.rows.items()
        }
        dist.all_gather_object(told, (own, *more), group=group)
        for rank, (kept, *_) in enumerate(told):
            spans = {key: KeptPart(rank, *each) for key, each in kept.items()} | spans
        return spans, [each[1:] for each in told]

    def _fetched(self, keys: Sequence[int]) -> tuple[dict[int, KeptPart], dict[int, Tensor]]:
        """Return the parts that the ranks have, and the routes of these sequences' parts."""
        group = self._sources()
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        spans, told = self._spans(keys, self.layers)

        def from_rank(place: int, wanted: Sequence[int]) -> list[int]:
            found = dict.fromkeys(part for key in wanted for part in _parts_of(key, spans))
            return [part for part in found if part is not None and spans[part].rank == place]

        parts = [
            [self._part(self.rows[part].routes_TLK, layers) for part in from_rank(rank, wanted)]
            for wanted, layers in told
        ]
        coming = [from_rank(place, keys) for place in range(size)]
        order = [key for of_rank in coming for key in of_rank]
        lengths = {key: spans[key].length for key in order}
        width = len(self.layers) * self.moe.num_experts_per_tok
        flat = (part.flatten() for to in parts for part in to)
        sent = torch.cat([torch.empty(0, dtype=self._dtype), *flat])
        received = torch.empty(sum(lengths.values()) * width, dtype=self._dtype)
        received = received.to(self.device_type)
        bytes_each = sent.element_size()
        dist.all_to_all_single(
            received.view(torch.uint8),
            sent.to(self.device_type).view(torch.uint8),
            [sum(lengths[key] for key in of_rank) * width * bytes_each for of_rank in coming],
            [sum(part.numel() for part in to) * bytes_each for to in parts],
            group=group,
        )
        rows = torch.split(received.cpu(), [lengths[key] * width for key in order])
        shape = len(self.layers), self.moe.num_experts_per_tok
        found = {key: row.view(lengths[key], *shape) for key, row in zip(order, rows, strict=True)}
        return spans, found


def _parts_of(key: int, spans: Mapping[int, KeptPart]) -> list[int | None]:
    """Return the keys of a sequence's parts, newest first; None for a part on no rank."""
    found: list[int | None] = []
    at: int | None = key
    while at is not None:
        if at not in spans:
            return [*found, None]
        found.append(at)
        at = spans[at].before
    return found


class RecordedRoutes(RouteStore):
    """Routes of the pass that computes old log-probs: R2. A rank has its own layers."""

    def before_read(self, sequences: Batch) -> Batch:
        """Forget the routes of the previous pass."""
        self.rows.clear()
        return sequences

    def after_read(self, packs: Sequence[Pack[Any]]) -> None:
        """Keep the routers' choices. A collective over ranks that share tokens."""
        for pack in packs:
            sequences, routes_BTLK = pack.source, self._whole(pack)
            for slot in (slots := slots_of(sequences, shares_prompts=self.shares_prompts)):
                if slot.parent is not None:
                    # Complete: a slot comes after its parent.
                    lender = slots[slot.parent].row
                    routes_BTLK[slot.row, : slot.first] = routes_BTLK[lender, : slot.first]
            keys, lengths = sequences.route_keys_B.tolist(), sequences.lengths_B.tolist()
            for key, length, routes_TLK in zip(keys, lengths, routes_BTLK, strict=True):
                self.rows[key] = RoutePart(routes_TLK=routes_TLK[:length].clone())

    def keep(self, routes: Mapping[int, RoutePart]) -> None:
        """Do not keep routes: no engine records them."""

    def retain(self, keys: Collection[int]) -> None:
        """Do nothing: the next pass replaces all."""

    def kept(self) -> dict[int, RoutePart]:
        """Return nothing: each step has a pass of its own."""
        return {}

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
    """Routes of the rollout engine: R3. A rank has its engine's sequences, all layers."""

    def before_read(self, sequences: Batch) -> Batch:
        """Replay the engine's routes in the pass."""
        return self.with_routes(sequences)

    def after_read(self, packs: Sequence[Pack[Any]]) -> None:
        """Do not keep routes: the engine has chosen."""

    def keep(self, routes: Mapping[int, RoutePart]) -> None:
        """Keep routes of new sequences."""
        self.rows |= routes

    def retain(self, keys: Collection[int]) -> None:
        """Keep only the parts of these sequences. A collective over the model's ranks."""
        spans, _ = self._spans()
        needed = {part for key in keys for part in _parts_of(key, spans)}
        self.rows = {key: part for key, part in self.rows.items() if key in needed}

    def kept(self) -> dict[int, RoutePart]:
        """Return all routes of this rank."""
        return dict(self.rows)

    def _sources(self) -> dist.ProcessGroup | None:
        return None

    def _part(self, row_TLK: Tensor, layers: Sequence[int]) -> Tensor:
        return row_TLK[:, list(layers)]
