"""The tensors of a model, of any family: which chunk has them, and how ranks share them.

Tensor parallelism cuts heads, the feed-forward width and the padded vocabulary; of a network that
is not mindrl's it cuts what is known of that. Imports no torch.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import EMBEDDING, HEAD, Head, layer_of, logical_shapes
from mindrl.models.description import ModelDescription
from mindrl.models.placement import Shape

Cut = Literal["vocabulary", "key-value heads"] | int | None
"""How tensor-parallel ranks share a tensor: a number is the dimension that falls into equal parts,
None is a tensor that each has whole."""
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
}
"""Of mindrl's own network, by the module that has the tensor."""


class TensorRow(NamedTuple):
    """A tensor of a chunk."""

    tensor: str
    """The logical one that fills it."""
    shape: Shape
    """Of that one, whole."""
    cut: Cut


def rows_by_chunk(
    model: ModelDescription, layout: TrainLayout, head: Head
) -> list[dict[str, TensorRow]]:
    """Return what each chunk of the model has by local names, without routed experts.

    What stands before the layers is in the first chunk, and what stands behind in the last.
    """
    chunks = layout.chunks(model.num_hidden_layers)
    chunk_of = [at for at, layers in enumerate(chunks) for _ in layers]
    cuts = _cuts(model)
    found: list[dict[str, TensorRow]] = [{} for _ in chunks]
    end = 0
    for name, shape in logical_shapes(model, head=head).items():
        if (layer := layer_of(name)) is not None:
            end = -1
        if ".mlp.experts." in name:
            continue
        at = end if layer is None else chunk_of[layer]
        found[at][name] = TensorRow(name, shape, cuts.get(name))
    if head == "vocabulary" and model.tie_word_embeddings and len(chunks) > 1:
        found[-1][HEAD] = found[0][EMBEDDING]
    return found


def _cuts(model: ModelDescription) -> Mapping[str, Cut]:
    """Return how each tensor is cut that is cut at all."""
    if model.other is None:
        names = [name for name in logical_shapes(model) if ".mlp.experts." not in name]
        return {name: _CUTS.get(name.split(".")[-2]) for name in names}
    other = model.other
    if other.cuts is None:
        return {}
    names = [name for name, _ in other.tensors]
    cuts: dict[str, Cut] = dict(zip(names, other.cuts, strict=True))
    cuts[other.embedding] = cuts[other.head] = "vocabulary"
    return cuts
