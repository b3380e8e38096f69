"""From a configuration to a worker. Imported inside a prepared worker process only."""

from collections.abc import Mapping

from mindrl.algorithms.grpo import GrpoLoss
from mindrl.algorithms.value_loss import ValueLoss
from mindrl.batch.balance import MicroBatching
from mindrl.config.actor import ActorConfig
from mindrl.config.layout_keys import Role
from mindrl.config.role import CriticConfig, LearningConfig
from mindrl.config.run import RunConfig
from mindrl.launch.worker_memory import make_device, plan_worker_memory
from mindrl.layouts.layout import TrainLayout
from mindrl.platform.attention import attention_kernel
from mindrl.platform.determinism import make_deterministic
from mindrl.platform.device import Platform, configure_megatron
from mindrl.preflight.run_plan import RunPlan
from mindrl.preflight.run_shardings import RunShardings
from mindrl.rollout.vllm.engine import EngineSettings
from mindrl.training.megatron.model import ModelSettings
from mindrl.training.megatron.optimizer import OptimizerSettings
from mindrl.training.megatron.parallel import GroupsByLayout, ParallelGroups
from mindrl.training.megatron.recompute import Recompute
from mindrl.workers.actor_hybrid_worker import ActorSettings
from mindrl.workers.integrated_worker import (
    CriticSettings,
    IntegratedWorker,
    ReadOnlySettings,
    RolesSettings,
)
from mindrl.workers.weight_sync import TransitSettings


def build_worker(plan: RunPlan, platform: Platform) -> IntegratedWorker:
    """Build all roles of this rank. A collective over the default process group.

    Raises:
        ModelError: A model folder does not hold a supported model.
        DeviceMemoryError: A role does not fit the device.
        HostMemoryError: The host has no room for what has to leave the device.
    """
    config, layouts = plan.config, plan.layouts
    if config.is_deterministic:
        make_deterministic()
    models = RunShardings(plan=plan)
    _configure_megatron(config, platform, layouts)
    training = config.megatron_training
    made = GroupsByLayout(seed=training.seed, timeout_minutes=training.distributed_timeout_minutes)
    groups = {role: made.of(layout) for role, layout in layouts.items()}
    memory = plan_worker_memory(models, platform.device_type)
    settings = RolesSettings(
        actor=_actor(models, platform, groups["actor"], memory.kv_cache_bytes),
        reference=_reference(config, platform, groups),
        critic=_critic(config, platform, groups),
        reward=_reward(config, platform, groups),
    )
    return IntegratedWorker(settings, make_device(plan, platform.device_type, memory))


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


def _model(
    config: RunConfig, platform: Platform, groups: ParallelGroups, learning: LearningConfig
) -> ModelSettings:
    return ModelSettings(
        groups=groups,
        seq_length=config.megatron_training.seq_length,
        bf16=config.megatron_training.bf16,
        sequence_parallel=config.megatron_training.sequence_parallel and groups.layout.tp > 1,
        device_type=platform.device_type,
        attention=attention_kernel(platform.kind),
        removes_padding=config.rl_config.use_remove_padding,
        logprob_chunk_tokens=config.actor_config.logprob_chunk_tokens,
        moe_aux_loss_coeff=learning.moe_aux_loss_coeff,
        grouped_experts=learning.moe_grouped_gemm,
        recompute=Recompute(
            granularity=learning.recompute_granularity,
            method=learning.recompute_method,
            num_layers=learning.recompute_num_layers,
        ),
        deterministic=config.is_deterministic,
    )


def _actor(
    models: RunShardings, platform: Platform, groups: ParallelGroups, kv_cache_bytes: int
) -> ActorSettings:
    config = models.plan.config
    actor, rl = config.actor_config, config.rl_config
    clip_low, clip_high = config.clip_range
    return ActorSettings(
        load=actor.load,
        model=_model(config, platform, groups, actor),
        optimizer=_optimizer(config, actor, config.total_updates),
        engine=_engine(config, platform, kv_cache_bytes),
        loss=GrpoLoss(
            clip_low=clip_low,
            clip_high=clip_high,
            kl_kind=rl.kl_penalty,
            kl_coef=config.loss_kl_coef,
            entropy_coef=rl.entropy_coeff,
        ),
        temperature=config.generate_config.sampling_config.temperature,
        micro_batching=_micro_batching(
            config, actor.micro_batch_size, rl.update_max_packing_token_size
        ),
        forward_micro_batching=_micro_batching(
            config,
            rl.actor_forward_micro_batch_size or actor.micro_batch_size,
            rl.actor_max_packing_token_size,
        ),
        transit=_transit(models),
    )


def _reference(
    config: RunConfig, platform: Platform, groups: Mapping[Role, ParallelGroups]
) -> ReadOnlySettings | None:
    if "ref" not in groups:
        return None
    rl = config.rl_config
    sequences = rl.ref_forward_micro_batch_size or config.actor_config.micro_batch_size
    return ReadOnlySettings(
        load=config.reference_path,
        # What recomputes nothing backward needs no recomputation.
        model=_model(
            config,
            platform,
            groups["ref"],
            LearningConfig(moe_grouped_gemm=config.actor_config.moe_grouped_gemm),
        ),
        micro_batching=_micro_batching(config, sequences, rl.ref_max_packing_token_size),
    )


def _critic(
    config: RunConfig, platform: Platform, groups: Mapping[Role, ParallelGroups]
) -> CriticSettings | None:
    critic = config.critic_config
    if critic is None:
        return None
    return CriticSettings(
        load=config.model_path("critic"),
        model=_model(config, platform, groups["critic"], critic),
        optimizer=_optimizer(config, critic, config.total_critic_updates),
        loss=ValueLoss(clip_range=config.rl_config.cliprange_value),
        head_seed=config.megatron_training.seed,
        micro_batching=_micro_batching(config, config.critic_micro_batch_size, None),
        forward_micro_batching=_micro_batching(
            config, config.critic_forward_micro_batch_size, None
        ),
    )


def _reward(
    config: RunConfig, platform: Platform, groups: Mapping[Role, ParallelGroups]
) -> ReadOnlySettings | None:
    if config.reward_config is None:
        return None
    return ReadOnlySettings(
        load=config.reward_config.load,
        model=_model(config, platform, groups["reward"], LearningConfig()),
        micro_batching=_micro_batching(config, config.reward_forward_micro_batch_size, None),
    )


def _transit(models: RunShardings) -> TransitSettings:
    generate = models.plan.config.generate_config
    return TransitSettings(
        rollout=models.rollout,
        reshard=models.reshard,
        ranks_per_node=models.plan.topology.ranks_per_node,
        bucket_bytes=models.plan.bucket_bytes,
        timeout_seconds=generate.reshard_timeout_seconds,
        verify=generate.verify_weights,
    )


def _optimizer(
    config: RunConfig, learning: ActorConfig | CriticConfig, updates: int
) -> OptimizerSettings:
    return OptimizerSettings(
        lr=learning.lr,
        min_lr=learning.min_lr,
        lr_decay_style=learning.lr_decay_style,
        warmup_updates=int(learning.lr_warmup_fraction * updates),
        total_updates=updates,
        weight_decay=learning.weight_decay,
        clip_grad=learning.clip_grad,
        adam_beta1=learning.adam_beta1,
        adam_beta2=learning.adam_beta2,
        adam_eps=learning.adam_eps,
        bf16=config.megatron_training.bf16,
        use_distributed_optimizer=config.megatron_training.use_distributed_optimizer,
    )


def _engine(config: RunConfig, platform: Platform, kv_cache_bytes: int) -> EngineSettings:
    generate = config.generate_config
    return EngineSettings(
        model_path=config.actor_config.load,
        device_type=platform.device_type,
        tensor_parallel_size=generate.infer_tensor_parallel_size,
        enable_expert_parallel=generate.infer_expert_parallel_size > 1,
        dtype=generate.dtype,
        max_num_seqs=generate.max_num_seqs,
        max_model_len=generate.max_model_len,
        max_num_batched_tokens=generate.max_num_batched_tokens,
        kv_cache_bytes=kv_cache_bytes,
        enforce_eager=generate.enforce_eager,
        enable_prefix_caching=generate.enable_prefix_caching,
        trust_remote_code=generate.trust_remote_code,
        seed=config.megatron_training.seed,
        collective_timeout_seconds=config.megatron_training.distributed_timeout_minutes * 60,
        platform_options=platform.engine_options,
    )


def _micro_batching(config: RunConfig, sequences: int, tokens: int | None) -> MicroBatching:
    """Cut by sequences, or by tokens, for which None takes the general bound."""
    rl = config.rl_config
    return MicroBatching(
        sequences=sequences,
        tokens=(tokens or rl.max_packing_token_size) if rl.use_dynamic_bsz else None,
    )
