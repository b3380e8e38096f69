"""Everything that mindrl's NPU code names of other people's packages: one entry for each name.

scripts/check_npu_contract.py looks for every entry in the published sources of the versions that
`npu_versions` pins. A test reads mindrl's own sources: no name is used that has no entry here, and
no entry stays behind when its use is gone.
"""

from collections.abc import Iterator

from mindrl.platform.npu_versions import (
    GENERATIONS,
    MEGATRON,
    MINDSPEED,
    RAY,
    TORCH,
    TORCH_NPU,
    TORCHVISION,
    TRITON,
    VLLM,
    VLLM_ASCEND,
    Pin,
)
from npu_contract.attention import ATTENTION, NORM
from npu_contract.entry import Entry
from npu_contract.fused_layers import FUSED_LAYERS
from npu_contract.graphs import GRAPHS
from npu_contract.int8 import INT8
from npu_contract.profiler import PROFILER
from npu_contract.routers import ROUTERS

_DEVICE = "mindrl/platform/device.py"
_SETTINGS = "mindrl/platform/environment.yaml"
_MEMORY = "mindrl/platform/device_memory.py"
_COPIES = "mindrl/platform/copies.py"
_RENDEZVOUS = "mindrl/platform/rendezvous.py"
_MEGATRON = "mindrl/platform/patches/npu_megatron.py"
_EXPERTS = "mindrl/platform/patches/npu_grouped_experts.py"
_FLASH_ATTENTION = "mindrl/platform/patches/npu_without_dummy_flash_attn.py"
_WORKER = "mindrl/launch/worker.py"
_ENGINE = "mindrl/rollout/vllm/engine.py"
_CLASSES = "mindrl/rollout/vllm/model_classes.py"
_PREEMPTIONS = "mindrl/rollout/vllm/engine_counts.py"
_ROUNDS = "mindrl/rollout/vllm/rounds.py"
_SHARDS = "mindrl/rollout/vllm/shards.py"
_LEFTOVERS = "mindrl/platform/leftovers.py"
_WHOLE = "mindrl/rollout/vllm/whole_tensors.py"
_SCRIPT = "scripts/lib/ascend.sh"
_NODES = "scripts/lib/ray_nodes.sh"
_VERSIONS = "mindrl/platform/npu_versions.py"


def _names(pin: Pin, used_by: str, owner: str, *names: str) -> Iterator[Entry]:
    for name in names:
        yield Entry(pin=pin, kind="name", name=f"{owner}.{name}", used_by=used_by)


def _callable(pin: Pin, used_by: str, name: str, *arguments: str) -> Entry:
    return Entry(pin=pin, kind="name", name=name, used_by=used_by, arguments=arguments)


def _variables(pin: Pin, used_by: str, *names: str) -> Iterator[Entry]:
    for name in names:
        yield Entry(pin=pin, kind="variable", name=name, used_by=used_by)


_TORCH_NPU = (
    Entry(pin=TORCH_NPU, kind="module", name="torch_npu", used_by=_MEGATRON),
    Entry(
        pin=TORCH_NPU,
        kind="requirement",
        name="torch",
        values=(TORCH.version,),
        used_by=_VERSIONS,
    ),
    Entry(
        pin=TORCH_NPU,
        kind="call",
        name="torch._register_device_module",
        values=("npu",),
        used_by=_DEVICE,
        spelled='device_type="npu"',
    ),
    Entry(
        pin=TORCH_NPU,
        kind="call",
        name="torch.distributed.Backend.register_backend",
        values=("hccl",),
        used_by=_DEVICE,
        spelled='collective_backend="hccl"',
    ),
    *ATTENTION,
    NORM,
    *_names(TORCH_NPU, _COPIES, "torch_npu.npu", "Stream", "Event", "stream", "current_stream"),
    *_names(TORCH_NPU, _COPIES, "torch_npu.npu.Stream", "wait_stream"),
    *_names(TORCH_NPU, _COPIES, "torch_npu.npu.Event", "record", "synchronize"),
    *_names(TORCH_NPU, _MEMORY, "torch_npu.npu", "mem_get_info", "memory_allocated"),
    *_names(TORCH_NPU, _MEMORY, "torch_npu.npu", "max_memory_allocated"),
    *_names(TORCH_NPU, _MEMORY, "torch_npu.npu", "memory_snapshot"),
    *_names(
        TORCH_NPU, _MEMORY, "torch_npu.npu", "reset_peak_memory_stats", "empty_cache", "synchronize"
    ),
    *_names(TORCH_NPU, _RENDEZVOUS, "torch_npu.npu", "set_device"),
    *PROFILER,
    *(
        Entry(
            pin=TORCH_NPU,
            kind="name",
            name=f"torch_npu.npu.{name}",
            used_by=_ENGINE,
            spelled="fork_rng",
        )
        for name in ("get_rng_state", "set_rng_state")
    ),
    *_variables(TORCH_NPU, _DEVICE, "ASCEND_RT_VISIBLE_DEVICES"),
    *_variables(TORCH_NPU, _SETTINGS, "HCCL_CONNECT_TIMEOUT", "PYTORCH_NPU_ALLOC_CONF"),
    *_variables(TORCH_NPU, _SCRIPT, "ASCEND_HOME_PATH"),
    *_variables(TORCH_NPU, _NODES, "TP_SOCKET_IFNAME"),
)

_ASCEND = "vllm_ascend"
_FUSED_MOE = f"{_ASCEND}.ops.fused_moe.fused_moe.AscendUnquantizedFusedMoEMethod"
_MLA = f"{_ASCEND}.attention.mla_v1.AscendMLAImpl"
_SFA = f"{_ASCEND}.attention.sfa_v1.AscendSFAImpl"

_VLLM_ASCEND = (
    Entry(pin=VLLM_ASCEND, kind="module", name=_ASCEND, used_by=_SCRIPT),
    *(
        Entry(
            pin=VLLM_ASCEND,
            kind="requirement",
            name=name,
            values=(version,),
            used_by=_VERSIONS,
        )
        for name, version in (
            *((pin.distribution, pin.version) for pin in (TORCH, TORCH_NPU, TORCHVISION, TRITON)),
            ("transformers", GENERATIONS[0].transformers),
        )
    ),
    Entry(
        pin=VLLM_ASCEND,
        kind="entry point",
        name="vllm.platform_plugins",
        values=("vllm_ascend:register",),
        used_by=_ENGINE,
        spelled="LLM(",
    ),
    *_variables(
        VLLM_ASCEND,
        _SETTINGS,
        "VLLM_ASCEND_ENABLE_NZ",
        "VLLM_ASCEND_ENABLE_FUSED_MC2",
        "VLLM_ASCEND_ENABLE_FLASHCOMM1",
        "VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE",
        "VLLM_ASCEND_ENABLE_MLAPO",
        "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE",
        "HCCL_DETERMINISTIC",
        "LCCL_DETERMINISTIC",
        "ATB_MATMUL_SHUFFLE_K_ENABLE",
        "ATB_LLM_LCOC_ENABLE",
    ),
    *_variables(VLLM_ASCEND, _NODES, "HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
    *(
        Entry(
            pin=VLLM_ASCEND,
            kind="call",
            name="self._get_config_value",
            values=values,
            used_by=_SETTINGS,
            spelled=values[1],
        )
        for values in (
            ("weight_nz_mode", "VLLM_ASCEND_ENABLE_NZ"),
            ("enable_fused_mc2", "VLLM_ASCEND_ENABLE_FUSED_MC2"),
        )
    ),
    Entry(
        pin=VLLM_ASCEND,
        kind="casts",
        name="ACL_FORMAT_FRACTAL_NZ",
        values=(
            f"{_ASCEND}.utils.maybe_trans_nz",
            f"{_FUSED_MOE}.process_weights_after_loading",
            # For weights of 8 bits, for sparse attention or for another generation of devices.
            f"{_MLA}._process_weights_for_fused_mlapo",
            f"{_MLA}._process_weights_for_fused_mlapo_a5",
            f"{_SFA}._process_weights_for_fused_mlapo",
            f"{_SFA}._process_weights_for_fused_mlapo_a5",
            f"{_SFA}._process_weights_for_fused_mlapo_a5_float",
            f"{_SFA}._process_weights_for_fused_prolog_v3",
        ),
        used_by=_SHARDS,
        spelled="copy_",
    ),
    _callable(VLLM_ASCEND, _SHARDS, f"{_FUSED_MOE}.process_weights_after_loading", "layer"),
    _callable(
        VLLM_ASCEND,
        _SHARDS,
        f"{_ASCEND}.ops.linear.AscendUnquantizedLinearMethod.process_weights_after_loading",
        "layer",
    ),
    _callable(VLLM_ASCEND, _ENGINE, f"{_ASCEND}.worker.worker.NPUWorker.sleep", "level"),
    _callable(VLLM_ASCEND, _ENGINE, f"{_ASCEND}.worker.worker.NPUWorker.wake_up", "tags"),
    *_names(VLLM_ASCEND, _ENGINE, f"{_ASCEND}.worker.worker.NPUWorker", "model_runner"),
    *_names(VLLM_ASCEND, _SHARDS, f"{_ASCEND}.worker.worker.NPUWorker", "vllm_config", "device"),
    *INT8,
    *_names(VLLM_ASCEND, _ENGINE, f"{_ASCEND}.worker.model_runner_v1.NPUModelRunner", "kv_caches"),
    *_names(VLLM_ASCEND, _SHARDS, f"{_ASCEND}.worker.model_runner_v1.NPUModelRunner", "get_model"),
    *_names(VLLM_ASCEND, _LEFTOVERS, f"{_ASCEND}.ops.rotary_embedding", "_cos_cache", "_sin_cache"),
)

_LAYERS = "vllm.model_executor.layers"
_RELOAD = "vllm.model_executor.model_loader.reload"
_MODELS = "vllm.model_executor.models"
_DEEPSEEK = f"{_MODELS}.deepseek_v2"
_LLM_ENGINE = "vllm.v1.engine.llm_engine.LLMEngine"
_EXECUTOR = "vllm.v1.executor.uniproc_executor.ExecutorWithExternalLauncher"

_VLLM = (
    Entry(
        pin=VLLM,
        kind="name",
        name="vllm.LLM",
        used_by=_ENGINE,
        passed_on_to="vllm.engine.arg_utils.EngineArgs",
        arguments=(
            "model",
            "load_format",
            "skip_tokenizer_init",
            "distributed_executor_backend",
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "enable_expert_parallel",
            "dtype",
            "seed",
            "max_num_seqs",
            "max_model_len",
            "max_num_batched_tokens",
            "gpu_memory_utilization",
            "kv_cache_memory_bytes",
            "enforce_eager",
            "compilation_config",
            "enable_prefix_caching",
            "block_size",
            "trust_remote_code",
            "logprobs_mode",
            "speculative_config",
            "hf_overrides",
            "disable_log_stats",
            "distributed_timeout_seconds",
            "cpu_distributed_timeout_seconds",
            "enable_sleep_mode",
        ),
    ),
    *GRAPHS,
    *ROUTERS,
    _callable(
        VLLM,
        _ENGINE,
        "vllm.SamplingParams",
        "temperature",
        "max_tokens",
        "top_p",
        "top_k",
        "min_p",
        "stop_token_ids",
        "seed",
        "logprobs",
        "logprob_token_ids",
        "detokenize",
    ),
    *_names(VLLM, _ROUNDS, "vllm.sampling_params", "RequestOutputKind"),
    _callable(VLLM, _ENGINE, "vllm.TokensPrompt", "prompt_token_ids"),
    *_names(VLLM, _ENGINE, "vllm.distributed", "get_pp_group", "get_tp_group"),
    _callable(VLLM, _ENGINE, "vllm.LLM.sleep", "level"),
    _callable(VLLM, _ENGINE, "vllm.LLM.wake_up", "tags"),
    _callable(VLLM, _ENGINE, "vllm.LLM.generate", "prompts", "sampling_params", "use_tqdm"),
    *_names(VLLM, _CLASSES, "vllm", "ModelRegistry"),
    *_names(VLLM, _ENGINE, "vllm.LLM", "llm_engine", "reset_prefix_cache"),
    *_names(VLLM, _ENGINE, _LLM_ENGINE, "model_executor", "step"),
    *_names(VLLM, _PREEMPTIONS, _LLM_ENGINE, "engine_core"),
    *_names(VLLM, _PREEMPTIONS, "vllm.v1.engine.core_client.InprocClient", "engine_core"),
    *_names(VLLM, _PREEMPTIONS, "vllm.v1.engine.core.EngineCore", "scheduler"),
    *_names(VLLM, _PREEMPTIONS, "vllm.v1.core.sched.scheduler.Scheduler", "_preempt_request"),
    *_names(
        VLLM,
        _PREEMPTIONS,
        "vllm.v1.core.sched.scheduler.Scheduler",
        "num_spec_tokens",
        "make_spec_decoding_stats",
    ),
    *_names(VLLM, _ENGINE, _EXECUTOR, "driver_worker"),
    *_names(VLLM, _ENGINE, "vllm.v1.worker.worker_base.WorkerWrapperBase", "worker"),
    *_names(VLLM, _ENGINE, "vllm.outputs.RequestOutput", "outputs"),
    *_names(
        VLLM, _ENGINE, "vllm.outputs.CompletionOutput", "token_ids", "logprobs", "finish_reason"
    ),
    *_names(VLLM, _CLASSES, f"{_MODELS}.registry._ModelRegistry", "register_model"),
    *_names(VLLM, _CLASSES, _DEEPSEEK, "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
    *_names(VLLM, _CLASSES, f"{_MODELS}.glm4_moe", "Glm4MoeForCausalLM"),
    *_names(VLLM, _CLASSES, f"{_MODELS}.llama", "LlamaForCausalLM"),
    *_names(VLLM, _CLASSES, f"{_MODELS}.mistral", "MistralForCausalLM"),
    *_names(VLLM, _CLASSES, f"{_MODELS}.phi3", "Phi3ForCausalLM"),
    *_names(VLLM, _CLASSES, f"{_MODELS}.qwen2", "Qwen2ForCausalLM"),
    *_names(VLLM, _CLASSES, f"{_MODELS}.qwen3", "Qwen3ForCausalLM"),
    *_names(VLLM, _CLASSES, f"{_MODELS}.qwen3_moe", "Qwen3MoeForCausalLM"),
    *_names(VLLM, _SHARDS, "vllm.config", "set_current_vllm_config"),
    *_names(VLLM, _SHARDS, "vllm.config.VllmConfig", "model_config"),
    *_names(VLLM, _SHARDS, "vllm.config.ModelConfig", "dtype"),
    *_names(VLLM, _SHARDS, f"{_LAYERS}.attention", "Attention", "MLAAttention"),
    *_names(VLLM, _SHARDS, f"{_LAYERS}.fused_moe.fused_moe_method_base", "FusedMoEMethodBase"),
    *_names(VLLM, _SHARDS, f"{_LAYERS}.quantization.base_config", "QuantizeMethodBase"),
    *_names(VLLM, _SHARDS, f"{_LAYERS}.vocab_parallel_embedding", "VocabParallelEmbedding"),
    *_names(VLLM, _SHARDS, f"{_RELOAD}.layerwise", "get_layerwise_info"),
    *_names(VLLM, _WHOLE, f"{_RELOAD}.layerwise", "initialize_layerwise_reload"),
    *_names(VLLM, _WHOLE, f"{_RELOAD}.layerwise", "finalize_layerwise_reload"),
    *_names(
        VLLM, _SHARDS, f"{_RELOAD}.types.LayerReloadingInfo", "restore_metadata", "restore_device"
    ),
    *_names(VLLM, _SHARDS, f"{_RELOAD}.meta", "SKIP_TENSORS", "materialize_meta_tensor"),
    *_names(VLLM, _SHARDS, "vllm.platforms", "current_platform"),
    *_names(VLLM, _SHARDS, "vllm.platforms.interface.Platform", "is_cpu"),
    *_variables(
        VLLM,
        _SETTINGS,
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        "VLLM_DP_SIZE",
        "VLLM_NO_USAGE_STATS",
        "VLLM_LOGGING_LEVEL",
    ),
    *_variables(VLLM, _SETTINGS, "VLLM_WORKER_MULTIPROC_METHOD"),
    Entry(
        pin=VLLM,
        kind="import",
        name=f"{_LAYERS}.rotary_embedding.common.ApplyRotaryEmb.__init__",
        values=("flash_attn.ops",),
        used_by=_FLASH_ATTENTION,
        spelled="flash_attn.ops",
    ),
)

_GROUPED = "mindspeed.core.transformer.moe.grouped_matmul_util"

_MINDSPEED = (
    Entry(pin=MINDSPEED, kind="module", name="mindspeed.megatron_adaptor", used_by=_MEGATRON),
    Entry(
        pin=MINDSPEED,
        kind="name",
        name="mindspeed.megatron_adaptor.repatch",
        used_by=_MEGATRON,
        arguments=("args",),
        spelled="repatch",
    ),
    Entry(pin=MINDSPEED, kind="setting", name="fp8", used_by=_MEGATRON),
    *(
        Entry(pin=MINDSPEED, kind="setting", name=name, used_by=_WORKER)
        for name in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "expert_model_parallel_size",
            "expert_tensor_parallel_size",
            "sequence_parallel",
            "moe_grouped_gemm",
        )
    ),
    *FUSED_LAYERS,
    Entry(pin=MINDSPEED, kind="module", name=_GROUPED, used_by=_EXPERTS),
    *_names(MINDSPEED, _EXPERTS, _GROUPED, "get_gmm_quant_func"),
    Entry(
        pin=MINDSPEED,
        kind="import",
        name=_GROUPED,
        values=("megatron.training",),
        used_by=_EXPERTS,
        spelled="megatron.training",
    ),
    Entry(
        pin=MINDSPEED,
        kind="call",
        name="pm.register_patch",
        values=("flash_attn.flash_attn_interface.flash_attn_unpadded_func",),
        used_by=_FLASH_ATTENTION,
        spelled="flash_attn",
    ),
    *_variables(MINDSPEED, _SETTINGS, "CLOSE_MATMUL_K_SHIFT"),
    *_variables(MINDSPEED, _SCRIPT, "ATB_HOME_PATH"),
)

_OTHERS = (
    Entry(pin=MEGATRON, kind="module", name="megatron.core", used_by=_SCRIPT),
    *_variables(MEGATRON, _SETTINGS, "CUDA_DEVICE_MAX_CONNECTIONS"),
    *_variables(RAY, _SETTINGS, "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES"),
)

ENTRIES: tuple[Entry, ...] = (*_TORCH_NPU, *_VLLM_ASCEND, *_VLLM, *_MINDSPEED, *_OTHERS)
