"""Requirements of the PyTorch-native engine on a model and on the rank order.

Every finding about a size names the nearest legal values. Imports no torch.
"""

from collections.abc import Iterator

from mindrl.config.backends import TRAINING_BACKEND
from mindrl.config.finding import Finding, broken, must_divide
from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder
from mindrl.models.description import ModelDescription
from mindrl.models.legality import (
    Keys,
    context_parallel_findings,
    expert_findings,
    pipeline_findings,
    tensor_parallel_findings,
)
from mindrl.models.other_family import OtherFamily
from mindrl.training.orders import possible_orders


def archon_findings(model: ModelDescription, layout: TrainLayout, keys: Keys) -> Iterator[Finding]:
    """Yield the reasons why the engine cannot build a model or cut it by a layout.

    `keys` must name `tp`, `cp`, `pp`, `vpp`, `ep` and `etp` where they are above 1, and
    `layers_per_chunk` if it is set; `backend` names the key that chooses the engine.
    """
    if unknown := [*_not_built(model)]:
        field = keys.get("backend", "backend")
        text = f"{field}: {', '.join(unknown)} need {TRAINING_BACKEND}"
        yield Finding(text, field, legal=(TRAINING_BACKEND,))
    if model.other:
        yield from _other_family(model, model.other, layout, keys)
    if model.delta and layout.cp > 1:
        need = (
            "must be 1: a gated delta net reads the tokens of a sequence one after the other, and "
            "context-parallel ranks have parts of it"
        )
        yield broken(keys["cp"], layout.cp, need, 1)
    heads = list(tensor_parallel_findings(model, layout.tp, keys))
    if model.delta and not model.other and layout.tp > 1:
        divided = model.delta.key_heads
        heads += must_divide(keys["tp"], layout.tp, "linear_num_key_heads", divided)
    yield from heads
    if not heads:
        yield from context_parallel_findings(model, layout, keys)
    yield from pipeline_findings(model, layout, keys)
    yield from expert_findings(model, layout, keys)


def _other_family(
    model: ModelDescription, other: OtherFamily, layout: TrainLayout, keys: Keys
) -> Iterator[Finding]:
    if other.own:
        yield from _own_network(model, other, layout, keys)
    if other.vision:
        yield from _vision(other, layout, keys)
    if layout.tp > 1:
        yield from _other_cuts(model, other, layout.tp, keys["tp"])
    if model.moe:
        yield from _whole_experts(other, layout, keys)


def _own_network(
    model: ModelDescription, other: OtherFamily, layout: TrainLayout, keys: Keys
) -> Iterator[Finding]:
    """Refuse sizes that the spec of a user's network does not list; `other` is its family."""
    own = other.own
    assert own is not None
    for letter, name in {"t": "tp", "p": "pp", "c": "cp"}.items():
        if (size := getattr(layout, name)) > 1 and letter not in own.sizes:
            need = f"is not among the sizes of {own.spec}, {own.sizes!r}; 1 is legal"
            yield broken(keys[name], size, need, 1)
    if layout.pp > 1 and model.tie_word_embeddings:
        need = f"needs a separate head: {own.spec} ties it to {other.embedding}; 1 is legal"
        yield broken(keys["pp"], layout.pp, need, 1)


def _vision(other: OtherFamily, layout: TrainLayout, keys: Keys) -> Iterator[Finding]:
    """Refuse to cut the layers of a model with a vision tower."""
    if layout.pp > 1:
        need = f"must be 1 for {other.architecture}: mindrl does not cut its layers"
        yield broken(keys["pp"], layout.pp, need, 1)


def _whole_experts(other: OtherFamily, layout: TrainLayout, keys: Keys) -> Iterator[Finding]:
    """Refuse to deal out, or to cut, the experts of a network of transformers."""
    for name in ("ep", "etp"):
        if (size := getattr(layout, name)) > 1:
            need = f"must be 1 for {other.architecture}: each rank computes with all experts"
            yield broken(keys[name], size, need, 1)


def _other_cuts(
    model: ModelDescription, other: OtherFamily, tp: int, field: str
) -> Iterator[Finding]:
    """Refuse a tensor-parallel size that does not fit the cuts of a network from outside mindrl."""
    if other.cuts is None:
        need = f"needs a plan of transformers that shards {other.architecture} as plain matrices"
        yield broken(field, tp, f"{need}; 1 is legal", 1)
        return
    yield from must_divide(field, tp, "num_key_value_heads", model.num_key_value_heads)
    sizes = {
        shape[cut]: name
        for (name, shape), cut in zip(other.tensors, other.cuts, strict=True)
        if cut is not None and name not in (other.embedding, other.head)
    }
    for size, name in sizes.items():
        yield from must_divide(field, tp, f"the cut size of {name}", size)


def _not_built(model: ModelDescription) -> Iterator[str]:
    """Yield the parts of a model that the engine's own network lacks."""
    if model.other:
        return
    if model.mla:
        yield "latent attention"
    if model.fused_projections:
        yield "fused projections"
    if moe := model.moe:
        if moe.shared_intermediate_size and not moe.gated_shared:
            yield "shared experts"
        if moe.score_correction_bias:
            yield "a bias of expert routing"
        if moe.groups > 1:
            yield "expert groups"


def archon_orders(own: RankOrder, ranks_per_node: int) -> Iterator[RankOrder]:
    """Yield the legal orders of a grid, the engine's own first.

    The rows of a tensor are distributed over the ranks that share it in ascending order. In the
    engine's own order the ranks of one `dp` are consecutive; they must be in other orders too, so
    that a grid position determines a rank's rows.
    """
    yield from possible_orders(own, ranks_per_node, _contexts_lie_closest)


def _contexts_lie_closest(order: RankOrder) -> bool:
    names = [name for name, radix in order.digits if radix > 1 and name in ("cp", "dp")]
    return names == sorted(names)
