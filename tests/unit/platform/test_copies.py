"""Copies that run beside the computation, on a device that does everything as late as it may.

On a device with real streams tests/gpu/test_offload.py says more.
"""

import torch
from late_device import LateDevice

from mindrl.platform.copies import Copies


def on_a_late_device() -> tuple[Copies, LateDevice]:
    copies, device = Copies("cpu"), LateDevice()
    copies.device, copies.stream = device, device.Stream()
    return copies, device


def test_the_host_copies_at_once() -> None:
    copies, target, done = Copies("cpu"), torch.zeros(3), []
    copies.start([(target, torch.ones(3))], lambda: done.append(1))
    assert target.tolist() == [1, 1, 1]
    assert done == [1]


def test_at_most_two_copies_are_under_way_and_what_follows_them_keeps_their_order() -> None:
    copies, _ = on_a_late_device()
    done: list[int] = []
    targets = [torch.zeros(2) for _ in range(5)]
    for index, target in enumerate(targets):
        source = torch.full((2,), index + 1.0)
        copies.start([(target, source)], lambda index=index: done.append(index))
        assert len(copies.pending) == min(index + 1, 2)
    assert done == [0, 1, 2]
    assert [target[0].item() for target in targets] == [1, 2, 3, 0, 0]
    copies.finish()
    assert done == [0, 1, 2, 3, 4]
    assert not copies.pending
    assert [target[0].item() for target in targets] == [1, 2, 3, 4, 5]


def test_what_follows_a_copy_finds_all_its_parts_done() -> None:
    copies, _ = on_a_late_device()
    targets, seen = [torch.zeros(2), torch.zeros(1)], list[float]()
    pairs = [(target, torch.full_like(target, 7.0)) for target in targets]
    copies.start(pairs, lambda: seen.extend(torch.cat(targets).tolist()))
    assert (seen, torch.cat(targets).tolist()) == ([], [0, 0, 0])
    copies.finish()
    assert seen == [7, 7, 7]


def test_a_copy_waits_for_what_the_device_computes_and_its_caller_does_not() -> None:
    copies, device = on_a_late_device()
    source, target = torch.zeros(3), torch.zeros(3)
    device.compute(source, 5.0)
    copies.start([(target, source)], lambda: None)
    assert source.tolist() == [0, 0, 0]
    copies.finish()
    assert target.tolist() == [5, 5, 5]
