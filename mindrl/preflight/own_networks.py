"""Check a user's own network before a run: it is built without memory and compared.

Called by a check, in a process without devices and ranks. Imports torch, so import it only if there
is such a network.
"""

from collections.abc import Iterator, Mapping

from torch import nn

from mindrl.errors import ModelError
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription
from mindrl.models.own_family import spec_at
from mindrl.models.placement import Shape
from mindrl.training.archon.network import StagePart
from mindrl.training.archon.own_network import built, own_of, regions_of
from mindrl.training.archon.table import rows_by_chunk
from mindrl.training.given_network import holder_of


def try_network(folder: str, model: ModelDescription) -> None:
    """Build a model from the user's spec, whole and in two stages, and compare it with the table.

    Raises:
        ModelError: It cannot be built, or differs from the table.
        ConfigError: The module or the function cannot be loaded.
    """
    own, layers = own_of(model), model.num_hidden_layers
    layouts = [TrainLayout()]
    if "p" in own.sizes and not model.tie_word_embeddings and layers > 1:
        layouts.append(TrainLayout(pp=2, layers_per_chunk=(1, layers - 1)))
    for layout in layouts:
        chunks = layout.chunks(layers)
        for at, rows in enumerate(rows_by_chunk(model, layout, "vocabulary")):
            part = StagePart(chunks[at], is_first=at == 0, is_last=at == layout.pp - 1)
            network = built(folder, own, part)
            wanted = {name: row.shape for name, row in rows.items()}
            for fault in _faults(network, wanted):
                where = f" in stage {at} of 2" if layout.pp > 1 else ""
                raise ModelError(f"{own.spec}: module {spec_at(own.spec).module}{where}: {fault}")
    if "t" in own.sizes:
        whole = StagePart(range(layers), is_first=True, is_last=True)
        for fault in _unshared(model, built(folder, own, whole)):
            raise ModelError(f"{own.spec}: parallelise {spec_at(own.spec).parallelise}: {fault}")


def _faults(network: nn.Module, wanted: Mapping[str, Shape]) -> Iterator[str]:
    found = {name: tuple(each.shape) for name, each in network.named_parameters()}
    for name, _ in network.named_buffers():
        yield f"buffer {name} is in no file; create it in the forward pass"
    for name in sorted(found.keys() ^ wanted.keys()):
        lacks = "the table has no" if name in found else "it has no"
        yield f"{lacks} {name}"
    for name in found.keys() & wanted.keys():
        if found[name] != wanted[name]:
            yield f"{name} has shape {list(found[name])}, but {list(wanted[name])} in the table"


def _unshared(model: ModelDescription, network: nn.Module) -> Iterator[str]:
    """Yield sharded parameters outside of the modules that sum the ranks' partial results."""
    own, other = own_of(model), model.other
    assert other is not None
    assert other.cuts is not None
    inside = {each for region in regions_of(own, network) for each in region.modules()}
    ends = (other.embedding, other.head)
    for (name, _), cut in zip(other.tensors, other.cuts, strict=True):
        holder, _ = holder_of(network, name)
        if cut is not None and name not in ends and holder not in inside:
            yield f"{name} is split, but its module is not shared by ranks"
    if not isinstance(holder_of(network, other.embedding)[0], nn.Embedding):
        yield f"{other.embedding} must be the weight of a torch.nn.Embedding"
