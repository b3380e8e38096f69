"""Tasks for the planner of runs, on models whose sizes are shipped."""

from pathlib import Path
from typing import Any

from mindrl.models.description import read_description
from mindrl.platform.device_models import device_model
from mindrl.propose.candidates import Task

MODELS = Path(__file__).parents[3] / "configs" / "models"


def asked(model: str = "Qwen2.5-7B", device: str = "ascend-910b-64g", **changes: Any) -> Task:
    """Ask for 32 prompts of 8 responses, 2048 tokens each, on 16 devices."""
    folder, chosen = str(MODELS / model), device_model(device)
    values: dict[str, Any] = {
        "load": folder,
        "model": read_description(folder, to_plan=True),
        "device": chosen,
        "devices": 16,
        "devices_per_node": chosen.devices_per_node,
        "host_bytes": chosen.host_memory_gib << 30,
        "prompt_tokens": 2048,
        "response_tokens": 2048,
        "prompts": 32,
        "samples": 8,
        "algorithm": "grpo",
    }
    return Task(**values | changes)
