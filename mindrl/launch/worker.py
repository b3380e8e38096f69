"""Build a worker from the plan of a run. Import only in a prepared worker process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import torch.distributed as dist

from mindrl.algorithms.objectives import objective_of
from mindrl.checkpoint.carried_files import RunTokenizer
from mindrl.config.backends import ROLLOUT_BACKEND, TrainingBackend
from mindrl.config.layout_keys import Role
from mindrl.config.model_folders import further_models
from mindrl.config.run import RunConfig
from mindrl.launch.link_routes import link_routes
from mindrl.launch.role_worlds import inside, role_worlds, roles_here
from mindrl.launch.worker_device import make_device
from mindrl.layouts.layout import TrainLayout
from mindrl.memory.schedule import Region
from mindrl.models.description import ModelDescription
from mindrl.observability.progress import PROGRESS
from mindrl.platform.attention import attention_kernel
from mindrl.platform.determinism import make_deterministic
from mindrl.platform.device import Platform, configure_megatron
from mindrl.platform.device_engine import make_batch_invariant
from mindrl.platform.rendezvous import World
from mindrl.preflight.role_heads import draws_head, role_head
from mindrl.preflight.run_shardings import RunPlan, RunShardings
from mindrl.preflight.shared_prompts import shares_prompts
from mindrl.rollout.engine import RolloutEngine
from mindrl.rollout.planning import whole_tensors
from mindrl.training.engine import TrainingEngine
from mindrl.training.settings import EngineSettings
from mindrl.workers.actor_hybrid_worker import ActorHybridWorker
from mindrl.workers.broadcast_links import BroadcastEnd
from mindrl.workers.device import WorkerDevice
from mindrl.workers.sharding_manager import ShardingManager
from mindrl.workers.training_worker import RoleModel, RoleUpdates, TrainingWorker
from mindrl.workers.weight_export import WeightExport
from mindrl.workers.weight_links import LinkEnd, TrainingEnd, WeightLinks
from mindrl.workers.weight_sync import WeightRoute, WeightSync

if TYPE_CHECKING:
    from mindrl.training.megatron.parallel import ParallelGroups

_IN_TURN: tuple[Role, ...] = ("teacher", "reward", "critic", "ref", "actor")
"""Order of building the models: each is offloaded before the next, if movable."""


def build_worker(plan: RunPlan, platform: Platform) -> TrainingWorker:
    """Build all roles of this rank, and its engine unless rollout is separate.

    Raises as `build_actor_hybrid_worker`.
    """
    if plan.config.rolls_out and not plan.config.is_apart:
        return build_actor_hybrid_worker(plan, platform)
    return build_training_worker(plan, platform)


def build_actor_hybrid_worker(plan: RunPlan, platform: Platform) -> ActorHybridWorker:
    """Build all roles of this rank and its engine. A collective over the default process group.

    Raises:
        ModelError: A model folder contains no supported model.
        DeviceMemoryError: A role does not fit the device.
        HostMemoryError: The host has no room for the offloaded regions.
    """
    parts = _Parts.of(plan, platform)
    PROGRESS.enter("starts the engine")
    kv_cache_bytes = int(parts.device.plan.regions[Region.KV_CACHE][dist.get_rank()])
    rollout = rollout_engine(plan, platform, kv_cache_bytes)
    parts.device.place_rollout(rollout)
    sync = _weight_sync(parts.shardings, parts.engines.get("actor"), rollout, parts.device)
    return ActorHybridWorker(
        models=parts.models(),
        device=parts.device,
        sharding_manager=parts.sharding_manager(sync),
        inference_model=rollout,
    )


def build_training_worker(plan: RunPlan, platform: Platform) -> TrainingWorker:
    """Build all roles of this rank, without an engine. A collective, as above.

    Raises as `build_actor_hybrid_worker`.
    """
    parts = _Parts.of(plan, platform)
    return TrainingWorker(
        models=parts.models(),
        device=parts.device,
        sharding_manager=parts.sharding_manager(None),
        links=_weight_links(parts, platform) if plan.config.rolls_out else None,
    )


def _weight_links(parts: "_Parts", platform: Platform) -> WeightLinks:
    plan, shardings = parts.shardings.plan, parts.shardings
    end: TrainingEnd
    if plan.config.rollout_backend == ROLLOUT_BACKEND:
        end = LinkEnd(platform=platform, routes=link_routes(shardings), rank=dist.get_rank())
    else:
        assert shardings.broadcast is not None, "servers of another engine load whole tensors"
        end = BroadcastEnd(
            platform=platform,
            broadcast=shardings.broadcast,
            timeout_seconds=plan.config.generate_config.reshard_timeout_seconds,
            server_ranks=plan.replica.world_size,
            verify=plan.config.generate_config.verify_weights,
        )
    return WeightLinks(end, parts.engines.get("actor"))


def rollout_engine(plan: RunPlan, platform: Platform, kv_cache_bytes: int) -> RolloutEngine:
    """Start the engine of this rank, awake. A collective."""
    from mindrl.rollout.vllm.engine import EngineModel, VllmEngine  # noqa: PLC0415 - only if needed

    config, actor = plan.config, plan.models["actor"]
    return VllmEngine(
        EngineModel(
            folder=config.actor_config.load,
            whole=whole_tensors(actor),
            images=config.data_config.images if actor.reads_images else None,
            routes=actor.moe if config.actor_config.router_replay == "R3" else None,
        ),
        config.generate_config,
        platform,
        kv_cache_bytes=kv_cache_bytes,
        seed=config.megatron_training.seed,
        timeout_seconds=config.megatron_training.distributed_timeout_minutes * 60,
    )


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Parts of workers of either kind."""

    shardings: RunShardings
    device: WorkerDevice
    engines: dict[Role, TrainingEngine]
    """Engines of the roles on this rank."""
    others: dict[Role, tuple[TrainingEngine, ...]]
    """Further models of a role, which take turns with the first."""

    @classmethod
    def of(cls, plan: RunPlan, platform: Platform) -> "_Parts":
        """Build the models of this rank."""
        if plan.config.megatron_training.is_deterministic:
            make_deterministic()
        if plan.config.generate_config.batch_invariant:
            make_batch_invariant(platform)
        shardings = RunShardings(plan=plan)
        worlds = role_worlds(plan, platform)
        groups = _megatron_groups(plan, platform, worlds)
        device = make_device(shardings, platform.device_type)
        engines, others = _engines(shardings, platform, groups, device, worlds)
        if "actor" not in engines:
            device.place_nothing(Region.ACTOR_WEIGHTS)
        return cls(shardings=shardings, device=device, engines=engines, others=others)

    def models(self) -> dict[Role, RoleModel]:
        """Return the models of the roles on this rank."""
        config = self.shardings.plan.config
        models = {
            role: RoleModel(
                engine=self.engines[role],
                micro_batching=config.micro_batching(role, learns=False),
                others=self.others.get(role, ()),
                changes=role in config.changing_roles,
                updates=self._updates(role),
            )
            for role in config.roles
            if role in self.engines
        }
        if config.reference_is_base and (actor := models.get("actor")):
            models["ref"] = RoleModel(
                engine=actor.engine,
                micro_batching=config.micro_batching("ref", learns=False),
                is_base=True,
            )
        return models

    def sharding_manager(self, sync: WeightSync | None) -> ShardingManager:
        """Return the manager of the device; `sync` is None without an engine on it."""
        device = self.device
        return ShardingManager(
            device.ledger, sync, movable=device.plan.movable, device_type=device.device_type
        )

    def _updates(self, role: Role) -> RoleUpdates | None:
        plan = self.shardings.plan
        config, objective = plan.config, objective_of(plan.config)
        if role not in objective.losses:
            return None
        return RoleUpdates(
            micro_batching=config.micro_batching(role, learns=True),
            loss=objective.losses[role],
            keeps_logprobs=role == "actor" and objective.keeps_logprobs,
            export=WeightExport(
                self.engines[role],
                plan.train_dtype,
                plan.topology_of(role),
                bucket_bytes=plan.bucket_bytes,
                timeout_seconds=config.generate_config.reshard_timeout_seconds,
                name=f"export {role}",
                scores="token" if role == "critic" else "sequence",
                tokenizer=RunTokenizer.of(config.megatron_training),
            ),
        )


def _megatron_groups(
    plan: RunPlan, platform: Platform, worlds: Mapping[Role, World]
) -> "dict[Role, ParallelGroups]":
    """Create the groups of the roles here that Megatron trains, if any."""
    training, roles = plan.config.megatron_training, roles_here(plan).items()
    layouts = {
        role: layout for role, layout in roles if plan.config.training_backend(role) == "megatron"
    }
    if not layouts:
        return {}
    from mindrl.training.megatron.parallel import ParallelGroups  # noqa: PLC0415

    _configure_megatron(plan.config, platform, layouts)
    timeout_minutes = training.distributed_timeout_minutes
    # Roles with equal layouts share groups.
    made = cache(partial(ParallelGroups, seed=training.seed, timeout_minutes=timeout_minutes))
    groups = {}
    for role, layout in layouts.items():
        with inside(worlds, role):
            groups[role] = made(layout)
    return groups


def _configure_megatron(
    config: RunConfig, platform: Platform, layouts: Mapping[Role, TrainLayout]
) -> None:
    tp = max(layout.tp for layout in layouts.values())
    learning, training = (config.actor_config, config.critic_config), config.megatron_training
    # The actor's layout, if it is among them.
    layout = next(iter(layouts.values()))
    # mindrl implements context parallelism: the vendor's version must stay off.
    configure_megatron(
        platform,
        {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": layout.pp,
            "expert_model_parallel_size": layout.ep,
            "expert_tensor_parallel_size": layout.etp,
            "sequence_parallel": training.sequence_parallel and tp > 1,
            "moe_grouped_gemm": any(each.moe_grouped_gemm for each in learning if each),
            "use_fused_rmsnorm": training.use_fused_rmsnorm,
            "use_fused_swiglu": training.use_fused_swiglu,
            "use_fused_rotary_pos_emb": training.use_fused_rotary_pos_emb,
        },
    )


def _engines(
    shardings: RunShardings,
    platform: Platform,
    groups: "Mapping[Role, ParallelGroups]",
    device: WorkerDevice,
    worlds: Mapping[Role, World],
) -> tuple[dict[Role, TrainingEngine], dict[Role, tuple[TrainingEngine, ...]]]:
    """Build the models one after another, and offload each; return also those that take turns."""
    plan, config = shardings.plan, shardings.plan.config
    engines: dict[Role, TrainingEngine] = {}
    others: dict[Role, tuple[TrainingEngine, ...]] = {}
    is_invariant = config.generate_config.batch_invariant
    for role in (role for role in _IN_TURN if role in roles_here(plan)):
        source = None
        if role == "actor" and "ref" in engines and _same_initial_weights(plan):
            weights = engines["ref"].local_tensors()
            source = device.contents(Region.REFERENCE_WEIGHTS, weights)
        settings = EngineSettings(
            layout=plan.layouts[role],
            head=role_head(config, role),
            training=config.megatron_training,
            learning=config.learning(role),
            device_type=platform.device_type,
            attention=attention_kernel(platform.kind, batch_invariant=is_invariant),
            batch_invariant=is_invariant,
            temperature=config.generate_config.sampling_config.temperature,
            removes_padding=config.rl_config.use_remove_padding,
            shares_prompts=shares_prompts(config, role, plan.models[role], platform.kind),
            logprob_chunk_tokens=config.actor_config.logprob_chunk_tokens,
            candidates=plan.candidates(role),
            low_rank=plan.low_rank if role == "actor" else None,
            adapter_folder=config.actor_config.lora.load,
            images=config.data_config.images,
            router_replay=config.actor_config.router_replay if role == "actor" else "none",
            world=worlds.get(role),
        )
        make = partial(
            _maker(settings, groups.get(role), plan.models[role], config.training_backend(role)),
            known=(plan.models[role], shardings.training[role]),
            updates=config.total_updates(role) if role in ("actor", "critic") else None,
            head_seed=config.megatron_training.seed if draws_head(config, role) else None,
            source=source,
        )
        engines[role] = make(config.model_path(role))
        device.place(role, engines[role])
        for folder in further_models(config, role):
            others[role] = (*others.get(role, ()), make(folder))
            device.place_in_turn(role, others[role][-1])
    return engines, others


def _maker(
    settings: EngineSettings,
    groups: "ParallelGroups | None",
    model: ModelDescription,
    backend: TrainingBackend,
) -> Callable[..., TrainingEngine]:
    """Return the builder of a model: Megatron if it has groups, otherwise PyTorch's engine."""
    if backend == "fsdp" and model.other and not model.other.own:
        from mindrl.training.fsdp.engine import FsdpEngine  # noqa: PLC0415

        return partial(FsdpEngine, settings=settings)
    if groups is None:
        from mindrl.training.archon.engine import ArchonEngine  # noqa: PLC0415

        return partial(ArchonEngine, settings=settings)
    from mindrl.training.megatron.engine import MegatronEngine  # noqa: PLC0415
    from mindrl.training.megatron.model import ModelSettings  # noqa: PLC0415

    return partial(MegatronEngine, settings=ModelSettings(groups=groups, **vars(settings)))


def _same_initial_weights(plan: RunPlan) -> bool:
    """Return whether actor and reference have the same tensors of the same file on each rank."""
    config, layouts = plan.config, plan.layouts
    same_engine = config.training_backend("ref") == config.training_backend("actor")
    same_layout = same_engine and layouts["ref"] == layouts["actor"]
    return same_layout and config.model_path("ref") == config.actor_config.load


def _weight_sync(
    shardings: RunShardings,
    actor: TrainingEngine | None,
    rollout: RolloutEngine,
    device: WorkerDevice,
) -> WeightSync:
    generate = shardings.plan.config.generate_config
    route = WeightRoute(
        source=shardings.source,
        target=shardings.rollout,
        plan=shardings.reshard,
        timeout_seconds=generate.reshard_timeout_seconds,
    )
    return WeightSync(
        actor,
        rollout,
        route,
        verify=generate.verify_weights,
        on_last_read=device.offload_when_read(Region.ACTOR_WEIGHTS),
    )
