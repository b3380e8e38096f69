"""The network of Nemotron in plain torch, with its split over tensor-parallel ranks.

Norms of a mean and a deviation whose weight counts from 1, a part of each head that turns with the
position, and a feed-forward part of two matrices with a squared ReLU between them.

Shapes: S tokens, N heads, M key-value heads, D width of a head, H hidden size.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from mindrl.training.archon.network import StagePart
from mindrl.training.archon.own_network import PackTokens
from own_nemotron.spec import NemotronArgs


class Norm(nn.LayerNorm):
    """A norm that is 1 where its weight is 0."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - so torch calls it
        """Scale and move the last dimension."""
        return functional.layer_norm(
            input, self.normalized_shape, self.weight + 1.0, self.bias, self.eps
        )


class Attention(nn.Module):
    """Causal attention of heads that turn in part."""

    def __init__(self, args: NemotronArgs) -> None:
        super().__init__()
        H, D, bias = args.hidden, args.head_dim, args.attention_bias
        self.args = args
        self.q_proj = nn.Linear(H, args.heads * D, bias=bias)
        self.k_proj = nn.Linear(H, args.key_value_heads * D, bias=bias)
        self.v_proj = nn.Linear(H, args.key_value_heads * D, bias=bias)
        self.o_proj = nn.Linear(args.heads * D, H, bias=bias)

    def forward(self, hidden_1SH: Tensor, tokens: PackTokens) -> Tensor:
        """Mix; a rank has some of the heads, however many."""
        query_SND, key_SMD, value_SMD = (
            projection(hidden_1SH)[0].unflatten(-1, (-1, self.args.head_dim))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query_SND, key_SMD = self._turned(query_SND, tokens), self._turned(key_SMD, tokens)
        mixed_SND = tokens.attend(query_SND, key_SMD, value_SMD)
        return self.o_proj(mixed_SND.flatten(1))[None]

    def _turned(self, heads_SND: Tensor, tokens: PackTokens) -> Tensor:
        size = self.args.turned
        steps = torch.arange(0, size, 2, device=heads_SND.device, dtype=torch.float32)
        frequencies = self.args.rope_theta ** (-steps / size)
        angles = torch.outer(tokens.positions_S.float(), frequencies).repeat(1, 2)[:, None]
        turns, stays = heads_SND.split((size, heads_SND.size(-1) - size), -1)
        first, second = turns.chunk(2, -1)
        cosines, sines = angles.cos().to(turns.dtype), angles.sin().to(turns.dtype)
        return torch.cat((turns * cosines + torch.cat((-second, first), -1) * sines, stays), -1)


class FeedForward(nn.Module):
    """Two matrices and a squared ReLU."""

    def __init__(self, args: NemotronArgs) -> None:
        super().__init__()
        self.up_proj = nn.Linear(args.hidden, args.inner, bias=args.mlp_bias)
        self.down_proj = nn.Linear(args.inner, args.hidden, bias=args.mlp_bias)

    def forward(self, hidden_1SH: Tensor) -> Tensor:
        """Return hidden states."""
        return self.down_proj(functional.relu(self.up_proj(hidden_1SH)).square())


class Layer(nn.Module):
    """A layer."""

    def __init__(self, args: NemotronArgs) -> None:
        super().__init__()
        self.input_layernorm = Norm(args.hidden, args.norm_eps)
        self.self_attn = Attention(args)
        self.post_attention_layernorm = Norm(args.hidden, args.norm_eps)
        self.mlp = FeedForward(args)

    def forward(self, hidden_1SH: Tensor, tokens: PackTokens) -> Tensor:
        """Return hidden states."""
        hidden_1SH = hidden_1SH + self.self_attn(self.input_layernorm(hidden_1SH), tokens)
        return hidden_1SH + self.mlp(self.post_attention_layernorm(hidden_1SH))


class Decoder(nn.Module):
    """The layers of a stage under their numbers in the model, and what lies at its ends."""

    def __init__(self, args: NemotronArgs, part: StagePart) -> None:
        super().__init__()
        if part.is_first:
            self.embed_tokens = nn.Embedding(args.vocabulary, args.hidden)
        self.layers = nn.ModuleDict({str(at): Layer(args) for at in part.layers})
        if part.is_last:
            self.norm = Norm(args.hidden, args.norm_eps)


class Nemotron(nn.Module):
    """The whole of it, or a stage; its parameters are called as in the files."""

    def __init__(self, args: NemotronArgs, part: StagePart) -> None:
        super().__init__()
        self.part = part
        self.model = Decoder(args, part)
        if part.is_last and not args.tied:
            # Read by the engine: logits are made of a few tokens at a time.
            self.lm_head = nn.Linear(args.hidden, args.vocabulary, bias=False)

    @property
    def layers(self) -> list[nn.Module]:
        """Those of this stage."""
        return [*self.model.layers.values()]

    def forward(self, given: Tensor, tokens: PackTokens) -> Tensor:
        """Turn tokens [1, S], or the hidden states of the stage before, into [1, S, H]."""
        hidden_1SH = self.model.embed_tokens(given) if self.part.is_first else given
        for layer in self.layers:
            hidden_1SH = layer(hidden_1SH, tokens)
        return self.model.norm(hidden_1SH) if self.part.is_last else hidden_1SH


def parallelise(network: Nemotron, shared: Callable[[nn.Module], None]) -> None:
    """Say what ranks share: hidden states that go in are whole, those that come out are summed."""
    for layer in network.layers:
        shared(layer.self_attn)
        shared(layer.mlp)
