"""Rates of a replica from the sizes of its model."""

from pathlib import Path

import pytest

from mindrl.layouts.layout import RolloutLayout
from mindrl.platform.device_models import DEVICE_MODELS
from mindrl.preflight.shipped import planned_description
from mindrl.propose.costs import GIGA, MEMORY_SHARE
from mindrl.propose.rates import rates_of
from mindrl.rollout.planning import cache_sizes

MODELS = Path(__file__).parents[3] / "configs/models"
DEVICE = DEVICE_MODELS["ascend-910c-64g"]


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("Qwen2.5-7B", 2),
        # More ranks than KV heads, one latent vector for all heads, layers without a cache.
        ("Qwen2.5-7B", 7),
        ("DeepSeek-V3", 16),
        ("Qwen3-Next-80B-A3B", 4),
    ],
)
def test_a_token_of_the_context_reads_the_cache_that_a_rank_holds(name: str, tensor: int) -> None:
    model = planned_description(str(MODELS / name))
    held = cache_sizes(model, RolloutLayout(tp=tensor), "bfloat16").per_token
    found = rates_of(model, DEVICE, replica_devices=tensor).context_token
    assert found == pytest.approx(held / (DEVICE.memory_gbps * GIGA * MEMORY_SHARE))
