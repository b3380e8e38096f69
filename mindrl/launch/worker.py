"""From the plan of a run to a worker. Imported inside a prepared worker process only."""

from collections.abc import Mapping
from functools import cache, partial

from mindrl.algorithms.grpo import GrpoLoss
from mindrl.algorithms.value_loss import ValueLoss
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.launch.worker_memory import make_device
from mindrl.layouts.layout import TrainLayout
from mindrl.memory.regions import Region
from mindrl.platform.attention import attention_kernel
from mindrl.platform.determinism import make_deterministic
from mindrl.platform.device import Platform, configure_megatron
from mindrl.preflight.run_shardings import RunPlan, RunShardings
from mindrl.rollout.engine import RolloutEngine
from mindrl.rollout.vllm.engine import VllmEngine
from mindrl.training.engine import TrainingEngine
from mindrl.training.megatron.engine import MegatronEngine
from mindrl.training.megatron.model import ModelSettings
from mindrl.training.megatron.parallel import ParallelGroups
from mindrl.workers.device import WorkerDevice
from mindrl.workers.integrated_worker import IntegratedWorker, RoleModel, RoleUpdates
from mindrl.workers.sharding_manager import ShardingManager
from mindrl.workers.weight_sync import WeightExport, WeightRoute, WeightSync

_IN_TURN: tuple[Role, ...] = ("reward", "critic", "ref", "actor")
"""The order in which models are built: each has left the device for the next, where it may."""


def build_worker(plan: RunPlan, platform: Platform) -> IntegratedWorker:
    """Build all roles of this rank. A collective over the default process group.

    Raises:
        ModelError: A model folder does not hold a supported model.
        DeviceMemoryError: A role does not fit the device.
        HostMemoryError: The host has no room for what has to leave the device.
    """
    config, training = plan.config, plan.config.megatron_training
    if training.is_deterministic:
        make_deterministic()
    shardings = RunShardings(plan=plan)
    _configure_megatron(config, platform, plan.layouts)
    timeout_minutes = training.distributed_timeout_minutes
    # Roles with the same layout share its groups.
    made = cache(partial(ParallelGroups, seed=training.seed, timeout_minutes=timeout_minutes))
    groups = {role: made(layout) for role, layout in plan.layouts.items()}
    device = make_device(shardings, platform.device_type)
    engines = _engines(shardings, platform, groups, device)
    kv_cache_bytes = device.plan.kv_cache_bytes
    assert kv_cache_bytes is not None, "the plan of a worker says how large it is"
    rollout = VllmEngine(
        config.actor_config.load,
        config.generate_config,
        platform,
        kv_cache_bytes=kv_cache_bytes,
        seed=training.seed,
        timeout_seconds=timeout_minutes * 60,
    )
    device.place_rollout(rollout)
    updates = _updates(config)
    return IntegratedWorker(
        models={
            role: RoleModel(engine=engine, micro_batching=config.forward_micro_batching(role))
            for role, engine in engines.items()
        },
        updates=updates,
        rollout=rollout,
        device=device,
        sharding_manager=ShardingManager(
            device.ledger,
            _sync(shardings, engines["actor"], rollout, device),
            movable=device.plan.movable,
            device_type=device.device_type,
        ),
        exports={role: _export(plan, role, engines[role]) for role in updates},
    )


def _configure_megatron(
    config: RunConfig, platform: Platform, layouts: Mapping[Role, TrainLayout]
) -> None:
    tp = max(layout.tp for layout in layouts.values())
    learning = (config.actor_config, config.critic_config)
    layout = layouts["actor"]
    # Context parallelism is ours: no vendor's version of it is to be put in.
    configure_megatron(
        platform,
        {
            "tensor_model_parallel_size": tp,
            "pipeline_model_parallel_size": layout.pp,
            "expert_model_parallel_size": layout.ep,
            "expert_tensor_parallel_size": layout.etp,
            "sequence_parallel": config.megatron_training.sequence_parallel and tp > 1,
            "moe_grouped_gemm": any(each.moe_grouped_gemm for each in learning if each),
        },
    )


def _engines(
    shardings: RunShardings,
    platform: Platform,
    groups: Mapping[Role, ParallelGroups],
    device: WorkerDevice,
) -> dict[Role, TrainingEngine]:
    """Build one model after the other, and let it leave the device."""
    config = shardings.plan.config
    engines: dict[Role, TrainingEngine] = {}
    for role in _IN_TURN:
        if role not in groups:
            continue
        source = None
        if role == "actor" and "ref" in engines and _begin_alike(config, groups):
            weights = engines["ref"].local_tensors()
            source = device.contents(Region.REFERENCE_WEIGHTS, weights)
        engines[role] = MegatronEngine(
            config.model_path(role),
            _model(config, platform, role, groups[role]),
            (shardings.plan.models[role], shardings.training[role]),
            updates=config.total_updates(role) if role in ("actor", "critic") else None,
            # A critic's head is drawn where the folder has none.
            head_seed=config.megatron_training.seed if role == "critic" else None,
            source=source,
        )
        device.place(role, engines[role])
    return engines


def _begin_alike(config: RunConfig, groups: Mapping[Role, ParallelGroups]) -> bool:
    """Say whether each rank holds the same tensors of the same file as actor and reference."""
    same_layout = groups["ref"].layout == groups["actor"].layout
    return same_layout and config.model_path("ref") == config.actor_config.load


def _model(
    config: RunConfig, platform: Platform, role: Role, groups: ParallelGroups
) -> ModelSettings:
    return ModelSettings(
        groups=groups,
        head="value" if role in ("critic", "reward") else "vocabulary",
        training=config.megatron_training,
        learning=config.learning(role),
        device_type=platform.device_type,
        attention=attention_kernel(platform.kind),
        temperature=config.generate_config.sampling_config.temperature,
        removes_padding=config.rl_config.use_remove_padding,
        logprob_chunk_tokens=config.actor_config.logprob_chunk_tokens,
    )


def _updates(config: RunConfig) -> dict[Role, RoleUpdates]:
    rl = config.rl_config
    clip_low, clip_high = config.clip_range
    policy_loss = GrpoLoss(
        clip_low=clip_low,
        clip_high=clip_high,
        kl_kind=rl.kl_penalty,
        kl_coef=config.loss_kl_coef,
        entropy_coef=rl.entropy_coeff,
    )
    updates: dict[Role, RoleUpdates] = {
        "actor": RoleUpdates(
            micro_batching=config.update_micro_batching("actor"),
            loss=policy_loss.of_minibatch,
        )
    }
    if config.critic_config is not None:
        updates["critic"] = RoleUpdates(
            micro_batching=config.update_micro_batching("critic"),
            loss=ValueLoss(clip_range=rl.cliprange_value).of_minibatch,
        )
    return updates


def _sync(
    shardings: RunShardings,
    actor: TrainingEngine,
    rollout: RolloutEngine,
    device: WorkerDevice,
) -> WeightSync:
    generate = shardings.plan.config.generate_config
    return WeightSync(
        actor,
        rollout,
        WeightRoute(
            target=shardings.rollout,
            plan=shardings.reshard,
            timeout_seconds=generate.reshard_timeout_seconds,
        ),
        verify=generate.verify_weights,
        on_last_read=device.offload_when_read(Region.ACTOR_WEIGHTS),
    )


def _export(plan: RunPlan, role: Role, engine: TrainingEngine) -> WeightExport:
    return WeightExport(
        engine,
        plan.topology,
        bucket_bytes=plan.bucket_bytes,
        timeout_seconds=plan.config.generate_config.reshard_timeout_seconds,
        name=f"export {role}",
    )
