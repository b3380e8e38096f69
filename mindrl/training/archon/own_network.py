"""A user's own module as a network of the engine: packs, parallelism and a head.

The module is plain torch: it turns tokens, or the hidden states of the previous stage, into hidden
states, and attends with the object that it receives. The cuts of its spec are applied in place, so
names stay; its forward pass sees plain tensors.

Shapes: S tokens of this rank, N heads, M key-value heads, D width of a head, H hidden size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mindrl.config.own_functions import named_object
from mindrl.errors import ModelError
from mindrl.models.config_file import read_config
from mindrl.models.description import ModelDescription
from mindrl.models.other_family import OwnFamily
from mindrl.models.own_family import args_of, raised, spec_at
from mindrl.training.archon.network import NetworkSettings, StagePart
from mindrl.training.context import attend
from mindrl.training.given_network import (
    GivenNetwork,
    cuts_by_name,
    deal_out,
    enters,
    holder_of,
    leaves,
)
from mindrl.training.packs import Pack


@dataclass(frozen=True, kw_only=True)
class PackTokens:
    """Tokens that a module reads: concatenated sequences."""

    positions_S: Tensor
    """Position of each token in its sequence."""
    pack: Pack[Any]
    settings: NetworkSettings

    # Not compiled: loops over the lengths of sequences.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(
        self, query_SND: Tensor, key_SMD: Tensor, value_SMD: Tensor, scale: float | None = None
    ) -> Tensor:
        """Attend causally inside each sequence; returns [S, N, D].

        `scale` multiplies the products of queries and keys; None is 1 / sqrt(D).
        """
        heads = query_SND, key_SMD, value_SMD
        kernel, context = self.settings.attention, self.settings.context
        return attend(kernel, context, heads, self.pack.attending, scale)


class OwnNetwork(GivenNetwork):
    """A user's module, or a stage of it, on the meta device."""

    def __init__(
        self, folder: str, model: ModelDescription, part: StagePart, settings: NetworkSettings
    ) -> None:
        """Build the module by its spec, and cut it over tensor-parallel ranks.

        Raises:
            ModelError: A part of the spec raised an error or has the wrong type.
        """
        own = own_of(model)
        super().__init__(built(folder, own, part), model, part, settings)
        self._layers = [*self.network.layers]
        other, parallel = self.other, self.parallel
        if self.is_value and part.is_last and other.head != other.embedding:
            holder, name = holder_of(self.network, other.head)
            delattr(holder, name)
        if parallel.size == 1:
            return
        regions = regions_of(own, self.network)
        inside = {each for region in regions for each in region.modules()}
        deal_out(
            *(self.network, cuts_by_name(other), parallel),
            lambda _, module: module in inside or parallel.sequence,
            other.embedding,
        )
        for region in regions:
            enters(region, parallel.enter)
            leaves(region, parallel.leave)

    def forward(self, given: Tensor, pack: Pack[Any]) -> Tensor:
        """Run a stage: see `Network`."""
        positions_S = pack.positions_1S[0]
        tokens = PackTokens(positions_S=positions_S, pack=pack, settings=self.settings)
        hidden_1SH: Tensor = self.network(given, tokens)
        return self.before_head(hidden_1SH) if self.part.is_last else hidden_1SH


def own_of(model: ModelDescription) -> OwnFamily:
    """Return the spec data of a model that has a spec."""
    assert model.other is not None
    assert model.other.own is not None
    return model.other.own


def built(folder: str, own: OwnFamily, part: StagePart) -> Any:
    """Build the module of a spec on the meta device, not yet cut over tensor-parallel ranks.

    Raises:
        ModelError: The module raised an error, or has no layers.
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
        raise ModelError(f"{own.spec}: module {place} is not a torch.nn.Module")
    layers: Any = getattr(network, "layers", ())
    if [isinstance(each, nn.Module) for each in layers] != [True] * len(part.layers):
        need = f"`layers` must contain its {len(part.layers)} layers, each a module"
        raise ModelError(f"{own.spec}: module {place}: {need}")
    return network


def regions_of(own: OwnFamily, network: nn.Module) -> list[nn.Module]:
    """Return the modules that tensor-parallel ranks share, by the spec's `parallelise`.

    Raises:
        ModelError: `parallelise` raised an error.
    """
    place = spec_at(own.spec).parallelise
    parallelise: Any = named_object(f"{own.spec}: parallelise", place)
    found: list[nn.Module] = []
    try:
        parallelise(network, found.append)
    except Exception as error:
        raise ModelError(f"parallelise {place} of {own.spec} {raised(error)}") from error
    return found
