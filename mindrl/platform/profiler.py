"""Profiles of this process, by the profiler of its device kind."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from torch.profiler import ProfilerActivity, profile

from mindrl.platform.device import DeviceKind

NpuLevel = Literal["level_none", "level0", "level1", "level2"]


@dataclass(frozen=True, kw_only=True)
class ProfileSettings:
    """Contents of a profile."""

    kind: DeviceKind
    of_host: bool
    of_device: bool
    """Ignored on CPU, where the host is the device."""
    with_memory: bool
    with_shapes: bool
    with_stacks: bool
    """Python stacks, and modules."""
    level: NpuLevel
    """For an NPU only, like the two below."""
    export_type: Literal["text", "db"]
    analyses: bool
    """Whether to convert its files immediately."""


@contextmanager
def profiled(settings: ProfileSettings, folder: Path) -> Iterator[None]:
    """Profile the body and write the result to an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    common: dict[str, Any] = {
        "record_shapes": settings.with_shapes,
        "profile_memory": settings.with_memory,
        "with_stack": settings.with_stacks,
        "with_modules": settings.with_stacks,
    }
    if settings.kind == "npu":
        with _npu_profile(settings, folder, common):
            yield
        return
    asked = {
        ProfilerActivity.CPU: settings.of_host,
        ProfilerActivity.CUDA: settings.of_device and settings.kind == "gpu",
    }
    with profile(activities=[each for each in asked if asked[each]], **common) as made:
        yield
    made.export_chrome_trace(str(folder / "trace.json.gz"))


def _npu_profile(settings: ProfileSettings, folder: Path, common: dict[str, Any]) -> Any:
    npu: Any = import_module("torch_npu.profiler")
    levels, types = npu.ProfilerLevel, npu.ExportType
    asked = {"CPU": settings.of_host, "NPU": settings.of_device}
    return npu.profile(
        activities=[each for each in npu.supported_activities() if asked[each.name]],
        experimental_config=npu._ExperimentalConfig(
            profiler_level={
                "level_none": levels.Level_none,
                "level0": levels.Level0,
                "level1": levels.Level1,
                "level2": levels.Level2,
            }[settings.level],
            export_type={"text": types.Text, "db": types.Db}[settings.export_type],
        ),
        on_trace_ready=npu.tensorboard_trace_handler(str(folder), analyse_flag=settings.analyses),
        **common,
    )
