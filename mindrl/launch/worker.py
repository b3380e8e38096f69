"""From a configuration to a worker. Imported inside a prepared worker process only."""

from mindrl.algorithms.grpo import GrpoLoss
from mindrl.allocation.from_config import rollout_layout
from mindrl.allocation.regions import TrainRegion
from mindrl.batch.balance import MicroBatching
from mindrl.config.run import RunConfig
from mindrl.launch.layouts import ordered_train_layout, topology
from mindrl.platform.attention import attention_kernel
from mindrl.platform.determinism import make_deterministic
from mindrl.platform.device import Platform, configure_megatron
from mindrl.rollout.engine import EngineSettings
from mindrl.training.model import ModelSettings
from mindrl.training.optimizer import OptimizerSettings
from mindrl.training.parallel import initialise_model_parallel
from mindrl.training.recompute import Recompute
from mindrl.workers.actor_hybrid_worker import ActorSettings
from mindrl.workers.integrated_worker import IntegratedWorker, ReferenceSettings
from mindrl.workers.weights_in_transit import TransitSettings


def build_worker(config: RunConfig, platform: Platform) -> IntegratedWorker:
    """Build all roles of this rank. A collective over the default process group.

    Raises:
        ModelError: A model folder does not hold a supported model.
    """
    layout = ordered_train_layout(config)
    if config.is_deterministic:
        make_deterministic()
    # Context parallelism is ours: no vendor's version of it is to be put in.
    configure_megatron(
        platform,
        {
            "tensor_model_parallel_size": layout.tp,
            "pipeline_model_parallel_size": layout.pp,
            "expert_model_parallel_size": layout.ep,
            "expert_tensor_parallel_size": layout.etp,
            "sequence_parallel": config.megatron_training.sequence_parallel,
            "moe_grouped_gemm": config.actor_config.moe_grouped_gemm,
        },
    )
    initialise_model_parallel(layout, seed=config.megatron_training.seed)
    model = ModelSettings(
        layout=layout,
        seq_length=config.megatron_training.seq_length,
        bf16=config.megatron_training.bf16,
        sequence_parallel=config.megatron_training.sequence_parallel,
        device_type=platform.device_type,
        attention=attention_kernel(platform.kind),
        removes_padding=config.rl_config.use_remove_padding,
        logprob_chunk_tokens=config.actor_config.logprob_chunk_tokens,
        moe_aux_loss_coeff=config.actor_config.moe_aux_loss_coeff,
        grouped_experts=config.actor_config.moe_grouped_gemm,
        recompute=Recompute(
            granularity=config.actor_config.recompute_granularity,
            method=config.actor_config.recompute_method,
            num_layers=config.actor_config.recompute_num_layers,
        ),
        deterministic=config.is_deterministic,
    )
    return IntegratedWorker(
        _actor_settings(config, platform, model),
        _reference_settings(config, model) if config.uses_reference else None,
    )


def _actor_settings(config: RunConfig, platform: Platform, model: ModelSettings) -> ActorSettings:
    actor, rl = config.actor_config, config.rl_config
    return ActorSettings(
        load=actor.load,
        model=model,
        optimizer=_optimizer_settings(config),
        engine=_engine_settings(config, platform),
        loss=GrpoLoss(
            clip_low=rl.clip_ratio,
            clip_high=rl.clip_ratio,
            kl_kind=rl.kl_penalty,
            kl_coef=rl.init_kl_coef,
            entropy_coef=rl.entropy_coeff,
        ),
        temperature=config.generate_config.sampling_config.temperature,
        micro_batching=_micro_batching(config, None, rl.update_max_packing_token_size),
        forward_micro_batching=_micro_batching(
            config, rl.actor_forward_micro_batch_size, rl.actor_max_packing_token_size
        ),
        transit=_transit_settings(config),
        offloaded=_offloaded(config),
    )


def _transit_settings(config: RunConfig) -> TransitSettings:
    generate = config.generate_config
    return TransitSettings(
        rollout=rollout_layout(config),
        rollout_dtype=generate.dtype,
        ranks_per_node=topology(config).ranks_per_node,
        bucket_bytes=generate.reshard_bucket_mib << 20,
        timeout_seconds=generate.reshard_timeout_seconds,
        verify=generate.verify_weights,
        release_source=generate.offload_train_param,
    )


def _optimizer_settings(config: RunConfig) -> OptimizerSettings:
    actor = config.actor_config
    return OptimizerSettings(
        lr=actor.lr,
        min_lr=actor.min_lr,
        lr_decay_style=actor.lr_decay_style,
        warmup_updates=int(actor.lr_warmup_fraction * config.total_updates),
        total_updates=config.total_updates,
        weight_decay=actor.weight_decay,
        clip_grad=actor.clip_grad,
        adam_beta1=actor.adam_beta1,
        adam_beta2=actor.adam_beta2,
        adam_eps=actor.adam_eps,
        bf16=config.megatron_training.bf16,
        use_distributed_optimizer=config.megatron_training.use_distributed_optimizer,
    )


def _engine_settings(config: RunConfig, platform: Platform) -> EngineSettings:
    generate = config.generate_config
    return EngineSettings(
        model_path=config.actor_config.load,
        tensor_parallel_size=generate.infer_tensor_parallel_size,
        enable_expert_parallel=generate.infer_expert_parallel_size > 1,
        dtype=generate.dtype,
        max_num_seqs=generate.max_num_seqs,
        max_model_len=generate.max_model_len,
        max_num_batched_tokens=generate.max_num_batched_tokens,
        gpu_memory_utilization=generate.gpu_memory_utilization,
        kv_cache_bytes=generate.kv_cache_mib << 20 if generate.kv_cache_mib else None,
        enforce_eager=generate.enforce_eager,
        enable_prefix_caching=generate.enable_prefix_caching,
        trust_remote_code=generate.trust_remote_code,
        seed=config.megatron_training.seed,
        platform_options=platform.engine_options,
    )


def _reference_settings(config: RunConfig, model: ModelSettings) -> ReferenceSettings:
    rl = config.rl_config
    return ReferenceSettings(
        load=config.reference_path,
        model=model,
        temperature=config.generate_config.sampling_config.temperature,
        micro_batching=_micro_batching(
            config, rl.ref_forward_micro_batch_size, rl.ref_max_packing_token_size
        ),
    )


def _micro_batching(config: RunConfig, sequences: int | None, tokens: int | None) -> MicroBatching:
    """Cut by sequences or by tokens; None takes the general setting."""
    rl = config.rl_config
    return MicroBatching(
        sequences=sequences or config.actor_config.micro_batch_size,
        tokens=(tokens or rl.max_packing_token_size) if rl.use_dynamic_bsz else None,
    )


def _offloaded(config: RunConfig) -> frozenset[TrainRegion]:
    generate = config.generate_config
    switches = {
        TrainRegion.PARAMETERS: generate.offload_train_param,
        TrainRegion.GRADIENTS: generate.offload_train_grad,
        TrainRegion.OPTIMIZER: generate.offload_train_optimizer,
    }
    return frozenset(region for region, on in switches.items() if on)
