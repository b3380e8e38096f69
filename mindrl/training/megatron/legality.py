"""Megatron's requirements on a model's sizes and on the rank order. Imports no torch.

Every finding about a size names the nearest legal values.
"""

from collections.abc import Iterator

from mindrl.config.finding import Finding, must_divide
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
from mindrl.training.orders import possible_orders

_GATED_DELTA_NETS = (
    "gated delta nets need archon or fsdp: megatron-core 0.16 has them only with "
    "flash-linear-attention and without packed sequences"
)


def megatron_findings(
    model: ModelDescription, layout: TrainLayout, keys: Keys
) -> Iterator[Finding]:
    """Yield the reasons why Megatron cannot cut a model by a layout.

    `keys` must name `tp`, `cp`, `pp`, `vpp`, `ep` and `etp` where they are above 1, and
    `layers_per_chunk` if it is set; `backend` names the key that chooses the engine.
    """
    if model.delta:
        field = keys.get("backend", "backend")
        yield Finding(f"{field}: {_GATED_DELTA_NETS}", field, legal=("archon",))
    heads = list(tensor_parallel_findings(model, layout.tp, keys))
    yield from heads
    if layout.tp > 1 and model.mla:
        yield from _latent_rows(model, layout.tp, keys["tp"])
    elif not heads:
        rows = (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim
        yield from must_divide(keys.get("tp", ""), layout.tp, "the rows of the fused QKV", rows)
    if not heads:
        yield from context_parallel_findings(model, layout, keys)
    yield from pipeline_findings(model, layout, keys)
    yield from expert_findings(model, layout, keys)


def _latent_rows(model: ModelDescription, tp: int, field: str) -> Iterator[Finding]:
    """Check the down projections, whose rows are also cut over tensor-parallel ranks."""
    assert model.mla is not None
    if model.mla.q_lora_rank is not None:
        yield from must_divide(field, tp, "q_lora_rank", model.mla.q_lora_rank)
    rows = model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    yield from must_divide(field, tp, "kv_lora_rank + qk_rope_head_dim", rows)


def legal_orders(own: RankOrder, ranks_per_node: int) -> Iterator[RankOrder]:
    """Yield the legal orders of a grid, Megatron's own first."""
    yield from possible_orders(own, ranks_per_node, tensor_ranks_lie_closest)


def tensor_ranks_lie_closest(order: RankOrder) -> bool:
    """Return whether Megatron's token dispatcher supports an order: etp before ep.

    It views the data gathered from the ranks that share experts as [expert parallel, expert tensor
    parallel].
    """
    names = [name for name, radix in order.digits if radix > 1 and name in ("etp", "ep")]
    return names == sorted(names, reverse=True)
