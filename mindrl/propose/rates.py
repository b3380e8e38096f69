"""What a step of an engine and a trained token take, by the sizes of a model and a device's rates.

Pure, by the cost model of docs/how-to/plan-a-run.md.
"""

from mindrl.models.decoder import ELEMENT_BYTES, forward_cost, parameters_of
from mindrl.models.description import ModelDescription
from mindrl.platform.device_models import DeviceModel
from mindrl.propose.costs import COMPUTE_SHARE, GIGA, LAYER_LAUNCH, LINK_SHARE, MEMORY_SHARE
from mindrl.propose.decoding import Rates

_BYTES = ELEMENT_BYTES["bfloat16"]
_PASSES = 5
"""That a trained token takes: the reference's, and an update's forward, backward and again."""


def rates_of(model: ModelDescription, device: DeviceModel, *, replica_devices: int) -> Rates:
    """Return the rates of a replica of so many devices and of a device that trains."""
    linear, _ = forward_cost(model)
    sizes = parameters_of(model)
    dense = sum(sizes.dense) + sizes.embedding + sizes.head
    weights = (dense + sum(sizes.experts)) * _BYTES
    memory = device.memory_gbps * GIGA * MEMORY_SHARE * replica_devices
    operations = device.tflops * 1e12 * COMPUTE_SHARE
    heads = model.num_key_value_heads * model.head_dim
    cached = 2 * model.num_hidden_layers * heads * _BYTES
    token = linear / (operations * replica_devices)
    link = device.network_gbps * GIGA * LINK_SHARE
    return Rates(
        engine_step=weights / memory + model.num_hidden_layers * LAYER_LAUNCH,
        sequence_step=token,
        context_token=cached / memory,
        prompt_token=token,
        trained_token=_PASSES * linear / operations,
        switch=weights / link,
        publish=weights / replica_devices / link,
        replica_devices=replica_devices,
    )
