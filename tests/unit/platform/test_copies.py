"""Copies that run beside the computation; torch's own stand-ins for streams keep the order here.

On a device with real streams tests/gpu/test_offload.py says more.
"""

import torch

from mindrl.platform.copies import Copies


def with_streams() -> Copies:
    """Queue copies as on a device: torch.cpu has streams and events that are done at once."""
    copies = Copies("cpu")
    copies.device, copies.stream = torch.cpu, torch.cpu.Stream()
    return copies


def test_the_host_copies_at_once() -> None:
    copies, target, done = Copies("cpu"), torch.zeros(3), []
    copies.start([(target, torch.ones(3))], lambda: done.append(1))
    assert target.tolist() == [1, 1, 1]
    assert done == [1]


def test_at_most_two_copies_are_under_way_and_what_follows_them_keeps_their_order() -> None:
    copies, done = with_streams(), list[int]()
    targets = [torch.zeros(2) for _ in range(5)]
    for index, target in enumerate(targets):
        source = torch.full((2,), index + 1.0)
        copies.start([(target, source)], lambda index=index: done.append(index))
        assert len(copies.pending) == min(index + 1, 2)
    assert done == [0, 1, 2]
    copies.finish()
    assert done == [0, 1, 2, 3, 4]
    assert not copies.pending
    assert [target[0].item() for target in targets] == [1, 2, 3, 4, 5]
