"""Sizes, tensors and spec of Nemotron. Imports no torch, because checks and plans read it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindrl.models.own_family import ModelSpec, OwnTensor


@dataclass(frozen=True, kw_only=True)
class NemotronArgs:
    """What the network is made from."""

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    turned: int
    """Of each head so many numbers turn with the position."""
    attention_bias: bool
    mlp_bias: bool
    tied: bool


def args(values: Mapping[str, Any]) -> NemotronArgs:
    """Read a config.json."""
    if values["hidden_act"] != "relu2":
        raise ValueError(f"hidden_act={values['hidden_act']!r}, only 'relu2' is built")
    head_dim, rope = values["head_dim"], values["rope_parameters"]
    return NemotronArgs(
        vocabulary=values["vocab_size"],
        hidden=values["hidden_size"],
        inner=values["intermediate_size"],
        layers=values["num_hidden_layers"],
        heads=values["num_attention_heads"],
        key_value_heads=values["num_key_value_heads"],
        head_dim=head_dim,
        norm_eps=values["norm_eps"],
        rope_theta=rope["rope_theta"],
        turned=int(head_dim * rope["partial_rotary_factor"]),
        attention_bias=values["attention_bias"],
        mlp_bias=values["mlp_bias"],
        tied=values["tie_word_embeddings"],
    )


def table(args: NemotronArgs) -> dict[str, OwnTensor]:
    """Name the tensors of the files, and how tensor-parallel ranks share each."""
    H, D = args.hidden, args.head_dim
    rows: dict[str, OwnTensor] = {"model.embed_tokens.weight": OwnTensor((args.vocabulary, H))}
    for at in range(args.layers):
        here = f"model.layers.{at}."
        rows |= _norm(f"{here}input_layernorm", H) | _norm(f"{here}post_attention_layernorm", H)
        heads = {"q": args.heads, "k": args.key_value_heads, "v": args.key_value_heads}
        for letter, count in heads.items():
            name = f"{here}self_attn.{letter}_proj"
            rows |= _matrix(name, count * D, H, 0, bias=args.attention_bias)
        name = f"{here}self_attn.o_proj"
        rows |= _matrix(name, H, args.heads * D, 1, bias=args.attention_bias)
        rows |= _matrix(f"{here}mlp.up_proj", args.inner, H, 0, bias=args.mlp_bias)
        rows |= _matrix(f"{here}mlp.down_proj", H, args.inner, 1, bias=args.mlp_bias)
    rows |= _norm("model.norm", H)
    if not args.tied:
        rows["lm_head.weight"] = OwnTensor((args.vocabulary, H))
    return rows


def _norm(name: str, size: int) -> dict[str, OwnTensor]:
    return {f"{name}.{each}": OwnTensor((size,)) for each in ("weight", "bias")}


def _matrix(name: str, rows: int, columns: int, cut: int, *, bias: bool) -> dict[str, OwnTensor]:
    """Cut rows with their bias, or columns, whose sums have a bias that no rank has a part of."""
    found = {f"{name}.weight": OwnTensor((rows, columns), cut)}
    if bias:
        found[f"{name}.bias"] = OwnTensor((rows,), 0 if cut == 0 else None)
    return found


SPEC = ModelSpec(
    model_type="nemotron",
    args=args,
    table=table,
    module="own_nemotron.network:Nemotron",
    parallelise="own_nemotron.network:parallelise",
    embedding="model.embed_tokens.weight",
    head="lm_head.weight",
    sizes="dtpc",
)
