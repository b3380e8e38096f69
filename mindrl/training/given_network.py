"""A network whose module mindrl did not write: its head, its parameters and their sharding.

Parameters keep the folder's names. Tensor-parallel ranks replace them in place by their own parts,
and the module reads these parts as plain tensors.

Shapes: S tokens of this rank, H hidden size, V tokens of the vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from mindrl.models.decoder import is_of_experts
from mindrl.models.description import ModelDescription
from mindrl.models.other_family import OtherFamily
from mindrl.training.archon.network import Network, NetworkSettings, StagePart
from mindrl.training.archon.tensor import Linear, TensorParallel, local


class GivenNetwork(Network):
    """Common part of networks from users and from transformers."""

    def __init__(
        self,
        network: nn.Module,
        model: ModelDescription,
        part: StagePart,
        settings: NetworkSettings,
    ) -> None:
        """Wrap a module on the meta device, without its own head if `settings.head` is "value"."""
        nn.Module.__init__(self)
        assert model.other is not None, "families that mindrl supports have their own network"
        self.part, self.parallel, self.settings = part, settings.parallel, settings
        self.is_value, self.balance = settings.head == "value", None
        self.other = model.other
        self.network: Any = network
        self._layers: list[Any] = []
        if self.is_value and part.is_last:
            self.score = Linear(model.hidden_size, 1, self.parallel, cut=None)

    @property
    def in_modules(self) -> OtherFamily:
        """The family, with the names of this network's modules in place of those of the files."""
        return self.other

    @property
    def layers(self) -> list[Any]:
        """Layers of this stage."""
        return self._layers

    def head_weight(self) -> Tensor:
        """Return this rank's weight for logits or values: see `Network`."""
        if self.is_value:
            return local(self.score.weight)
        holder, name = holder_of(self.network, self.in_modules.head)
        return local(getattr(holder, name))

    def twins(self) -> dict[str, dist.ProcessGroup]:
        """Return an empty dict: no parameter has copies on other tensor-parallel ranks."""
        return {}

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters under the folder's names; a tied one once."""
        if not recurse:
            return
        yield from self.network.named_parameters(prefix, recurse, remove_duplicate)
        if self.is_value and self.part.is_last:
            begin = f"{prefix}." if prefix else ""
            yield from self.score.named_parameters(f"{begin}score", recurse, remove_duplicate)

    def before_head(self, hidden_1SH: Tensor) -> Tensor:
        """Return the hidden states of all tokens, as the head reads them: see `Network.forward`."""
        return (self.parallel.share if self.is_value else self.parallel.enter)(hidden_1SH)


def holder_of(network: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that owns a parameter, and the parameter's name in it."""
    path, _, last = name.rpartition(".")
    return network.get_submodule(path), last


def cuts_by_name(other: OtherFamily) -> dict[str, int | None]:
    """Return the dimension of each tensor that ranks cut: the vocabulary in embedding and head."""
    assert other.cuts is not None, "validated: the network can be cut"
    names, ends = (name for name, _ in other.tensors), (other.embedding, other.head)
    return dict(zip(names, other.cuts, strict=True)) | dict.fromkeys(ends, 0)


def deal_out(
    network: nn.Module,
    cuts: Mapping[str, int | None],
    parallel: TensorParallel,
    is_sum: Callable[[str, nn.Module], bool],
    embedding: str | None = None,
) -> None:
    """Replace each parameter by this rank's part; the embedding gets its part of the vocabulary.

    `is_sum` takes a module's name and the module. It returns whether the gradient of the module's
    replicated parameters is the sum of the ranks' gradients.
    """
    made: dict[Tensor, nn.Parameter] = {}
    for path, module in [*network.named_modules()]:
        begin = f"{path}." if path else ""
        # A tied head is not a tensor of the folder; its embedding comes first.
        held = {
            name: (whole, cuts.get(begin + name, 0))
            for name, whole in module._parameters.items()
            # Experts stay plain: they are shared over these ranks too.
            if whole is not None and not is_of_experts(begin + name)
        }
        for name, (whole, cut) in held.items():
            part = made.setdefault(whole, parallel.parameter(*whole.shape, cut=cut))
            module._parameters[name] = part
        if f"{begin}weight" == embedding:
            _look_up_own_tokens(module, parallel)
        if held:
            sums = {name: cut is None and is_sum(path, module) for name, (_, cut) in held.items()}
            # The outputs of column-cut matrices are summed over ranks: each adds 1 / size of the
            # bias.
            shares = {"bias": parallel.size} if cuts.get(f"{begin}weight") == 1 else {}
            module.forward = partial(_with_plain, module, module.forward, sums, shares)


def reads_directly(module: nn.Module, child: nn.Module) -> None:
    """Let a module read the parameters of a child that it does not call; after `deal_out`."""
    replicated = {name: False for name, each in child._parameters.items() if each is not None}
    module.forward = partial(_with_plain, child, module.forward, replicated, {})


def enters(module: nn.Module, turn: Callable[[Tensor], Tensor]) -> None:
    """Apply `turn` to a module's first input."""
    module.register_forward_pre_hook(lambda _, given: (turn(given[0]), *given[1:]))


def leaves(module: nn.Module, turn: Callable[[Tensor], Tensor]) -> None:
    """Apply `turn` to a module's output."""
    module.register_forward_hook(lambda _, __, made: turn(made))


def _with_plain(
    module: nn.Module,
    forward: Callable[..., Any],
    sums: Mapping[str, bool],
    shares: Mapping[str, int],
    *given: Any,
    **named: Any,
) -> Any:
    """Call a module with its parameters replaced by this rank's plain tensors.

    `sums` maps each parameter to whether its gradient is the sum of the ranks' gradients; `shares`
    maps parameters to a divisor.
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
    """Make an embedding look up this rank's tokens and sum the vectors over the ranks."""
    look_up, rows = module.forward, module.weight.to_local().size(0)
    first = parallel.rank * rows
    if module.padding_idx is not None:
        # torch computes no gradient for this token.
        place = module.padding_idx - first
        module.padding_idx = place if 0 <= place < rows else None

    def forward(tokens_1S: Tensor) -> Tensor:
        place_1S = tokens_1S - first
        is_own_1S = (place_1S >= 0) & (place_1S < rows)
        found = look_up(place_1S.clamp(0, rows - 1))
        return parallel.leave(found * is_own_1S[..., None])

    module.forward = forward
