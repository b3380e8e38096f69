"""Gated delta nets of transformers over packs: every sequence begins with an empty state.

Their layers take a pack as one sequence and, without the kernels of one vendor, ignore its bounds:
the state and the convolution of one sequence would reach into the next, and no error is raised. So
a layer gets the sequences of a pack as rows of a batch, padded at the end, where a causal layer has
no effect on earlier tokens. Sequences with equally many chunks share a batch: the delta rule pads
each row to whole chunks anyway.

Shapes: S tokens of the pack, R sequences with equally many chunks, L tokens of the longest of them,
H hidden size.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

_CHUNK = 64
"""Tokens that the delta rule takes at once."""


def gated_delta_nets(network: nn.Module) -> Iterator[Any]:
    """Yield the layers of linear attention of a network."""
    # Before FSDP2 renames the classes.
    return (each for each in network.modules() if type(each).__name__.endswith("GatedDeltaNet"))


def separate_sequences(network: nn.Module) -> None:
    """Make each gated delta net of a network take the sequences of a pack one by one."""
    for module in gated_delta_nets(network):
        module.forward = partial(_forward, module, module.forward)


def _forward(
    module: Any, whole: Callable[[Tensor], Tensor], hidden_states: Tensor, **_: Any
) -> Tensor:
    going = module.mindrl_pass
    going.attended += 1
    assert going.pack.attending.shared is None, "validated: prompts are not shared"
    return by_sequence(whole, hidden_states, going.pack.packing.lengths)


def by_sequence(
    layer: Callable[[Tensor], Tensor], hidden_1SH: Tensor, lengths: Sequence[int]
) -> Tensor:
    """Return a causal layer's output for each sequence of a pack alone; [1, S, H]."""
    parts = list(torch.split(hidden_1SH[0], list(lengths)))
    alike: dict[int, list[int]] = {}
    for index, length in enumerate(lengths):
        alike.setdefault(-(-length // _CHUNK), []).append(index)
    for indices in alike.values():
        made_RLH = layer(pad_sequence([parts[index] for index in indices], batch_first=True))
        for row_LH, index in zip(made_RLH, indices, strict=True):
            parts[index] = row_LH[: lengths[index]]
    return torch.cat(parts)[None]
