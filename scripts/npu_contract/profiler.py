"""Names of torch_npu's profiler that mindrl uses."""

from mindrl.platform.npu_versions import TORCH_NPU
from npu_contract.entry import Entry

_FILE = "mindrl/platform/profiler.py"
_MODULE = "torch_npu.profiler"
_ARGUMENTS = {
    "profile": (
        "activities",
        "experimental_config",
        "on_trace_ready",
        "record_shapes",
        "profile_memory",
        "with_stack",
        "with_modules",
    ),
    "_ExperimentalConfig": ("profiler_level", "export_type"),
    "tensorboard_trace_handler": ("dir_name", "analyse_flag"),
    "supported_activities": (),
    "ProfilerLevel": (),
    "ProfilerLevel.Level_none": (),
    "ProfilerLevel.Level0": (),
    "ProfilerLevel.Level1": (),
    "ProfilerLevel.Level2": (),
    "ExportType": (),
    "ExportType.Text": (),
    "ExportType.Db": (),
}

PROFILER = (
    Entry(pin=TORCH_NPU, kind="module", name=_MODULE, used_by=_FILE, spelled=_MODULE),
    *(
        Entry(
            pin=TORCH_NPU,
            kind="name",
            name=f"{_MODULE}.{name}",
            used_by=_FILE,
            arguments=arguments,
        )
        for name, arguments in _ARGUMENTS.items()
    ),
)
