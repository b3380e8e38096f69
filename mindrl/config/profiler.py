"""Section `profiler_config`: what is recorded of the time of a run."""

from typing import Literal

from pydantic.dataclasses import dataclass

from mindrl.config.section import SECTION, Count, PathText, PositiveInt

Stage = Literal[
    "actor_generate",
    "actor_compute_log_prob",
    "reference_compute_log_prob",
    "critic_compute_values",
    "actor_update",
    "critic_update",
]


@dataclass(frozen=True, kw_only=True, config=SECTION)
class ProfilerConfig:
    """Timelines of steps, and profiles of what workers do in them."""

    trace_steps: Count = 2
    """Steps at the start of the run whose timeline is written to `trace/`, for Perfetto or
    chrome://tracing. SIGUSR1 to the driver writes that of the next step, also with 0."""
    profile: bool = False
    """Profile workers with `torch.profiler`, on an NPU with `torch_npu.profiler`, in the steps, on
    the ranks and in the stages that the keys below name. Such steps are slower; they have a
    timeline too."""
    profile_step_start: PositiveInt = 1
    """First step that is profiled."""
    profile_step_end: PositiveInt = 2
    """Step behind the last one that is."""
    profile_ranks: tuple[Count, ...] | None = None
    """Ranks of the workers that are profiled, and within each rollout replica on devices of its
    own. None: all."""
    stage: tuple[Stage, ...] | None = None
    """What is profiled, each call in files of its own. None: all of these, scores of a reward model
    and weights on their way to replicas too."""
    profile_save_path: PathText | None = None
    """Folder of the profiles. None: `profile/` in the run folder."""
    profile_with_cpu: bool = True
    """What the host does."""
    profile_with_npu: bool = True
    """What the device does, an NPU or a GPU."""
    profile_with_memory: bool = False
    """Allocations."""
    profile_record_shapes: bool = False
    """Shapes of the operands."""
    profile_with_module: bool = False
    """Python's stacks, and the modules that operators were called in."""
    profile_level: Literal["level_none", "level0", "level1", "level2"] = "level0"
    """On an NPU: how much CANN records of it."""
    profile_export_type: Literal["text", "db"] = "text"
    """On an NPU: the form of the files."""
    profile_analysis: bool = False
    """On an NPU: make the files readable as they are written; else `torch_npu.profiler` does it
    later."""

    @property
    def of_device(self) -> bool:
        """Whether a device is profiled, whatever kind it is of."""
        return self.profile_with_npu

    @property
    def profiled_steps(self) -> range:
        """Steps in which workers are profiled."""
        return range(self.profile_step_start, self.profile_step_end) if self.profile else range(0)
