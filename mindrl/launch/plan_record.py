"""Predictions of a run's plan, recorded for its page."""

from mindrl.memory.plan import MemoryPlan
from mindrl.platform.device import Platform
from mindrl.preflight.derived_numbers import derived_numbers
from mindrl.preflight.run_shardings import RunPlan


def plan_record(plan: RunPlan, platform: Platform, memory: MemoryPlan) -> dict[str, object]:
    """Return the content of `plan.json`; `memory` is the plan of the training ranks.

    Predictions have the names of the measured metrics; `*` stands for any text, and the metrics
    that match are added.
    """
    out, back = memory.copied_bytes
    return {
        "numbers": derived_numbers(plan.config, platform),
        "predicted": {
            "memory/device_peak_bytes_max": memory.peak_bytes,
            "memory/host_arena_bytes_max": int(memory.host_bytes.max()),
            "bytes/to_host_*": int(out.sum()),
            "bytes/to_device_*": int(back.sum()),
        },
    }
