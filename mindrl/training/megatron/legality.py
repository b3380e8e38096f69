"""What Megatron demands of a model's sizes, and of the order of the ranks. Imports no torch.

Every finding about a size names the nearest legal values.

torch sorts the ranks of a group, so coordinates must rise with the rank. The orders tried here are
mixed-radix numberings, in which the sizes of the dimensions are taken apart into prime digits and
the digits are interleaved in every way.
"""

from collections.abc import Iterator
from itertools import islice
from math import prod

import numpy as np

from mindrl.config.finding import Finding, broken, divisors_near, must_divide, nearest_divisors
from mindrl.layouts.layout import TrainLayout
from mindrl.layouts.rank_order import RankOrder, merged
from mindrl.models.description import ModelDescription
from mindrl.models.legality import Keys, tensor_parallel_findings, without_experts

_MOST_ORDERS = 20_000
_LOCAL = frozenset({"tp", "cp", "etp", "ep"})
"""Dimensions whose groups stay inside a node if they are there in Megatron's own order."""


def megatron_findings(
    model: ModelDescription, layout: TrainLayout, keys: Keys
) -> Iterator[Finding]:
    """Say what keeps Megatron from cutting a model by a layout.

    Needs words for `tp`, `cp`, `pp`, `vpp`, `ep` and `etp` where they are above 1, and for
    `layers_per_chunk` where it is given.
    """
    heads = list(tensor_parallel_findings(model, layout.tp, keys))
    yield from heads
    if layout.tp > 1 and model.mla:
        yield from _latent_rows(model, layout.tp, keys["tp"])
    elif not heads:
        rows = (model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim
        yield from must_divide(keys.get("tp", ""), layout.tp, "the rows of the fused QKV", rows)
    if layout.cp > 1 and not heads:
        yield from _context_parallel(model, layout, keys["cp"])
    if layout.vpp > 1 and layout.pp == 1:
        yield broken(keys["vpp"], layout.vpp, f"needs {keys['pp']} of 2 or more, found 1", 1)
    judged = _even_layers if layout.layers_per_chunk is None else _given_layers
    yield from judged(model.num_hidden_layers, layout, keys)
    if model.moe is None:
        sizes = {"ep": layout.ep, "etp": layout.etp}
        yield from (without_experts(keys[name], size) for name, size in sizes.items() if size > 1)
    else:
        width = model.moe.intermediate_size
        yield from must_divide(keys.get("ep", ""), layout.ep, "num_experts", model.moe.num_experts)
        yield from must_divide(keys.get("etp", ""), layout.etp, "moe_intermediate_size", width)


def _context_parallel(
    model: ModelDescription, layout: TrainLayout, field: str
) -> Iterator[Finding]:
    """Judge the heads of a tensor-parallel rank, which context-parallel ranks share."""
    heads = model.num_attention_heads // layout.tp
    yield from must_divide(field, layout.cp, "the attention heads of a tensor-parallel rank", heads)
    key_value_heads = max(1, model.num_key_value_heads // layout.tp)
    if model.mla is None and key_value_heads % layout.cp and layout.cp % key_value_heads:
        need = (
            f"must divide the key-value heads of a tensor-parallel rank, {key_value_heads}, or be "
            f"a multiple of them; nearest: {nearest_divisors(key_value_heads, layout.cp)}"
        )
        yield broken(field, layout.cp, need, *divisors_near(key_value_heads, layout.cp))


def _latent_rows(model: ModelDescription, tp: int, field: str) -> Iterator[Finding]:
    """Judge the down projections, whose rows are cut by tensor-parallel rank too."""
    assert model.mla is not None
    if model.mla.q_lora_rank is not None:
        yield from must_divide(field, tp, "q_lora_rank", model.mla.q_lora_rank)
    rows = model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    yield from must_divide(field, tp, "kv_lora_rank + qk_rope_head_dim", rows)


def _even_layers(layers: int, layout: TrainLayout, keys: Keys) -> Iterator[Finding]:
    sizes = {keys[name]: size for name in ("pp", "vpp") if (size := getattr(layout, name)) > 1}
    for finding in must_divide(
        " times ".join(sizes), prod(sizes.values()), "num_hidden_layers", layers
    ):
        uneven = f"; or give {keys['layers_per_chunk']}" if "layers_per_chunk" in keys else ""
        field, size = list(sizes.items())[-1]
        others = prod(sizes.values()) // size
        legal = divisors_near(layers // others, size) if layers % others == 0 else ()
        yield Finding(f"{finding}{uneven}", field, size, legal)


def _given_layers(layers: int, layout: TrainLayout, keys: Keys) -> Iterator[Finding]:
    given, chunks = layout.layers_per_chunk or (), layout.pp * layout.vpp
    if len(given) != chunks or sum(given) != layers or min(given) < 1:
        need = f"must be {chunks} numbers of 1 or more that add to num_hidden_layers={layers}"
        least, more = divmod(layers, chunks)
        even = tuple(least + (chunk < more) for chunk in range(chunks))
        yield broken(keys["layers_per_chunk"], given, need, *([even] if least else []))


def legal_orders(own: RankOrder, ranks_per_node: int) -> Iterator[RankOrder]:
    """Yield the orders that one grid can be given instead of Megatron's own, which comes first."""
    local = {name for name, _ in own.digits} & _LOCAL
    stay = [name for name in sorted(local) if _inside_nodes(own, name, ranks_per_node)]
    for order in islice(_interleavings(own), _MOST_ORDERS):
        if tensor_ranks_lie_closest(order) and all(
            _inside_nodes(order, name, ranks_per_node) for name in stay
        ):
            yield order


def _interleavings(own: RankOrder) -> Iterator[RankOrder]:
    """Yield every order of the prime digits of all dimensions, Megatron's own first."""
    yield own
    left = {name: _prime_factors(radix) for name, radix in own.digits}

    def grow(digits: tuple[tuple[str, int], ...]) -> Iterator[tuple[tuple[str, int], ...]]:
        if not any(left.values()):
            yield digits
            return
        for name, factors in left.items():
            if factors:
                radix = factors.pop()
                yield from grow((*digits, (name, radix)))
                factors.append(radix)

    empty = tuple((name, 1) for name, radix in own.digits if radix == 1)
    seen = {own.digits}
    for digits in grow(()):
        joined = merged(digits) + empty
        if joined not in seen:
            seen.add(joined)
            yield RankOrder(digits=joined)


def _prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


def _inside_nodes(order: RankOrder, dimension: str, ranks_per_node: int) -> bool:
    """Say whether every group of a dimension lies inside one node."""
    first = np.zeros(1, dtype=np.int64)
    weight = 1
    for name, radix in order.digits:
        if name != dimension:
            first = np.add.outer(first, weight * np.arange(radix)).ravel()
        weight *= radix
    last = first + order.width(dimension)
    return bool((first // ranks_per_node == last // ranks_per_node).all())


def tensor_ranks_lie_closest(order: RankOrder) -> bool:
    """Say whether Megatron's token dispatcher can use an order: etp before ep.

    It reads what the ranks that share experts say as [expert parallel, expert tensor parallel].
    """
    names = [name for name, radix in order.digits if radix > 1 and name in ("etp", "ep")]
    return names == sorted(names, reverse=True)
