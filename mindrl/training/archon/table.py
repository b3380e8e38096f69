"""Which chunk has which tensors of a model of any family, and how ranks cut them.

Tensor parallelism cuts heads, the feed-forward width and the padded vocabulary; of a network from
outside mindrl it cuts what the family's plan lists. Imports no torch.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from mindrl.layouts.layout import TrainLayout
from mindrl.models.adapters import LowRank, local_factor_names, names_of_factors
from mindrl.models.decoder import (
    EMBEDDING,
    HEAD,
    Head,
    is_of_experts,
    layer_of,
    logical_shapes,
)
from mindrl.models.description import ModelDescription
from mindrl.models.placement import Shape

Cut = Literal["vocabulary", "key-value heads", "queries, keys, values"] | int | None
"""How tensor-parallel ranks share a tensor: an int is the dimension that is cut into equal parts;
None means that each rank has the whole tensor. Queries, keys and values of a gated delta net are
rows of one tensor, and each is cut by itself."""
_CUTS: Mapping[str, Cut] = {
    "embed_tokens": "vocabulary",
    "lm_head": "vocabulary",
    "q_proj": 0,
    "k_proj": "key-value heads",
    "v_proj": "key-value heads",
    "o_proj": 1,
    "gate_proj": 0,
    "up_proj": 0,
    "down_proj": 1,
    "in_proj_qkv": "queries, keys, values",
    "conv1d": "queries, keys, values",
    "in_proj_z": 0,
    # Whole key heads, with the rows that belong to each.
    "in_proj_qkvz": 0,
    "in_proj_ba": 0,
    "in_proj_b": 0,
    "in_proj_a": 0,
    # Decays, one per value head.
    "linear_attn": 0,
    "out_proj": 1,
}
"""Cuts of mindrl's own network, by the module that has the tensor."""


class TensorRow(NamedTuple):
    """A tensor of a chunk."""

    tensor: str
    """Logical tensor that fills it."""
    shape: Shape
    """Whole shape of the logical tensor."""
    cut: Cut


def rows_by_chunk(
    model: ModelDescription, layout: TrainLayout, head: Head
) -> list[dict[str, TensorRow]]:
    """Return the tensors of each chunk by local name, without routed experts.

    Tensors before the layers are in the first chunk, and those after them in the last.
    """
    chunks = layout.chunks(model.num_hidden_layers)
    chunk_of = [at for at, layers in enumerate(chunks) for _ in layers]
    cuts = _cuts(model)
    found: list[dict[str, TensorRow]] = [{} for _ in chunks]
    end = 0
    for name, shape in logical_shapes(model, head=head).items():
        if (layer := layer_of(name)) is not None:
            end = -1
        if is_of_experts(name):
            continue
        at = end if layer is None else chunk_of[layer]
        found[at][name] = TensorRow(name, shape, cuts.get(name))
    if head == "vocabulary" and model.tie_word_embeddings and len(chunks) > 1:
        found[-1][HEAD] = found[0][EMBEDDING]
    return found


def factor_rows(
    by_chunk: Sequence[Mapping[str, TensorRow]], model: ModelDescription, low_rank: LowRank
) -> list[dict[str, TensorRow]]:
    """Return the factors of adapters on the tensors of each chunk, by local name.

    A is cut along the columns of its matrix, B along the rows.
    """
    names, found = names_of_factors(model, low_rank), []
    for tensors in by_chunk:
        factors: dict[str, TensorRow] = {}
        for local, (tensor, shape, cut) in tensors.items():
            if tensor in names:
                of_first = TensorRow(
                    names[tensor][0], (low_rank.r, shape[1]), 1 if cut == 1 else None
                )
                of_second = TensorRow(
                    names[tensor][1], (shape[0], low_rank.r), None if cut == 1 else cut
                )
                factors |= zip(local_factor_names(local), (of_first, of_second), strict=True)
        found.append(factors)
    return found


def _cuts(model: ModelDescription) -> Mapping[str, Cut]:
    """Return the cut of each tensor that is cut."""
    if model.other is None:
        names = [name for name in logical_shapes(model) if not is_of_experts(name)]
        return {name: _CUTS.get(name.split(".")[-2]) for name in names}
    other = model.other
    if other.cuts is None:
        return {}
    names = [name for name, _ in other.tensors]
    cuts: dict[str, Cut] = dict(zip(names, other.cuts, strict=True))
    cuts[other.embedding] = cuts[other.head] = "vocabulary"
    return cuts
