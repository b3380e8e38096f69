"""Kinds of device that mindrl supports, and the differences between them.

A `Platform` is data: the Ray resource that counts its devices, the backend of its collectives, the
environment of its worker processes. Code that requires one vendor's software is reached through
`prepare_process`.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from mindrl.errors import ClusterError
from mindrl.platform.setting import Setting, refusals, settings_by_owner, values

DeviceKind = Literal["npu", "gpu", "cpu"]
_DEVICE_NAME = re.compile("[0-9]+|(GPU|MIG)-.+")
"""Entry of a list of visible devices: a number, or the identifier of a GPU or of its part."""


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
    """Environment variable that lists the devices a process may use."""
    megatron_patches: tuple[str, ...]
    """Modules of `mindrl.platform.patches` that `prepare_process` installs, in this order, in
    processes that train with Megatron-core."""
    patches: tuple[str, ...]
    """Patches installed after `megatron_patches`, in every process."""
    engine_options: Mapping[str, object]
    """Arguments of the vLLM engine that depend on the device."""
    forks_workers: bool = False
    """Whether workers may be forked from a process that has imported the engines."""
    captures_graphs: bool = False
    """Whether the engine captures graphs by default."""
    compiles_engine: bool = True
    """Whether the engine may compile models: a trainer of the same process may replace
    torch.compile."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Environment settings of the worker processes."""
        found = settings_by_owner()
        return (*found["engine"], *found[self.kind])

    def is_eager(self, setting: bool | None) -> bool:
        """Return whether the engine runs without graphs; None selects the platform's default."""
        return not self.captures_graphs if setting is None else setting

    def local_devices(self) -> int:
        """Return the number of usable devices of this machine, without opening them."""
        present = self.device_files()
        visible = self.visible_devices()
        return present if visible is None else min(present, len(visible))

    def device_files(self) -> int:
        """Return the number of devices of this machine, including those hidden from this process.

        `MINDRL_DEVICE_FOLDER` replaces /dev: tests use it to simulate a machine.
        """
        if self.kind == "cpu":
            return usable_cores()
        files = {"npu": "davinci[0-9]*", "gpu": "nvidia[0-9]*"}
        folder = Path(os.environ.get("MINDRL_DEVICE_FOLDER", "/dev"))
        return len(list(folder.glob(files[self.kind])))

    def visible_devices(self) -> list[str] | None:
        """Return the devices that the user made visible to this process; None if unrestricted.

        The first entry that names no device, such as -1, ends the list, as in CUDA and CANN.
        """
        listed = os.environ.get(self.visible_variable) if self.visible_variable else None
        if listed is None:
            return None
        names = (name.strip() for name in listed.split(","))
        return [*takewhile(_DEVICE_NAME.fullmatch, names)]

    def device_index(self, name: str) -> int:
        """Return torch's index of a device in this process.

        Ray identifies it by its entry in the list of visible devices, with blanks, if there is a
        list.
        """
        visible, name = self.visible_devices() or [], name.strip()
        return visible.index(name) if name in visible else int(name)

    def ray_options(self, devices: int) -> dict[str, Any]:
        """Return Ray's options for `devices` devices: of a worker (1) or of a whole machine."""
        # Without a number Ray looks for GPUs, which takes a second.
        gpus = devices if self.kind == "gpu" else 0
        found: dict[str, Any] = {"num_cpus": devices, "num_gpus": gpus}
        if self.kind == "npu":
            found["resources"] = {self.ray_resource: devices}
        return found

    def worker_environment(
        self, *, workers: int, one_machine: bool, deterministic: bool = False
    ) -> dict[str, str]:
        """Return the environment of each of `workers` processes."""
        found = values(self.settings, os.environ, deterministic=deterministic)
        found["OMP_NUM_THREADS"] = str(max(1, usable_cores() // workers))
        if one_machine:
            found["GLOO_SOCKET_IFNAME"] = "lo"
        return found

    def refuse_settings(self) -> None:
        """Raise if this process has a setting that mindrl refuses.

        Raises:
            ClusterError: One line per refused setting.
        """
        if found := self.refused_settings():
            raise ClusterError("\n".join(found))

    def refused_settings(self) -> list[str]:
        """Return a sentence for each setting of this process that mindrl refuses."""
        return refusals(self.settings, os.environ)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def prepare_process(platform: Platform, *, megatron: bool = True) -> None:
    """Prepare this process for Megatron-core and vLLM; call it before importing either.

    With `megatron=False` it installs no patches for Megatron-core.

    Raises:
        ClusterError: The process has a refused setting, such as one made by `ray start`.
    """
    platform.refuse_settings()
    for name in (*(platform.megatron_patches if megatron else ()), *platform.patches):
        import_module(f"mindrl.platform.patches.{name}").install()


def configure_megatron(platform: Platform, settings: Mapping[str, object]) -> None:
    """Pass the layout to a vendor's adaptor, under the names of Megatron's arguments.

    Call it in a prepared process, before the model-parallel groups are created.
    """
    if platform.kind == "npu":
        import_module("mindrl.platform.patches.npu_megatron").repatch(settings)
        # MindSpeed's patches have recreated its dummies.
        import_module("mindrl.platform.patches.npu_without_dummy_flash_attn").install()


def shared_prompts_were_run(kind: DeviceKind, *, bf16: bool, backend: str) -> bool:
    """Return whether training with shared prompts was run on a kind of device, or a stand-in.

    False with MindSpeed, which changes Megatron's rotary embedding, and in float32 on a GPU, which
    flash attention does not take.
    """
    match kind:
        case "npu":
            return backend != "megatron"
        case "gpu":
            return bf16
        case "cpu":
            return True


def has_fused_layers(device_type: str) -> bool:
    """Return whether Megatron's norm, activation and rotation have fused kernels on a device."""
    return device_type == "npu"


def choose_platform(
    kind: Literal["auto", "npu", "gpu", "cpu"], given_by: str = "rl_config.device="
) -> Platform:
    """Return the platform of a device kind; `auto` selects the best one present.

    Errors name the kind by `given_by`: a key with =, or an option with a blank.

    Raises:
        ClusterError: The machine has no device of the requested kind.
    """
    if kind == "auto":
        return next(found for found in PLATFORMS.values() if found.local_devices())
    chosen = PLATFORMS[kind]
    if not chosen.local_devices():
        raise ClusterError(
            f"{given_by}{kind}: this machine has no such device; {given_by}auto "
            f"selects {choose_platform('auto').kind}"
        )
    return chosen


def planned_platform(kind: Literal["auto", "npu", "gpu", "cpu"]) -> Platform:
    """Return the platform of a configured device kind, even if this machine has no such device."""
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
        # MindSpeed's torch.compile returns the function that it gets.
        compiles_engine=False,
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
            "vllm_cpu_gated_delta",
            "vllm_cpu_kernels",
            "vllm_cpu_drafts",
            "vllm_cpu_int8",
        ),
        engine_options={
            "worker_cls": "mindrl.platform.patches.vllm_cpu_sleep.SleepingCPUWorker",
            # vllm-cpu 0.32 cannot rewind the seeded generator of a prompt that it split in two.
            "enable_chunked_prefill": False,
            # For latent attention only. On a processor with AMX vLLM would take kernels that refuse
            # float32, and that keep copies of the weights from the engine's start.
            "attention_config": {"backend": "CPU_MLA"},
        },
        forks_workers=True,
    ),
}
"""Platforms, best first."""
