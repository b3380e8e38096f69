"""Sizes of a mixture's routes: the numbers of the experts that each token uses in each layer."""

from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription, MoeDescription


def number_bytes(moe: MoeDescription) -> int:
    """Return the bytes of a stored expert; number 0 means that the token chooses."""
    return 1 if moe.num_experts < 256 else 2


def route_bytes_per_token(model: ModelDescription, layout: TrainLayout) -> int:
    """Return the bytes of a token's routes on the pipeline stage with most layers of experts."""
    moe = model.moe
    if moe is None:
        return 0
    chunks = layout.chunks(model.num_hidden_layers)
    routed = [
        sum(layer not in moe.dense_layers for at in layout.chunks_of(stage) for layer in chunks[at])
        for stage in range(layout.pp)
    ]
    return max(routed) * moe.num_experts_per_tok * number_bytes(moe)
