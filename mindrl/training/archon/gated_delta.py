"""Gated delta nets: linear attention with one state per head and sequence (arXiv:2412.06464).

Tensor-parallel ranks have some heads each, with their part of the convolution and their states. A
pack is computed at once: each sequence starts with an empty state, and the convolution sees no
token of another one. States and decays are float32 in any data type.

Shapes: S tokens of the pack, C channels of queries, keys and values of this rank, T tokens that the
convolution covers, M value heads of this rank, K width of a key head, V of a value head, G chunks
of L tokens, each of one sequence, R sequences, H hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from mindrl.models.description import ModelDescription
from mindrl.models.gated_delta import CHUNK
from mindrl.platform.attention import Packing
from mindrl.training.archon.tensor import Linear, TensorParallel, local

_NORM_EPS = 1e-6
"""Added to the squared length of queries and keys."""


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """The tokens of a pack in chunks: first chunks of all sequences, second chunks, and so on."""

    tokens_GL: Tensor
    """int64; place of each token in the pack, S where a sequence has ended."""
    places_S: Tensor
    """int64; place of each token of the pack in the flattened chunks."""
    active: tuple[int, ...]
    """Number of sequences that have a first chunk, a second one, and so on. Sequences with more
    chunks come first, so the numbers fall."""
    spread_S: Tensor
    """int64; place of each token if empty tokens precede every sequence, for the convolution."""

    @classmethod
    def of(cls, packing: Packing, convolution: int) -> Self:
        """Return the chunks of a pack; `convolution` is the number of tokens that it covers."""
        lengths, device = torch.tensor(packing.lengths), packing.cumulative.device
        starts = torch.tensor(packing.starts[:-1])
        counts = -(-lengths // CHUNK)
        order = counts.argsort(descending=True, stable=True)
        active = [int((counts > at).sum()) for at in range(int(counts.max()))]
        inside, pieces = torch.arange(CHUNK), []
        for at, number in enumerate(active):
            rows = order[:number, None]
            place = at * CHUNK + inside
            end = packing.starts[-1]
            pieces.append(torch.where(place < lengths[rows], starts[rows] + place, end))
        tokens_GL = torch.cat(pieces)
        flat = tokens_GL.flatten()
        of_slots = torch.arange(len(lengths)).repeat_interleave(lengths)
        spread_S = torch.arange(packing.starts[-1]) + (of_slots + 1) * (convolution - 1)
        return cls(
            tokens_GL=tokens_GL.to(device),
            places_S=flat.argsort(stable=True)[: packing.starts[-1]].to(device),
            active=tuple(active),
            spread_S=spread_S.to(device),
        )


class Convolution(nn.Module):
    """A causal convolution inside each sequence, with its own weights for each channel."""

    def __init__(self, channels: int, covered: int, parallel: TensorParallel) -> None:
        """Build the convolution on the meta device, for this rank's channels."""
        super().__init__()
        self.weight = parallel.parameter(channels, 1, covered, cut=0)

    def forward(self, mixed_SC: Tensor, chunks: Chunks) -> Tensor:
        """Return the convolved channels, [S, C]."""
        return convolved(mixed_SC, local(self.weight), chunks)


class GatedNorm(nn.Module):
    """Root-mean-square norm of each head, times a gate."""

    def __init__(self, width: int, eps: float, parallel: TensorParallel) -> None:
        """Build the norm on the meta device; it is the same for all heads."""
        super().__init__()
        self.weight = parallel.parameter(width)
        self.eps, self.sums = eps, parallel.size > 1

    def forward(self, mixed_SMV: Tensor, gate_SMV: Tensor) -> Tensor:
        """Return the normed heads times the activated gate."""
        weight_V = local(self.weight, sums=self.sums)
        normed = functional.rms_norm(mixed_SMV.float(), (len(weight_V),), None, self.eps)
        scaled = weight_V * normed.to(mixed_SMV.dtype)
        return (scaled * functional.silu(gate_SMV.float())).to(mixed_SMV.dtype)


class LinearAttention(nn.Module):
    """A gated delta net, of which this rank has some heads."""

    def __init__(self, model: ModelDescription, parallel: TensorParallel) -> None:
        """Build the layer on the meta device."""
        super().__init__()
        delta, hidden = model.delta, model.hidden_size
        assert delta is not None, "the model has no gated delta nets"
        self.delta, self.parallel = delta, parallel
        mixed, heads = sum(delta.mixed_rows), delta.value_heads
        if delta.interleaved:
            self.in_proj_qkvz = Linear(hidden, mixed + delta.value_rows, parallel)
            self.in_proj_ba = Linear(hidden, 2 * heads, parallel)
        else:
            self.in_proj_qkv = Linear(hidden, mixed, parallel)
            self.in_proj_z = Linear(hidden, delta.value_rows, parallel)
            self.in_proj_b = Linear(hidden, heads, parallel)
            self.in_proj_a = Linear(hidden, heads, parallel)
        self.conv1d = Convolution(mixed, delta.convolution, parallel)
        self.A_log = parallel.parameter(heads, cut=0)
        self.dt_bias = parallel.parameter(heads, cut=0)
        self.norm = GatedNorm(delta.value_width, model.rms_norm_eps, parallel)
        self.out_proj = Linear(delta.value_rows, hidden, parallel, cut=1)

    def forward(self, hidden_1SH: Tensor, chunks: Chunks) -> Tensor:
        """Return the output of the layer, in the shape of the hidden states."""
        read_SH = self.parallel.enter(hidden_1SH)[0]
        mixed_SC, gate_SC, rate_SM, step_SM = self._projected(read_SH)
        rate_SM = rate_SM.sigmoid()
        step_SM = functional.softplus(step_SM.float() + local(self.dt_bias))
        decay_SM = -local(self.A_log).float().exp() * step_SM
        made_SMV = self._mixed(mixed_SC, rate_SM, decay_SM, chunks)
        normed_SMV = self.norm(made_SMV, gate_SC.reshape(len(gate_SC), -1, self.delta.value_width))
        return self.parallel.leave(self.out_proj(normed_SMV.flatten(1))[None])

    def _projected(self, read_SH: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values in one tensor, the gate, the rate and the decay."""
        delta = self.delta
        if not delta.interleaved:
            parts = self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a
            return tuple(part(read_SH) for part in parts)
        heads, values = delta.key_heads // self.parallel.size, delta.value_rows // delta.key_heads
        by_head = self.in_proj_qkvz(read_SH).unflatten(-1, (heads, -1))
        widths = [delta.key_width, delta.key_width, values, values]
        *mixed, gate = (part.flatten(1) for part in by_head.split(widths, -1))
        rate, step = self.in_proj_ba(read_SH).unflatten(-1, (heads, -1)).chunk(2, -1)
        return torch.cat(mixed, -1), gate, rate.flatten(1), step.flatten(1)

    # Not compiled: loops over the chunks of sequences.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _mixed(self, mixed_SC: Tensor, rate_SM: Tensor, decay_SM: Tensor, chunks: Chunks) -> Tensor:
        delta, size = self.delta, self.parallel.size
        made_SC = functional.silu(self.conv1d(mixed_SC, chunks))
        parts = torch.split(made_SC, [rows // size for rows in delta.mixed_rows], dim=-1)
        widths = delta.key_width, delta.key_width, delta.value_width
        query, key, value = (
            _by_head(part, width) for part, width in zip(parts, widths, strict=True)
        )
        mixed_SMV = delta_rule((query, key, value), rate_SM, decay_SM, chunks)
        return mixed_SMV.to(mixed_SC.dtype)


def convolved(mixed_SC: Tensor, weight_C1T: Tensor, chunks: Chunks) -> Tensor:
    """Return the causal convolution of each sequence's channels, [S, C]."""
    before, sequences = weight_C1T.size(-1) - 1, chunks.active[0]
    room = mixed_SC.new_zeros(len(mixed_SC) + sequences * before, mixed_SC.size(1))
    spread = room.index_copy(0, chunks.spread_S, mixed_SC)
    made = functional.conv1d(spread.T[None], weight_C1T, groups=len(weight_C1T))[0]
    return made.T.index_select(0, chunks.spread_S - before)


def delta_rule(
    heads: Sequence[Tensor], rate_SM: Tensor, decay_SM: Tensor, chunks: Chunks
) -> Tensor:
    """Return the outputs of each sequence's states for its queries: float32 [S, M, V].

    A state S of a head begins with zeros. A token lets it decay, writes its value under its key,
    and reads: S <- exp(decay) S; S <- S + rate (value - S key) key^T; S query / sqrt(K). The
    equations of a chunk are solved together, as in section 3.3 of the paper.

    Args:
        heads: Queries and keys [S, N, K], of which each serves M / N value heads, and values
            [S, M, V].
        rate_SM: Rates, 0 to 1.
        decay_SM: Logarithms of the decays.
        chunks: The tokens by sequence.
    """
    query, key, value = (each.float() for each in heads)
    times = value.size(1) // key.size(1)
    query, key = (_of_length_1(each).repeat_interleave(times, 1) for each in (query, key))
    query = query * query.size(-1) ** -0.5
    # [G, M, L, width]; tokens past an end have rate 0, so they write nothing.
    query, key, value, rate, decay = (
        _in_chunks(each, chunks)
        for each in (query, key, value, rate_SM[..., None].float(), decay_SM[..., None])
    )
    since_GML = decay[..., 0].cumsum(-1)
    between_GMLL = (since_GML[..., :, None] - since_GML[..., None, :]).tril()
    lower_GMLL = between_GMLL.exp().tril()
    system = (rate * key) @ key.mT * lower_GMLL
    reads, kept = query @ key.mT * lower_GMLL, since_GML.exp()[..., None]
    both = torch.cat((rate * value, rate * key * kept), -1)
    solved = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True)
    values, keys = torch.split(solved, [value.size(-1), key.size(-1)], -1)
    left = (since_GML[..., -1:] - since_GML).exp()[..., None]
    given = (values, keys, query * kept, reads, key * left, kept[..., -1:, :])
    made_GMLV = _through_states(given, chunks.active)
    return made_GMLV.transpose(1, 2).flatten(0, 1).index_select(0, chunks.places_S)


def _through_states(given: Sequence[Tensor], active: Sequence[int]) -> Tensor:
    """Update the states of all sequences chunk by chunk; return their outputs for the queries."""
    state_RMKV, answers = None, []
    for values, keys, queries, reads, written, kept in zip(
        *(torch.split(each, list(active)) for each in given), strict=True
    ):
        if state_RMKV is None:
            answers.append(reads @ values)
            state_RMKV = written.mT @ values
            continue
        state_RMKV = state_RMKV[: len(values)]
        new = values - keys @ state_RMKV
        answers.append(queries @ state_RMKV + reads @ new)
        state_RMKV = state_RMKV * kept + written.mT @ new
    return torch.cat(answers)


def _in_chunks(given: Tensor, chunks: Chunks) -> Tensor:
    """Lay out [S, M, width] as [G, M, L, width], zeros after the end of a sequence."""
    padded = functional.pad(given, (0, 0, 0, 0, 0, 1))
    flat = padded.index_select(0, chunks.tokens_GL.flatten())
    # Batched products would copy another order of dimensions, and keep the copies.
    return flat.view(*chunks.tokens_GL.shape, *given.shape[1:]).transpose(1, 2).contiguous()


def _of_length_1(heads: Tensor) -> Tensor:
    return heads * (heads.square().sum(-1, keepdim=True) + _NORM_EPS).rsqrt()


def _by_head(flat: Tensor, width: int) -> Tensor:
    return flat.view(len(flat), -1, width)
