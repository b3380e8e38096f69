"""A decoder in plain torch: Qwen2, Qwen3, Qwen3.5 and Llama, dense and with experts; Qwen3-Next.

Its parameters have Hugging Face's names, also in a pipeline stage. It reads packs and returns the
last hidden states, never logits.

Shapes: S tokens of this rank, N heads of this rank, M of them key-value heads, D width of a head, H
hidden size, R context-parallel ranks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from mindrl.models.attention import projected_query_rows
from mindrl.models.decoder import Head
from mindrl.models.description import ModelDescription
from mindrl.platform.attention import Kernel
from mindrl.training.archon.balance import Balance, Spans
from mindrl.training.archon.experts import Mixture, SharedGate
from mindrl.training.archon.gated_delta import Chunks, LinearAttention
from mindrl.training.archon.meshes import ExpertMeshes
from mindrl.training.archon.tensor import Embedding, Linear, Norm, TensorParallel, local
from mindrl.training.context import ContextGroups, attend
from mindrl.training.pack_routes import PackRoutes
from mindrl.training.packs import Attending, Pack
from mindrl.training.rotary import inverse_frequencies


@dataclass(frozen=True, kw_only=True)
class NetworkSettings:
    """Settings of layout and device for a network."""

    parallel: TensorParallel
    context: ContextGroups | None
    """Ranks that share the tokens of a sequence; None for a single rank."""
    attention: Kernel
    head: Head = "vocabulary"
    experts: ExpertMeshes | None = None
    """Groups of a model with experts."""
    balance: Balance | None = None
    """Load-balancing loss of the experts, if it is used."""


class StagePart(NamedTuple):
    """The part of a model in one chunk of a pipeline stage."""

    layers: range
    is_first: bool
    is_last: bool


class Tokens(NamedTuple):
    """Properties of a pack's tokens that every layer needs."""

    cosines_SD: Tensor
    sines_SD: Tensor
    attending: Attending
    spans: Spans | None
    """Spans that experts are balanced over."""
    routes: PackRoutes | None = None
    """Experts of the tokens, to be kept or replayed."""
    chunks: Chunks | None = None
    """The tokens as gated delta nets take them."""


class Attention(nn.Module):
    """Causal attention inside each sequence."""

    def __init__(self, model: ModelDescription, settings: NetworkSettings) -> None:
        super().__init__()
        hidden, D, parallel = model.hidden_size, model.head_dim, settings.parallel
        self.head_dim, self.parallel = D, parallel
        self.kernel, self.context = settings.attention, settings.context
        # With fewer heads than ranks, several ranks have the same head: the head of their queries.
        key_rows = max(model.num_key_value_heads, parallel.size) * D
        twins = parallel.twins
        has_bias = model.attention_bias
        self.has_gates = model.delta is not None
        self.q_proj = Linear(hidden, projected_query_rows(model), parallel, bias=has_bias)
        self.k_proj = Linear(hidden, key_rows, parallel, bias=has_bias, twins=twins)
        self.v_proj = Linear(hidden, key_rows, parallel, bias=has_bias, twins=twins)
        self.o_proj = Linear(model.num_attention_heads * D, hidden, parallel, cut=1)
        if model.qk_norm:
            norm = partial(Norm, D, model.rms_norm_eps, parallel, adds_one=self.has_gates)
            self.q_norm, self.k_norm = norm(of_heads=True), norm(of_heads=True)
        self.has_norms = model.qk_norm

    def forward(self, hidden_1SH: Tensor, tokens: Tokens) -> Tensor:
        """Return the attention output, in the shape of the hidden states."""
        read_SH = self.parallel.enter(hidden_1SH)[0]
        query_SND, key_SMD, value_SMD = (
            projection(read_SH).unflatten(-1, (-1, self.head_dim))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        gate_SND: Tensor | None = None
        if self.has_gates:
            # Each head has its query, then its gate.
            query_SND, gate_SND = (
                query_SND.flatten(1).unflatten(1, (-1, 2, self.head_dim)).unbind(2)
            )
        if self.has_norms:
            query_SND, key_SMD = self.q_norm(query_SND), self.k_norm(key_SMD)
        query_SND, key_SMD = _turned(query_SND, tokens), _turned(key_SMD, tokens)
        mixed_SND = self._attend(query_SND, key_SMD, value_SMD, tokens)
        if gate_SND is not None:
            mixed_SND = mixed_SND * gate_SND.sigmoid()
        return self.parallel.leave(self.o_proj(mixed_SND.flatten(1))[None])

    # Not compiled: loops over the lengths of sequences.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _attend(self, query: Tensor, key: Tensor, value: Tensor, tokens: Tokens) -> Tensor:
        return attend(self.kernel, self.context, (query, key, value), tokens.attending)


class FeedForward(nn.Module):
    """A gated feed-forward part."""

    def __init__(self, hidden: int, inner: int, parallel: TensorParallel) -> None:
        super().__init__()
        self.parallel = parallel
        self.gate_proj = Linear(hidden, inner, self.parallel)
        self.up_proj = Linear(hidden, inner, self.parallel)
        self.down_proj = Linear(inner, hidden, self.parallel, cut=1)

    def forward(self, hidden_1SH: Tensor, *_: object) -> Tensor:
        """Return the output, in the shape of the hidden states."""
        read_1SH = self.parallel.enter(hidden_1SH)
        gated = functional.silu(self.gate_proj(read_1SH)) * self.up_proj(read_1SH)
        return self.parallel.leave(self.down_proj(gated))


class SharedMixture(Mixture):
    """A mixture with a shared expert; a gate decides how much of it each token uses."""

    def __init__(self, model: ModelDescription, settings: NetworkSettings) -> None:
        moe, parallel = model.moe, settings.parallel
        assert moe is not None
        assert settings.experts is not None
        super().__init__(model, parallel, settings.experts, settings.balance)
        inner = moe.shared_intermediate_size
        self.shared_expert = FeedForward(model.hidden_size, inner, parallel)
        self.shared_expert_gate = SharedGate(model, 1, parallel)

    def forward(
        self, hidden_1SH: Tensor, spans: Spans | None, routes: PackRoutes | None = None
    ) -> Tensor:
        """Return the new hidden states: see `Mixture`."""
        shared_1SH: Tensor = self.shared_expert_gate(hidden_1SH) * self.shared_expert(hidden_1SH)
        routed_1SH: Tensor = super().forward(hidden_1SH, spans, routes)
        return routed_1SH + shared_1SH


class Layer(nn.Module):
    """A layer of the decoder."""

    def __init__(self, model: ModelDescription, at: int, settings: NetworkSettings) -> None:
        """Build layer number `at` on the meta device."""
        super().__init__()
        self.input_layernorm = _norm_of_hidden(model, settings.parallel)
        self.is_linear = model.is_linear(at)
        if self.is_linear:
            self.linear_attn = LinearAttention(model, settings.parallel)
        else:
            self.self_attn = Attention(model, settings)
        self.post_attention_layernorm = _norm_of_hidden(model, settings.parallel)
        if model.moe is None or at in model.moe.dense_layers:
            inner, parallel = model.intermediate_size, settings.parallel
            self.mlp: FeedForward | Mixture = FeedForward(model.hidden_size, inner, parallel)
        elif model.moe.gated_shared:
            self.mlp = SharedMixture(model, settings)
        else:
            assert settings.experts is not None
            self.mlp = Mixture(model, settings.parallel, settings.experts, settings.balance)

    def forward(self, hidden_1SH: Tensor, tokens: Tokens) -> Tensor:
        """Return the new hidden states, in the same shape."""
        read_1SH = self.input_layernorm(hidden_1SH)
        if self.is_linear:
            hidden_1SH = hidden_1SH + self.linear_attn(read_1SH, tokens.chunks)
        else:
            hidden_1SH = hidden_1SH + self.self_attn(read_1SH, tokens)
        read_1SH = self.post_attention_layernorm(hidden_1SH)
        fed_1SH: Tensor = self.mlp(read_1SH, tokens.spans, tokens.routes)
        return hidden_1SH + fed_1SH


class Decoder(nn.Module):
    """Layers of a stage, under their numbers in the model."""

    def __init__(self, model: ModelDescription, part: StagePart, settings: NetworkSettings) -> None:
        super().__init__()
        vocabulary, hidden, parallel = model.vocab_size, model.hidden_size, settings.parallel
        if part.is_first:
            self.embed_tokens = Embedding(vocabulary, hidden, parallel)
        self.layers = nn.ModuleDict({str(at): Layer(model, at, settings) for at in part.layers})
        if part.is_last:
            self.norm = _norm_of_hidden(model, parallel)


class Network(nn.Module):
    """A decoder with its head, or a stage of it, on the meta device."""

    def __init__(self, model: ModelDescription, part: StagePart, settings: NetworkSettings) -> None:
        super().__init__()
        self.part, self.parallel, self.balance = part, settings.parallel, settings.balance
        self.is_value = settings.head == "value"
        self.frequencies_F = inverse_frequencies(model)
        self.convolution = model.delta and model.delta.convolution
        self.model = Decoder(model, part, settings)
        if part.is_last and self.is_value:
            self.score = Linear(model.hidden_size, 1, self.parallel, cut=None)
        elif part.is_last and not (model.tie_word_embeddings and part.is_first):
            self.lm_head = Linear(model.hidden_size, model.vocab_size, self.parallel)

    @property
    def layers(self) -> list[Layer]:
        """Layers of this stage."""
        found: list[Any] = list(self.model.layers.values())
        return found

    def experts_apart(self) -> Iterator[tuple[Any, DeviceMesh, int]]:
        """Yield the modules of routed experts, shared by other ranks than the rest of a layer.

        Each comes with the ranks that share it, and how many of them read the same tokens.
        """
        for mixture in [each for each in self.modules() if isinstance(each, Mixture)]:
            yield mixture.experts, mixture.meshes.data, 1

    def forward(self, given: Tensor, pack: Pack[Any]) -> Tensor:
        """Run a stage.

        Args:
            given: Tokens [1, S] for the first stage, hidden states of the previous stage for
                others.
            pack: The pack of those tokens.

        Returns:
            Hidden states; after the last stage normed, and those of all tokens [1, S, H].
        """
        hidden_1SH = self.model.embed_tokens(given) if self.part.is_first else given
        positions_S = pack.positions_1S[0].float()
        angles_SF = torch.outer(positions_S, self.frequencies_F.to(positions_S.device))
        return self.through(hidden_1SH, angles_SF, pack)

    def through(
        self,
        hidden_1SH: Tensor,
        angles_SF: Tensor,
        pack: Pack[Any],
        after_layers: Sequence[Callable[[Tensor], Tensor]] = (),
    ) -> Tensor:
        """Run the layers of a stage: see `forward`.

        `angles_SF` turn each pair of a head's dimensions, in radians; functions of the hidden
        states follow the first layers.
        """
        spans = None if self.balance is None else self.balance.spans(pack)
        chunks = Chunks.of(pack.packing, self.convolution) if self.convolution else None
        angles = _cosines_and_sines(angles_SF, hidden_1SH.dtype)
        tokens = Tokens(*angles, pack.attending, spans, pack.routes, chunks)
        for at, layer in enumerate(self.model.layers.values()):
            hidden_1SH = layer(hidden_1SH, tokens)
            if at < len(after_layers):
                hidden_1SH = after_layers[at](hidden_1SH)
        return self._before_head(hidden_1SH) if self.part.is_last else hidden_1SH

    def head_weight(self) -> Tensor:
        """Return this rank's weight for logits, [V, H], or for values, [1, H].

        Call it after a forward pass, which gathers the weights.
        """
        holder: Any = self.score if self.is_value else getattr(self, "lm_head", None)
        return local((self.model.embed_tokens if holder is None else holder).weight)

    def forget(self) -> None:
        """Drop the results of the weights so far, when other weights replace them."""

    def twins(self) -> dict[str, dist.ProcessGroup]:
        """Return the parameters whose rows other tensor-parallel ranks hold too, with the group."""
        return {
            f"{path}.{name}": module.twins
            for path, module in self.named_modules()
            if isinstance(module, Linear) and module.twins is not None
            for name in module.cut_names()
        }

    def _before_head(self, hidden_1SH: Tensor) -> Tensor:
        # A value head is replicated, so each rank already has the whole gradient.
        gather = self.parallel.share if self.is_value else self.parallel.enter
        return gather(self.model.norm(hidden_1SH))


def _norm_of_hidden(model: ModelDescription, parallel: TensorParallel) -> Norm:
    sizes, adds_one = (model.hidden_size, model.rms_norm_eps), model.delta is not None
    return Norm(*sizes, parallel, of_heads=False, adds_one=adds_one)


def _cosines_and_sines(angles_SF: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angles_S1D = torch.cat((angles_SF, angles_SF), -1)[:, None]
    return angles_S1D.cos().to(dtype), angles_S1D.sin().to(dtype)


def _turned(heads_SND: Tensor, tokens: Tokens) -> Tensor:
    width = tokens.cosines_SD.size(-1)
    rotated_SND = heads_SND[..., :width]
    first, second = rotated_SND.chunk(2, -1)
    turned = torch.cat((-second, first), -1)
    made_SND = rotated_SND * tokens.cosines_SD + turned * tokens.sines_SD
    if width == heads_SND.size(-1):
        return made_SND
    return torch.cat((made_SND, heads_SND[..., width:]), -1)
