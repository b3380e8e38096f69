"""Devices by name: what a plan takes them to be, and what an unknown name is answered with."""

import pytest

from mindrl.errors import ConfigError
from mindrl.platform.device import PLATFORMS
from mindrl.platform.device_models import DEVICE_MODELS, device_model

# GiB that torch reports as the total of one device, from its own error messages.
REPORTED_GIB = {"ascend-910b-64g": 60.96, "ascend-910b-32g": 29.49, "ascend-910c-64g": 61.27}


@pytest.mark.parametrize(("name", "gib"), REPORTED_GIB.items())
def test_a_plan_takes_at_most_what_torch_reports_and_no_100_mib_less(name: str, gib: float) -> None:
    assert 0 <= gib * 1024 - device_model(name).memory_mib < 100


@pytest.mark.parametrize(
    ("name", "gigabytes", "gbps"),
    [("ascend-950dt-144g", 144, 4000), ("ascend-950pr-128g", 128, 1600)],
)
def test_a_950_is_planned_as_announced_with_95_percent_of_its_memory(
    name: str, gigabytes: int, gbps: float
) -> None:
    model = device_model(name)
    assert 0 <= 0.95 * gigabytes * 10**9 - model.memory_bytes < 100 << 20
    assert (model.memory_gbps, model.tflops, model.node_gbps) == (gbps, 500, 1000)


def test_every_device_is_of_a_known_kind_and_faster_inside_its_node_than_across_nodes() -> None:
    for name, model in DEVICE_MODELS.items():
        assert model.name == name
        assert model.kind in PLATFORMS
        assert model.memory_gbps > model.node_gbps > model.network_gbps >= model.host_gbps


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ascend-910b-46g", "did you mean ascend-910b-64g or ascend-910c-64g?"),
        ("H100-80G", "did you mean nvidia-h100-80g or nvidia-a100-80g?"),
        ("abacus", "use " + ", ".join(DEVICE_MODELS)),
    ],
)
def test_an_unknown_device_is_refused_with_the_nearest_names(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        device_model(name)
    assert str(raised.value) == f"--device {name}: unknown device; {hint}"
