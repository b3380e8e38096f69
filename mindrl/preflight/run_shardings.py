"""Plan of a run, and the shardings of its models, computed on demand."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import numpy as np

from mindrl.config.backends import ROLLOUT_BACKEND
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.config.teacher import Candidates
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.memory.plan import RankBytes
from mindrl.memory.schedule import Region
from mindrl.models.adapters import AdapterShardings, LowRank
from mindrl.models.decoder import DType
from mindrl.models.description import ModelDescription
from mindrl.models.sharding import Sharding, elsewhere
from mindrl.platform.garbage import no_collection
from mindrl.platform.host_memory import rounded
from mindrl.preflight.role_heads import role_head
from mindrl.preflight.shipped import draft_description, families_of, planned_description, sizes_path
from mindrl.resharding.gathering import Broadcast
from mindrl.resharding.plan import ReshardPlan, Topology, plan_reshard, slices_for_bucket
from mindrl.resharding.rank_map import choose_orders
from mindrl.resharding.slices import Slices
from mindrl.rollout.planning import CacheSizes, cache_sizes, layers_of_ranks, rollout_sharding
from mindrl.training.planning import EnginePlanning, Storage, planning_of
from mindrl.training.trained_bytes import TrainedBytes


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Plan for driver and workers; small enough to be sent to each of them."""

    config: RunConfig
    models: Mapping[Role, ModelDescription]
    """Models of the run's roles."""
    layouts: Mapping[Role, TrainLayout]
    """Layouts of the same roles, including the order of the ranks."""
    rollout: RolloutLayout
    draft: ModelDescription | None = None
    """The model that drafts for the engine, if one does."""

    def candidates(self, role: Role) -> Candidates | None:
        """Return the tokens that a teacher returns at each position, if the loss needs any."""
        section = self.config.teacher_config
        if role != "teacher" or section is None or not section.candidates:
            return None
        return Candidates(number=section.candidates, below=self.models["actor"].vocab_size)

    def likely_tokens(self, role: Role, *, learns: bool) -> int:
        """Return the number of a teacher's tokens that a pass reads or learns at each position."""
        section = self.config.teacher_config
        takes_part = role == "teacher" or (role == "actor" and learns)
        return section.candidates if section is not None and takes_part else 0

    @property
    def replica(self) -> RolloutLayout:
        """Layout of one rollout replica, which is a separate world if rollout is separate."""
        return replace(self.rollout, dp=1)

    def link_nodes(self, replica: int) -> tuple[int, ...]:
        """Return the node of each training rank, then of a replica's, numbered as they appear."""
        placement, ranks = self.config.placement, self.replica.world_size
        training = placement.nodes(0, self.config.world_size)
        # A server is assumed to be on a separate node.
        elsewhere_on = (max(training) + 1,) * ranks
        known = self.config.starts_engines
        nodes = (*training, *(placement.nodes(1 + replica, ranks) if known else elsewhere_on))
        numbers = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
        return tuple(numbers[node] for node in nodes)

    @property
    def topology(self) -> Topology:
        """Which ranks share a machine."""
        per_node = self.config.rl_config.actor_resource.npus_per_node
        return Topology(ranks_per_node=min(per_node, self.config.world_size))

    def topology_of(self, role: Role) -> Topology:
        """Return which ranks of a role share a machine, counted from its first."""
        ranks, whole = self.layouts[role].ranks, self.topology
        if len(ranks) == self.config.world_size:
            return whole
        nodes = tuple(rank // whole.ranks_per_node for rank in ranks)
        return Topology(ranks_per_node=whole.ranks_per_node, placed=nodes)

    @property
    def bucket_bytes(self) -> int:
        """Maximum bytes of messages that a rank has in flight."""
        return self.config.generate_config.reshard_bucket_mib << 20

    @property
    def train_dtype(self) -> DType:
        """Data type of computation and files; an engine may keep its weights in float32."""
        return "bfloat16" if self.config.megatron_training.bf16 else "float32"

    def planning(self, role: Role) -> EnginePlanning:
        """Return the planning functions of the engine that trains a role."""
        return planning_of(self.config.training_backend(role))

    @property
    def first_rollout_rank(self) -> int:
        """First rank of the rollout; separate rollout ranks follow the training ranks."""
        return self.config.world_size if self.config.is_apart else 0

    def coordinates(self, rank: int) -> dict[str, dict[str, int]]:
        """Return the coordinates of a rank in each of its roles, by role and dimension.

        `rollout` is the engine's copy of the actor; `ep` and `etp` are those of the experts.
        """
        found: dict[str, dict[str, int]] = {}
        for role, layout in self.layouts.items():
            if rank in layout.ranks:
                own = rank - layout.first_rank
                places = dict(layout.dense_order.coordinates[own])
                if self.models[role].moe:
                    experts = layout.experts_order.coordinates[own]
                    places |= {name: experts.get(name, 0) for name in ("ep", "etp")}
                found[role] = places
        at = rank - self.first_rollout_rank
        if self.config.rolls_out and 0 <= at < self.rollout.world_size:
            found["rollout"] = dict(self.rollout.order.coordinates[at])
            if self.models["actor"].moe:
                found["rollout"]["ep"] = self.rollout.expert_rank_of(at)
        return found

    @property
    def low_rank(self) -> LowRank | None:
        """The adapters that are trained instead of the actor's weights; None without adapters."""
        return LowRank.of(self.config.actor_config.lora)

    @property
    def cache_sizes(self) -> CacheSizes:
        """Bytes of sequences in the KV cache of a rank."""
        generate = self.config.generate_config
        tokens, dtype = generate.kv_block_tokens, generate.dtype
        found = cache_sizes(self.models["actor"], self.rollout, dtype, tokens)
        return found.with_draft(self.draft, self.rollout, dtype) if self.draft else found

    @property
    def rollout_layers(self) -> tuple[int, ...]:
        """Layers on each rank of a rollout replica; empty if all are equal."""
        layers = layers_of_ranks(self.models["actor"], self.replica)
        return layers if len({*layers}) > 1 else ()


def unordered_plan(config: RunConfig, models: Mapping[Role, ModelDescription]) -> RunPlan:
    """Plan a run, whose layouts have no findings, in the engine's own order of the ranks."""
    actor = config.actor_config
    if (actor.freeze_vision_tower or actor.lora.r) and "actor" in models:
        models = {**models, "actor": models["actor"].with_frozen_tower()}
    return RunPlan(
        config=config,
        models=models,
        layouts={role: config.layout(role) for role in config.roles},
        rollout=config.rollout_layout,
        draft=draft_description(config),
    )


@dataclass(frozen=True, kw_only=True)
class RunShardings:
    """Shardings of a run's models; planning the reshard takes seconds for large models."""

    plan: RunPlan
    unordered: "RunShardings | None" = None
    """The same with the ranks in the engine's own order, if this one was derived from it: rollout
    and slices are the same."""
    _links: dict[tuple[int, ...], ReshardPlan] = field(default_factory=dict, init=False)

    @cached_property
    def training(self) -> dict[Role, Sharding]:
        """Sharding of each role's model, by ranks from the role's first; equal ones are shared."""
        plan, found = self.plan, dict[Role, Sharding]()
        of_engine = cache(lambda planning, *asked: planning.sharding(*asked))
        for role, layout in plan.layouts.items():
            planning, learning = plan.planning(role), plan.config.learning(role)
            storage = Storage(
                dtype=planning.weights_dtype(plan.train_dtype),
                head=role_head(plan.config, role),
                grouped_experts=learning.moe_grouped_gemm,
                fsdp_size=learning.archon.fsdp_size,
            )
            found[role] = of_engine(planning, plan.models[role], layout, storage)
        return found

    @cached_property
    def adapters(self) -> AdapterShardings | None:
        """Shardings of the actor's adapters; None without adapters."""
        plan, actor = self.plan, self.plan.config.actor_config
        if plan.low_rank is None:
            return None
        return plan.planning("actor").adapters(
            *(plan.models["actor"], plan.layouts["actor"], plan.low_rank),
            base=self.training["actor"],
            fsdp_size=actor.archon.fsdp_size,
        )

    @cached_property
    def unchanging(self) -> dict[Region, RankBytes]:
        """Bytes that no update changes: the weights under adapters."""
        if self.adapters is None:
            return {}
        held = np.array(self.training["actor"].held_bytes())
        return {Region.ACTOR_WEIGHTS: self.of_all_ranks("actor", held)}

    @property
    def storages(self) -> RankBytes:
        """Number of tensors of each rank's models."""
        found: RankBytes = np.zeros(self.plan.config.world_size, dtype=np.int64)
        for role, side in self.training.items():
            found += self.of_all_ranks(role, np.array(side.storages()))
        for each in filter(None, self.adapters or ()):
            found += self.of_all_ranks("actor", np.array(each.storages()))
        return found

    @property
    def waiting(self) -> RankBytes | None:
        """Host bytes of all teachers but the one on the device; None with one or none."""
        teacher = self.plan.config.teacher_config
        if teacher is None or len(teacher.folders) < 2:
            return None
        side = self.training["teacher"]
        each = np.array(side.held_bytes()) + np.array(side.storages()) * rounded(1)
        return self.of_all_ranks("teacher", each * (len(teacher.folders) - 1))

    def trained_bytes(self, role: Role, *, distributed_optimizer: bool) -> tuple[TrainedBytes, ...]:
        """Return the bytes allocated by each rank of a trained role, plus frozen weights."""
        side, layout = self.training[role], self.plan.layouts[role]
        of_engine = partial(
            self.plan.planning(role).trained_bytes,
            distributed_optimizer=distributed_optimizer,
            bucket_size=self.plan.config.megatron_training.bucket_size(layout.dp),
        )
        if role != "actor" or self.adapters is None:
            return of_engine(side, layout)
        more_bytes = self.adapters.untrained_bytes(side)
        pairs = zip(of_engine(self.adapters.trained, layout), more_bytes, strict=True)
        return tuple(replace(each, weights=each.weights + more) for each, more in pairs)

    @cached_property
    def rollout(self) -> Sharding:
        """Sharding of the actor's weights for rollout; if separate, over the ranks of a link."""
        if self.unordered is not None:
            return self.unordered.rollout
        int8 = self.plan.config.generate_config.quantization == "int8"
        return self._in_engine(self.plan.models["actor"], int8=int8)

    @property
    def rollout_bytes(self) -> RankBytes:
        """Bytes of the weights in the engine on the same ranks, with those of a draft model."""
        held = np.array(self.rollout.held_bytes())
        draft = self.plan.draft
        return held if draft is None else held + np.array(self._in_engine(draft).held_bytes())

    def _in_engine(self, model: ModelDescription, *, int8: bool = False) -> Sharding:
        plan, dtype = self.plan, self.plan.config.generate_config.dtype
        layout = plan.replica if plan.config.is_apart else plan.rollout
        of_replica = rollout_sharding(model, layout, dtype=dtype, int8=int8)
        if not plan.config.is_apart:
            return of_replica
        first, world_size = plan.config.world_size, self.link_size
        return elsewhere(of_replica, first_rank=first, world_size=world_size)

    @property
    def link_size(self) -> int:
        """Number of ranks of a link between the training side and a rollout replica."""
        return self.plan.config.world_size + self.plan.replica.world_size

    @cached_property
    def source(self) -> Sharding:
        """Sharding of the actor's weights in training, over the same ranks as `rollout`."""
        config = self.plan.config
        return self.actor_over(self.link_size if config.is_apart else config.world_size)

    def actor_over(self, ranks: int) -> Sharding:
        """Return the sharding of the actor's weights over `ranks`, training ranks first."""
        training, first = self.training["actor"], self.plan.layouts["actor"].first_rank
        if len(training.held_by) == ranks:
            return training
        return elsewhere(training, first_rank=first, world_size=ranks)

    def of_all_ranks(self, role: Role, of_its_own: RankBytes) -> RankBytes:
        """Return numbers of a role's ranks for all training ranks; 0 for ranks without the role."""
        found = np.zeros((self.plan.config.world_size, *of_its_own.shape[1:]), dtype=np.int64)
        found[self.plan.layouts[role].ranks] = of_its_own
        return found

    @cached_property
    def slices(self) -> Slices:
        """Slices to transfer from the actor's layout to the rollout's."""
        if self.unordered is not None:
            return self.unordered.slices
        with no_collection():
            return slices_for_bucket(self.source, self.rollout, self.plan.bucket_bytes)

    @cached_property
    def reshard(self) -> ReshardPlan:
        """Plan of the transfer; with separate rollout, to its first replica."""
        return self.link(0) if self.plan.config.is_apart else self._planned(self.plan.topology)

    def link(self, replica: int) -> ReshardPlan:
        """Return the plan of the transfer to a replica on its own devices."""
        nodes = self.plan.link_nodes(replica)
        if nodes not in self._links:
            self._links[nodes] = self._planned(self._placed(nodes))
        return self._links[nodes]

    @property
    def topology(self) -> Topology:
        """Which of the ranks of `reshard` share a machine."""
        return self.topology_of_link(0) if self.plan.config.is_apart else self.plan.topology

    def topology_of_link(self, replica: int) -> Topology:
        """Return which training ranks and ranks of a replica share a machine."""
        return self._placed(self.plan.link_nodes(replica))

    def _placed(self, nodes: tuple[int, ...]) -> Topology:
        per_node = self.plan.config.rl_config.actor_resource.npus_per_node
        return Topology(ranks_per_node=per_node, placed=nodes)

    def _planned(self, topology: Topology) -> ReshardPlan:
        with no_collection():
            return plan_reshard(
                self.source,
                self.rollout,
                topology,
                bucket_bytes=self.plan.bucket_bytes,
                slices=self.slices,
            )

    @cached_property
    def broadcast(self) -> Broadcast | None:
        """Transfer to servers that load whole tensors; None if no server does."""
        plan, config = self.plan, self.plan.config
        if not config.is_apart or config.rollout_backend == ROLLOUT_BACKEND:
            return None
        source, dtype = self.actor_over(config.world_size), config.generate_config.dtype
        return Broadcast.of(source, plan.models["actor"], dtype, plan.topology, plan.bucket_bytes)

    @cached_property
    def staging(self) -> RankBytes:
        """Maximum bytes that each rank has in flight during a transfer, over all replicas."""
        if not self.plan.config.is_apart:
            return self.reshard.peak_staging
        if self.broadcast is not None:
            return self.broadcast.staging
        ways = {self.plan.link_nodes(each): each for each in range(self.plan.rollout.replicas)}
        most: RankBytes = np.max([self.link(each).peak_staging for each in ways.values()], axis=0)
        return most

    @property
    def most_staging(self) -> RankBytes:
        """Upper bound of `staging`; needs no plan of a transfer of slices."""
        bound = np.full(len(self.rollout.held_by), self.plan.bucket_bytes, dtype=np.int64)
        return bound if self.broadcast is None else self.broadcast.staging

    @cached_property
    def ordered(self) -> "RunShardings":
        """The same with the ranks in the order of `generate_config.rank_map`.

        A role with the actor's sizes and engine has the same order, to share process groups.
        """
        plan = self.plan
        config = plan.config
        apart = config.is_apart or config.is_spread
        shared = config.learns and config.rolls_out and not apart
        if config.generate_config.rank_map == "default" or not shared:
            # No order lets a rank keep weights that only other ranks need.
            return self
        own = plan.layouts["actor"]
        with no_collection():
            source, target = self.training["actor"], self.rollout
            orders, topology = plan.planning("actor").legal_orders, plan.topology
            best = choose_orders(own, source, target, self.slices, topology, orders).layout
        if best == own:
            return self
        engine = plan.config.training_backend
        layouts = {
            role: best if each == own and engine(role) == engine("actor") else each
            for role, each in plan.layouts.items()
        }
        return RunShardings(plan=replace(plan, layouts=layouts), unordered=self)


def unordered_shardings(config: RunConfig) -> RunShardings:
    """Read the model sizes of a run without findings that is only planned.

    Raises:
        ModelError: A model folder contains no known model.
    """
    described = cache(planned_description)
    models = {
        role: described(sizes_path(config, role), families_of(config, role))
        for role in config.roles
    }
    return RunShardings(plan=unordered_plan(config, models))
