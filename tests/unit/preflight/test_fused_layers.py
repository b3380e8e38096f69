"""Notes about fused kernels on devices that have none."""

from pathlib import Path

from checked_runs import MakeConfig

from mindrl.platform.device import PLATFORMS
from mindrl.preflight.checks import fused_layer_warnings


def test_keys_of_fused_kernels_are_noted_on_devices_without_them(
    run_config: MakeConfig,
) -> None:
    keys = [f"megatron_training.use_fused_{name}" for name in ("rmsnorm", "swiglu")]
    config = run_config(Path("model"), dict.fromkeys(keys, True))
    found = {
        kind: [str(each) for each in fused_layer_warnings(config, platform)]
        for kind, platform in PLATFORMS.items()
    }
    assert found["npu"] == []
    assert found["cpu"] == [
        f"{key}=true has no effect on cpu devices: the kernel is for NPUs" for key in keys
    ]
