"""What is read from the answers of `nvidia-smi`."""

from mindrl.platform.probes.device_report import Device, parse_nvidia_smi

DEVICES = """\
0, GPU-11111111-aaaa, NVIDIA H100 80GB HBM3, 81559, 61234, 580.95.05, 0
1, GPU-22222222-bbbb, NVIDIA H100 80GB HBM3, 81559, 4, 580.95.05, 3
2, GPU-33333333-cccc, NVIDIA GeForce RTX 3090, 24576, 12, 580.95.05, [N/A]
"""
PROCESSES = "GPU-11111111-aaaa, 4321\nGPU-11111111-aaaa, 4322\n"


def test_each_line_is_a_device_with_the_processes_on_it() -> None:
    first, second, third = parse_nvidia_smi(DEVICES, PROCESSES)
    assert first == Device(
        index=0,
        name="NVIDIA H100 80GB HBM3",
        health="OK",
        total_mib=81559,
        used_mib=61234,
        processes=(4321, 4322),
    )
    assert second.health == "3 uncorrected memory errors"
    assert (third.index, third.health) == (2, "OK")


def test_no_answer_is_no_device() -> None:
    assert parse_nvidia_smi("", "") == ()
