"""Section `profiler_config`: timelines and profiles of a run."""

from typing import Literal

from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, Count, PathText, PositiveInt

Stage = Literal[
    "actor_generate",
    "actor_compute_log_prob",
    "reference_compute_log_prob",
    "teacher_compute_log_prob",
    "critic_compute_values",
    "actor_update",
    "critic_update",
]


@dataclass(frozen=True, kw_only=True, config=SECTION)
class ProfilerConfig:
    """Timelines of steps, and profiles of workers."""

    trace_steps: Count = 2
    """Number of steps at the start of the run whose timeline is written to `trace/`, for Perfetto
    or chrome://tracing. SIGUSR1 to the driver writes that of the next step, even with 0."""
    profile: bool = False
    """Profile workers with `torch.profiler`, on an NPU with `torch_npu.profiler`, in the steps,
    ranks and stages selected by the keys below. Such steps are slower; they also have a
    timeline."""
    profile_step_start: PositiveInt = 1
    """First profiled step."""
    profile_step_end: PositiveInt = 2
    """Step after the last profiled one."""
    profile_ranks: tuple[Count, ...] | None = None
    """Profiled ranks of the workers, and of each rollout replica on separate devices. None: all."""
    stage: tuple[Stage, ...] | None = None
    """Profiled stages, with separate files for each call. None: all of these, and also the scores
    of a reward model and the transfer of weights to replicas."""
    profile_save_path: PathText | None = None
    """Folder of the profiles. None: `profile/` in the run folder."""
    profile_with_cpu: bool = True
    """Profile the host."""
    profile_with_npu: bool = True
    """Profile the device, an NPU or a GPU."""
    profile_with_memory: bool = False
    """Profile allocations."""
    profile_record_shapes: bool = False
    """Record shapes of the operands."""
    profile_with_module: bool = False
    """Record Python stacks, and the modules that call operators."""
    profile_level: Literal["level_none", "level0", "level1", "level2"] = "level0"
    """On an NPU: CANN's level of detail."""
    profile_export_type: Literal["text", "db"] = "text"
    """On an NPU: format of the files."""
    profile_analysis: bool = False
    """On an NPU: convert the files as they are written; otherwise `torch_npu.profiler` does it
    later."""

    @property
    def of_device(self) -> bool:
        """Whether a device of any kind is profiled."""
        return self.profile_with_npu

    @property
    def profiled_steps(self) -> range:
        """Steps in which workers are profiled."""
        return range(self.profile_step_start, self.profile_step_end) if self.profile else range(0)
