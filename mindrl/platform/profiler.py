"""Profiles of what this process does, by the profiler of its kind of device."""

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
    """What a profile holds."""

    kind: DeviceKind
    of_host: bool
    of_device: bool
    """Of a CPU there is no other than the host."""
    with_memory: bool
    with_shapes: bool
    with_stacks: bool
    """Those of Python, and modules."""
    level: NpuLevel
    """Of an NPU alone, as the two below."""
    export_type: Literal["text", "db"]
    analyses: bool
    """Make its files readable at once."""


@contextmanager
def profiled(settings: ProfileSettings, folder: Path) -> Iterator[None]:
    """Profile the body, into a folder that nothing else is in."""
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
