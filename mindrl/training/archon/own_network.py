"""A user's own module as a network of the engine: packs, context and tensor parallelism, a head.

The module is plain torch: it turns tokens, or the hidden states of the stage before, into hidden
states, and attends by what it is handed. What its spec says of each tensor is done here, in place,
so names stay; its forward pass sees plain tensors.

Shapes: S tokens of this rank, N heads, M key-value heads, D width of a head, H hidden size.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mindrl.config.own_functions import named_object
from mindrl.errors import ModelError
from mindrl.models.config_file import read_config
from mindrl.models.description import ModelDescription
from mindrl.models.other_family import OtherFamily, OwnFamily
from mindrl.models.own_family import args_of, raised, spec_at
from mindrl.training.archon.network import Network, NetworkSettings, StagePart, attend
from mindrl.training.archon.tensor import Embedding, Linear, TensorParallel, local
from mindrl.training.packs import Pack


@dataclass(frozen=True, kw_only=True)
class PackTokens:
    """The tokens that a module reads: sequences one behind the other."""

    positions_S: Tensor
    """Of each token in its sequence."""
    pack: Pack[Any]
    settings: NetworkSettings

    # Loops over the lengths of sequences: no graph is made of it.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(
        self, query_SND: Tensor, key_SMD: Tensor, value_SMD: Tensor, scale: float | None = None
    ) -> Tensor:
        """Attend causally inside each sequence; returns [S, N, D].

        `scale` multiplies products of queries and keys; None takes 1 / sqrt(D).
        """
        heads = query_SND, key_SMD, value_SMD
        return attend(self.settings.attention, self.settings.context, heads, self.pack, scale)


class OwnNetwork(Network):
    """A module of the user's, or a stage of it, without memory."""

    def __init__(
        self, folder: str, model: ModelDescription, part: StagePart, settings: NetworkSettings
    ) -> None:
        """Build it by the spec, and let tensor-parallel ranks share it.

        Raises:
            ModelError: A part of the spec raised something, or is not what it should be.
        """
        nn.Module.__init__(self)
        own = own_of(model)
        self.part, self.parallel, self.settings = part, settings.parallel, settings
        self.is_value, self.balance = settings.head == "value", None
        self.head = own.head
        self.network = built(folder, own, part)
        self._layers = [*self.network.layers]
        if self.is_value and part.is_last:
            if own.head != own.embedding:
                holder, name = holder_of(self.network, own.head)
                delattr(holder, name)
            self.score = Linear(model.hidden_size, 1, self.parallel, cut=None)
        if self.parallel.size > 1:
            assert model.other is not None
            _share(self.network, model.other, regions_of(own, self.network), self.parallel)

    @property
    def layers(self) -> list[Any]:
        """Those of this stage."""
        return self._layers

    def forward(self, given: Tensor, pack: Pack[Any]) -> Tensor:
        """Go through a stage: see `Network`."""
        positions_S = pack.positions_1S[0]
        tokens = PackTokens(positions_S=positions_S, pack=pack, settings=self.settings)
        hidden_1SH: Tensor = self.network(given, tokens)
        if not self.part.is_last:
            return hidden_1SH
        return (self.parallel.share if self.is_value else self.parallel.enter)(hidden_1SH)

    def head_weight(self) -> Tensor:
        """Return what turns hidden states into this rank's logits or values: see `Network`."""
        if self.is_value:
            return local(self.score.weight)
        holder, name = holder_of(self.network, self.head)
        return local(getattr(holder, name))

    def twins(self) -> dict[str, dist.ProcessGroup]:
        """Return the parameters that other tensor-parallel ranks have too: none."""
        return {}

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters under the names of the folder."""
        if not recurse:
            return
        yield from self.network.named_parameters(prefix, recurse, remove_duplicate)
        if self.is_value and self.part.is_last:
            begin = f"{prefix}." if prefix else ""
            yield from self.score.named_parameters(f"{begin}score", recurse, remove_duplicate)


def own_of(model: ModelDescription) -> OwnFamily:
    """Return what a spec says of a model that has one."""
    assert model.other is not None
    assert model.other.own is not None
    return model.other.own


def built(folder: str, own: OwnFamily, part: StagePart) -> Any:
    """Build the module of a spec without memory, whole as far as tensor parallelism goes.

    Raises:
        ModelError: It raised something, or has no layers.
    """
    path, values = read_config(folder)
    place = spec_at(own.spec).module
    module = named_object(f"{own.spec}: module", place)
    args = args_of(path, values, own.spec)
    try:
        with torch.device("meta"):
            network = module(args, part)  # type: ignore[operator]
    except Exception as error:
        raise ModelError(f"{path}: module {place} of {own.spec} {raised(error)}") from error
    if not isinstance(network, nn.Module):
        raise ModelError(f"{own.spec}: module {place} made no torch.nn.Module")
    layers: Any = getattr(network, "layers", ())
    if [isinstance(each, nn.Module) for each in layers] != [True] * len(part.layers):
        need = f"`layers` must be its {len(part.layers)} layers, modules each"
        raise ModelError(f"{own.spec}: module {place}: {need}")
    return network


def regions_of(own: OwnFamily, network: nn.Module) -> list[nn.Module]:
    """Ask the spec for the modules that tensor-parallel ranks share.

    Raises:
        ModelError: It raised something.
    """
    place = spec_at(own.spec).parallelise
    parallelise: Any = named_object(f"{own.spec}: parallelise", place)
    found: list[nn.Module] = []
    try:
        parallelise(network, found.append)
    except Exception as error:
        raise ModelError(f"parallelise {place} of {own.spec} {raised(error)}") from error
    return found


def holder_of(network: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module that has a parameter, and its name there."""
    path, _, last = name.rpartition(".")
    return network.get_submodule(path), last


def _share(
    network: nn.Module,
    other: OtherFamily,
    regions: Collection[nn.Module],
    parallel: TensorParallel,
) -> None:
    """Give each rank its parts of a whole module, and let hidden states in and out of regions."""
    own, shapes = other.own, dict(other.tensors)
    assert own is not None
    cuts = dict(zip(shapes, own.cuts, strict=True)) | dict.fromkeys((own.embedding, own.head), 0)
    inside = {each for region in regions for each in region.modules()}
    for path, module in [*network.named_modules()]:
        begin = f"{path}." if path else ""
        names = [name for name, each in module._parameters.items() if each is not None]
        if isinstance(module, nn.Embedding) and f"{begin}weight" == own.embedding:
            tokens, width = shapes[own.embedding]
            network.set_submodule(path, Embedding(tokens, width, parallel))
            continue
        sums = {}
        for name in names:
            cut = cuts[begin + name]
            module._parameters[name] = parallel.parameter(*shapes[begin + name], cut=cut)
            sums[name] = cut is None and (module in inside or parallel.sequence)
        if names:
            # Ranks add up what columns give, so each adds its share of a bias.
            shares = {"bias": parallel.size} if cuts.get(f"{begin}weight") == 1 else {}
            module.forward = partial(_with_plain, module, module.forward, sums, shares)
    for region in regions:
        region.register_forward_pre_hook(lambda _, given: (parallel.enter(given[0]), *given[1:]))
        region.register_forward_hook(lambda _, __, made: parallel.leave(made))


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
