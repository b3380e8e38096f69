"""A module that mindrl has not written, as a network of the engine: its head, and who has what.

Its parameters bear the folder's names, and it is shared by tensor-parallel ranks in place: each has
its parts of them, and what the module reads are those parts, as plain tensors.

Shapes: S tokens of this rank, H hidden size, V tokens of the vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from mindrl.models.description import ModelDescription
from mindrl.models.other_family import OtherFamily
from mindrl.training.archon.network import Network, NetworkSettings, StagePart
from mindrl.training.archon.tensor import Linear, TensorParallel, local


class GivenNetwork(Network):
    """What networks of users and of transformers have in common."""

    def __init__(
        self,
        network: nn.Module,
        model: ModelDescription,
        part: StagePart,
        settings: NetworkSettings,
    ) -> None:
        """Take a module without memory; where values are asked for it has no head of its own."""
        nn.Module.__init__(self)
        assert model.other is not None, "a family that mindrl knows has a network of its own"
        self.part, self.parallel, self.settings = part, settings.parallel, settings
        self.is_value, self.balance = settings.head == "value", None
        self.other = model.other
        self.network: Any = network
        self._layers: list[Any] = []
        if self.is_value and part.is_last:
            self.score = Linear(model.hidden_size, 1, self.parallel, cut=None)

    @property
    def layers(self) -> list[Any]:
        """Those of this stage."""
        return self._layers

    def head_weight(self) -> Tensor:
        """Return what turns hidden states into this rank's logits or values: see `Network`."""
        if self.is_value:
            return local(self.score.weight)
        holder, name = holder_of(self.network, self.other.head)
        return local(getattr(holder, name))

    def twins(self) -> dict[str, dist.ProcessGroup]:
        """Return the parameters that other tensor-parallel ranks have too: none."""
        return {}

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters under the names of the folder; a tied one once."""
        if not recurse:
            return
        yield from self.network.named_parameters(prefix, recurse, remove_duplicate)
        if self.is_value and self.part.is_last:
            begin = f"{prefix}." if prefix else ""
            yield from self.score.named_parameters(f"{begin}score", recurse, remove_duplicate)

    def before_head(self, hidden_1SH: Tensor) -> Tensor:
        """Return the hidden states of all tokens, for what reads them: see `Network.forward`."""
        return (self.parallel.share if self.is_value else self.parallel.enter)(hidden_1SH)


def holder_of(network: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that has a parameter, and its name there."""
    path, _, last = name.rpartition(".")
    return network.get_submodule(path), last


def deal_out(
    network: nn.Module,
    other: OtherFamily,
    parallel: TensorParallel,
    is_sum: Callable[[str, nn.Module], bool],
) -> None:
    """Give each rank its parts of a whole module, and of the vocabulary its own tokens.

    `is_sum` says of a module, by its name too, whether the gradient of what ranks have whole in it
    is the sum of what each finds.
    """
    assert other.cuts is not None, "is refused before"
    names, ends = (name for name, _ in other.tensors), (other.embedding, other.head)
    cuts = dict(zip(names, other.cuts, strict=True)) | dict.fromkeys(ends, 0)
    made: dict[Tensor, nn.Parameter] = {}
    for path, module in [*network.named_modules()]:
        begin = f"{path}." if path else ""
        # A tied head is no tensor of the folder, and comes behind its embedding.
        held = {
            name: (whole, cuts.get(begin + name, 0))
            for name, whole in module._parameters.items()
            if whole is not None
        }
        for name, (whole, cut) in held.items():
            part = made.setdefault(whole, parallel.parameter(*whole.shape, cut=cut))
            module._parameters[name] = part
        if f"{begin}weight" == other.embedding:
            _look_up_own_tokens(module, parallel)
        if held:
            sums = {name: cut is None and is_sum(path, module) for name, (_, cut) in held.items()}
            # Ranks add up what columns give, so each adds its share of a bias.
            shares = {"bias": parallel.size} if cuts.get(f"{begin}weight") == 1 else {}
            module.forward = partial(_with_plain, module, module.forward, sums, shares)


def enters(module: nn.Module, turn: Callable[[Tensor], Tensor]) -> None:
    """Turn what a module is given first into something else."""
    module.register_forward_pre_hook(lambda _, given: (turn(given[0]), *given[1:]))


def leaves(module: nn.Module, turn: Callable[[Tensor], Tensor]) -> None:
    """Turn what a module gives into something else."""
    module.register_forward_hook(lambda _, __, made: turn(made))


def _with_plain(
    module: nn.Module,
    forward: Callable[..., Any],
    sums: Mapping[str, bool],
    shares: Mapping[str, int],
    *given: Any,
    **named: Any,
) -> Any:
    """Call a module that reads its parameters as plain tensors of this rank.

    `sums` are the parameters: whether the whole gradient is the sum of what each rank finds.
    """
    here = vars(module)
    for name, is_sum in sums.items():
        parameter: Any = module._parameters[name]
        here[name] = local(parameter, sums=is_sum) / shares.get(name, 1)
    try:
        return forward(*given, **named)
    finally:
        for name in sums:
            del here[name]


def _look_up_own_tokens(module: Any, parallel: TensorParallel) -> None:
    """Let an embedding look up the tokens of this rank; what another holds comes from there."""
    look_up, rows = module.forward, module.weight.to_local().size(0)
    first = parallel.rank * rows
    if module.padding_idx is not None:
        # Of this token torch makes no gradient.
        place = module.padding_idx - first
        module.padding_idx = place if 0 <= place < rows else None

    def forward(tokens_1S: Tensor) -> Tensor:
        place_1S = tokens_1S - first
        is_own_1S = (place_1S >= 0) & (place_1S < rows)
        found = look_up(place_1S.clamp(0, rows - 1))
        return parallel.leave(found * is_own_1S[..., None])

    module.forward = forward
