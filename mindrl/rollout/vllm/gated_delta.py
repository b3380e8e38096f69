"""Gated delta nets in vLLM: a rank's part of each tensor.

vLLM fuses projections: queries, keys, values and the gate of the output; then the rate and the
decay. Tensor-parallel ranks cut each part by heads, and the convolution likewise. Imports no torch.
"""

from mindrl.models.gated_delta import GatedDeltaNet
from mindrl.models.placement import LocalTensor, Rows, columns, part_of, stack, whole


def gated_delta_part(
    delta: GatedDeltaNet, hidden: int, layer: str, tp: int, tp_rank: int
) -> dict[str, LocalTensor]:
    """Return a rank's part of one layer; `layer` is the prefix of its names."""
    here = f"{layer}linear_attn."
    keys, values = (part_of(rows, tp, tp_rank) for rows in (delta.key_rows, delta.value_rows))
    heads = part_of(delta.value_heads, tp, tp_rank)

    def joined(kind: str) -> list[Rows]:
        """Return the rows of queries, keys and values in the tensor that concatenates them."""
        first = (0, delta.key_rows, 2 * delta.key_rows)
        parts = zip(first, (keys, keys, values), strict=True)
        return [(f"{here}{kind}.weight", (at + start, at + stop)) for at, (start, stop) in parts]

    mixed, rated = f"{here}in_proj_qkvz.weight", f"{here}in_proj_ba.weight"
    output, norm = f"{here}out_proj.weight", f"{here}norm.weight"
    if delta.interleaved:
        # Whole key heads, with the rows that belong to each.
        rows: list[Rows] = [
            (mixed, part_of(2 * (delta.key_rows + delta.value_rows), tp, tp_rank)),
        ]
        rates: list[Rows] = [(rated, part_of(2 * delta.value_heads, tp, tp_rank))]
    else:
        rows = [*joined("in_proj_qkv"), (f"{here}in_proj_z.weight", values)]
        rates = [(f"{here}in_proj_{letter}.weight", heads) for letter in "ba"]
    return {
        mixed: stack(rows, tail=(hidden,)),
        rated: stack(rates, tail=(hidden,)),
        f"{here}conv1d.weight": stack(joined("conv1d"), tail=(1, delta.convolution)),
        f"{here}A_log": stack([(f"{here}A_log", heads)]),
        f"{here}dt_bias": stack([(f"{here}dt_bias", heads)]),
        norm: whole(norm, (delta.value_width,)),
        output: columns(output, hidden, values),
    }
