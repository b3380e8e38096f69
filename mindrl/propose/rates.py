"""Times of an engine step and a trained token, from model sizes and a device's rates.

Pure, by the cost model of docs/how-to/plan-a-run.md.
"""

from mindrl.layouts.layout import RolloutLayout
from mindrl.models.decoder import ELEMENT_BYTES, forward_cost, parameters_of
from mindrl.models.description import ModelDescription
from mindrl.platform.device_models import DeviceModel
from mindrl.propose.costs import COMPUTE_SHARE, GIGA, LAYER_LAUNCH, LINK_SHARE, MEMORY_SHARE
from mindrl.propose.decoding import Rates
from mindrl.rollout.planning import cache_sizes

_BYTES = ELEMENT_BYTES["bfloat16"]
_PASSES = 5
"""Forward-pass equivalents per trained token: reference, forward, backward (2), recomputation."""


def rates_of(model: ModelDescription, device: DeviceModel, *, replica_devices: int) -> Rates:
    """Return the rates of a replica with `replica_devices` devices and of a training device."""
    linear, _ = forward_cost(model)
    sizes = parameters_of(model)
    dense = sum(sizes.dense) + sizes.embedding + sizes.head
    weights = (dense + sum(sizes.experts)) * _BYTES
    memory = device.memory_gbps * GIGA * MEMORY_SHARE
    operations = device.tflops * 1e12 * COMPUTE_SHARE
    cached = cache_sizes(model, RolloutLayout(tp=replica_devices), "bfloat16").per_token
    token = linear / (operations * replica_devices)
    link = device.network_gbps * GIGA * LINK_SHARE
    return Rates(
        engine_step=weights / (memory * replica_devices) + model.num_hidden_layers * LAYER_LAUNCH,
        sequence_step=token,
        context_token=cached / memory,
        prompt_token=token,
        trained_token=_PASSES * linear / operations,
        switch=weights / link,
        publish=weights / replica_devices / link,
        replica_devices=replica_devices,
    )
