"""Collectives over gloo that refuse what an NPU's do not carry, in every test of several processes.

HCCL reduces no float64, and MindSpeed's `all_reduce` of one reduces a copy and throws it away: each
rank keeps its own value, and nobody is told.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

_COLLECTIVES = tuple(
    name
    for name in dir(dist.ProcessGroup)
    if re.search("reduce|gather|scatter|broadcast|all_?to_?all|send|recv", name)
)
"""Methods of a process group, to one of which each of torch's functions comes."""


_ALLOWED: list[str] = []
"""Why this process may: a reference in float64 that is itself the test."""


def allow(why: str) -> None:
    """Let this process reduce float64 after all."""
    _ALLOWED.append(why)


def install() -> None:
    """Let every process group of this process refuse float64; call it once."""
    for name in _COLLECTIVES:
        setattr(dist.ProcessGroup, name, _refusing(name, getattr(dist.ProcessGroup, name)))


def _refusing(name: str, carry_out: Callable[..., Any]) -> Callable[..., Any]:
    def refuse_or_carry_out(*arguments: Any, **words: Any) -> Any:
        for tensor in _tensors([*arguments, *words.values()]):
            if tensor.dtype in (torch.float64, torch.complex128) and not _ALLOWED:
                raise TypeError(f"{name} of {tensor.dtype}: an NPU has no such collective")
        return carry_out(*arguments, **words)

    return refuse_or_carry_out


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif isinstance(given, list | tuple):
        for each in given:
            yield from _tensors(each)


def refusals() -> list[str]:
    """Return what is said of a sum, a gathering and a message in float64."""
    doubles = torch.ones(2, dtype=torch.float64)
    found = []
    for carry_out in (
        lambda: dist.all_reduce(doubles),
        lambda: dist.all_gather_into_tensor(doubles, doubles[:1]),
        lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, doubles, 0)]),
    ):
        try:
            carry_out()
        except TypeError as error:
            found.append(str(error))
    dist.all_reduce(doubles.float())
    return found
