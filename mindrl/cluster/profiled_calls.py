"""Selects the calls of a worker to profile, and their folders."""

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from mindrl.config.profiler import ProfilerConfig, Stage
from mindrl.platform.device import DeviceKind

_STAGE_OF: Mapping[str, Stage | None] = {
    "generate_sequences": "actor_generate",
    "advance_sequences": "actor_generate",
    "compute_log_prob": "actor_compute_log_prob",
    "compute_ref_log_prob": "reference_compute_log_prob",
    "compute_teacher_log_prob": "teacher_compute_log_prob",
    "compute_values": "critic_compute_values",
    "compute_rewards": None,
    "compute_scores": None,
    "update": "actor_update",
    "update_critic": "critic_update",
    "send_weights": None,
    "receive_weights": None,
}
"""Stage by method; None: no named stage."""


class ProfiledCalls:
    """Profiles the configured calls of one worker."""

    def __init__(
        self, config: ProfilerConfig, kind: DeviceKind, rank: int, name: str, run_folder: Path
    ) -> None:
        """Set the rank of the worker in its world, and the name of its folder."""
        self.config, self.kind = config, kind
        self.is_profiled = config.profile_ranks is None or rank in config.profile_ranks
        self.folder = Path(config.profile_save_path or run_folder / "profile") / name
        self.counts: Counter[Path] = Counter()

    def of(self, method: str, step: int | None) -> AbstractContextManager[None]:
        """Profile the body, a call in a step, if configured."""
        config, stage = self.config, _STAGE_OF.get(method)
        is_wanted = method in _STAGE_OF if config.stage is None else stage in config.stage
        if not self.is_profiled or step not in config.profiled_steps or not is_wanted:
            return nullcontext()
        # Imported late because it imports torch.
        from mindrl.platform.profiler import ProfileSettings, profiled  # noqa: PLC0415

        place = self.folder / f"step-{step}"
        self.counts[place / method] += 1
        settings = ProfileSettings(
            kind=self.kind,
            of_host=config.profile_with_cpu,
            of_device=config.of_device,
            with_memory=config.profile_with_memory,
            with_shapes=config.profile_record_shapes,
            with_stacks=config.profile_with_module,
            level=config.profile_level,
            export_type=config.profile_export_type,
            analyses=config.profile_analysis,
        )
        return profiled(settings, place / f"{method}-{self.counts[place / method]}")
