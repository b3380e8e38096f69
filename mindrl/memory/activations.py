"""Estimates of the activation memory of forward and backward passes.

They count the large tensors that a layer keeps for its backward pass, as Korthikanti et al. do
(arXiv 2205.05198), with norms and activations in plain torch and with fused attention, whose scores
are never kept. The estimates are not exact: allocators round, kernels use work space, and experts
are not equally busy. Pure Python.
"""

from dataclasses import dataclass, field

from mindrl.config.archon import ZERO_BUBBLE
from mindrl.config.role import LearningConfig
from mindrl.layouts.layout import TrainLayout
from mindrl.models.decoder import ELEMENT_BYTES, DType, padded_vocab_size
from mindrl.models.description import ModelDescription, MoeDescription
from mindrl.models.gated_delta import CHUNK, GatedDeltaNet
from mindrl.training.layer_copies import LayerCopies

_LOGITS_COPIES = 1.25
"""float32 logits, plus the exponentials of a part of them at a time."""
_READ_BYTES, _JOINED_BYTES = 12, 8
"""Bytes of a teacher's token at a position: number in int64 and log-prob in float32; and the number
again at the positions of all context-parallel ranks, on its way to the host."""
_LEARNED_BYTES = 16 + 56
"""The same in an update: its number in int64, as it arrives and as a target; and at most fourteen
float32 tensors between the logits and the divergence, and of gradients."""


@dataclass(frozen=True, kw_only=True)
class Passes:
    """How micro-batches pass through a model."""

    layout: TrainLayout
    dtype: DType
    sequence_parallel: bool
    tokens: int
    """Tokens of a micro-batch on one data-parallel rank."""
    copies: LayerCopies
    """Activation copies of the engine."""
    learning: LearningConfig = field(default_factory=LearningConfig)
    """Recomputation settings; Megatron's `selective` recomputes attention, of which fused kernels
    keep almost nothing."""
    candidates: int = 0
    """Number of a teacher's most probable tokens at each position that the pass reads, or trains
    on."""

    @property
    def tokens_of_rank(self) -> int:
        """Tokens of a micro-batch on one context-parallel rank."""
        return -(-self.tokens // self.layout.cp)

    @property
    def cut_of_hidden(self) -> int:
        """Number of ranks that share hidden states between the tensor-parallel regions."""
        return self.layout.tp if self.sequence_parallel else 1


def forward_estimate(model: ModelDescription, passes: Passes) -> int:
    """Estimate the bytes of a forward pass without gradients: one layer and the hidden states."""
    position = passes.tokens_of_rank * _READ_BYTES + passes.tokens * _JOINED_BYTES
    return _layer(model, passes) + _hidden(model, passes) + passes.candidates * position


def update_estimate(model: ModelDescription, passes: Passes) -> int:
    """Estimate the bytes kept for the backward pass, on the stage that keeps most."""
    chunks = passes.layout.chunks(model.num_hidden_layers)
    layer, left = _layer(model, passes), _hidden(model, passes)
    learning, sizes = passes.learning, []
    if _is_by_operation(learning):
        left += _by_operation(model, passes)
    for stage in range(passes.layout.pp):
        layers = max(len(chunks[at]) for at in passes.layout.chunks_of(stage))
        kept = _chunks_in_flight(passes, stage)
        whole, again, run = kept_layers(learning, layers)
        sizes.append(kept * (whole * layer + again * left) + (run + 1) * layer)
    return max(sizes) + passes.tokens_of_rank * passes.candidates * _LEARNED_BYTES


def kept_layers(learning: LearningConfig, layers: int) -> tuple[int, int, int]:
    """Return the layers of a chunk that keep all activations, its recomputed runs, their length.

    A run keeps only its input, and its layers are recomputed together. Activations that a compiler
    selects count as kept.
    """
    archon, run = learning.archon, learning.recompute_num_layers or 1
    every = {"full": 1, "selective": int(archon.selective_ac_option.replace("op", "1"))}
    if each := every.get(archon.ac_mode, 0):
        again = layers // each
        return layers - again, again, 1
    if learning.recompute_granularity != "full":
        return layers, 0, 0
    if learning.recompute_method == "block":
        return max(0, layers - run), min(run, layers), 1
    return 0, -(-layers // run), run


def _is_by_operation(learning: LearningConfig) -> bool:
    archon = learning.archon
    return archon.ac_mode == "selective" and archon.selective_ac_option == "op"


def _by_operation(model: ModelDescription, passes: Passes) -> int:
    """Return the bytes that a layer with recomputation by operation keeps, without its input.

    It keeps every second matrix product (queries, values, gates and the output; of experts only the
    float32 routing), attention, and data received from other ranks.
    """
    layout, heads, kv_heads = passes.layout, model.num_attention_heads, model.num_key_value_heads
    elements = (2 * heads + kv_heads) * model.head_dim / layout.tp
    if layout.ulysses_degree > 1:
        elements += 2 * (heads + kv_heads) * model.head_dim / layout.tp
    chosen = 0
    if moe := model.moe:
        chosen = moe.num_experts
        if layout.ep * layout.etp > 1:
            # Rows are sent to their experts and back; all ranks of an expert receive them.
            rows = moe.num_experts_per_tok * layout.etp / passes.cut_of_hidden
            elements += 2 * rows * model.hidden_size
    else:
        elements += model.intermediate_size / layout.tp + model.hidden_size
    return int(passes.tokens_of_rank * (elements * ELEMENT_BYTES[passes.dtype] + chosen * 4))


def logits_estimate(model: ModelDescription, tp: int, chunk_tokens: int) -> int:
    """Estimate the bytes of the logits that exist at the same time."""
    rows = padded_vocab_size(model, tp) // tp
    return int(chunk_tokens * rows * 4 * _LOGITS_COPIES)


def _chunks_in_flight(passes: Passes, stage: int) -> int:
    """Return the maximum number of chunks that await their backward pass on a stage, under 1F1B.

    Zero-bubble schedules compute weight gradients separately and keep their inputs until then:
    every stage keeps as much as the first one.
    """
    layout = passes.layout
    later_stages = layout.pp - stage - 1
    if passes.learning.archon.schedule(layout.vpp) in ZERO_BUBBLE:
        return layout.vpp * layout.pp
    if layout.vpp == 1:
        return later_stages + 1
    return 2 * later_stages + (layout.vpp - 1) * layout.pp + 1


def _hidden(model: ModelDescription, passes: Passes) -> int:
    """Return the bytes of the hidden states of a micro-batch."""
    elements = passes.tokens_of_rank * model.hidden_size // passes.cut_of_hidden
    return elements * ELEMENT_BYTES[passes.dtype]


def _layer(model: ModelDescription, passes: Passes) -> int:
    """Return the bytes that the largest kind of layer keeps of a micro-batch."""
    hidden, tp = model.hidden_size / passes.cut_of_hidden, passes.layout.tp
    # Both norms keep their output, and in float32 their input and the scaled input.
    elements, float32_elements = 2 * hidden, 4 * hidden
    kept, wide = _mixing(model, passes)
    elements += kept
    float32_elements += wide
    if model.moe:
        elements += _experts(model, model.moe, passes)
        rows = model.moe.num_experts_per_tok * passes.layout.etp / passes.cut_of_hidden
        float32_elements += passes.copies.weighted * rows * model.hidden_size
    else:
        elements += passes.copies.inner * model.intermediate_size / tp
    size = ELEMENT_BYTES[passes.dtype]
    return int(passes.tokens_of_rank * (elements * size + float32_elements * 4))


def _mixing(model: ModelDescription, passes: Passes) -> tuple[float, float]:
    """Return the elements per token that the larger way to mix tokens keeps, also in float32."""
    kept, normed = _attention(model, passes)
    ways = [(kept, 2.0 * normed)]
    # Layers of transformers were not measured.
    if model.delta and model.other is None:
        ways.append(_linear_attention(model.delta, passes))
    size = ELEMENT_BYTES[passes.dtype]
    return max(ways, key=lambda way: way[0] * size + way[1] * 4)


def _linear_attention(delta: GatedDeltaNet, passes: Passes) -> tuple[float, float]:
    """Return the elements per token that a gated delta net keeps, also in float32.

    Queries, keys and values before and after the convolution and as they are activated; the gate,
    the normed heads and their product. In float32: the inputs of the products of chunks, and of
    each chunk six square matrices and the state before it.
    """
    heads, width = delta.value_heads, delta.key_width + delta.value_width
    kept = 4 * sum(delta.mixed_rows) + 3 * delta.value_rows
    states = delta.key_width * delta.value_width / CHUNK
    wide = heads * (7 * width + 6 * CHUNK + states)
    return kept / passes.layout.tp, wide / passes.layout.tp


def _attention(model: ModelDescription, passes: Passes) -> tuple[float, float]:
    """Return the elements per token that attention keeps, and the inputs of its norms.

    Queries, keys and values are kept as projected and as used, and the output once. Engines that
    compute sines and cosines per layer keep those too.
    """
    mla, heads, kv_heads = model.mla, model.num_attention_heads, model.num_key_value_heads
    tp, rotation = passes.layout.tp, passes.copies.rotation
    if mla is None:
        normed = (heads + kv_heads) * model.head_dim / tp if model.qk_norm else 0.0
        return rotation * model.head_dim + 3 * (heads + kv_heads) * model.head_dim / tp, normed
    normed = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    of_a_head = 3 * mla.qk_head_dim + mla.qk_nope_head_dim + 2 * mla.v_head_dim
    return normed + 5 * mla.qk_rope_head_dim + heads * of_a_head / tp, normed


def _experts(model: ModelDescription, moe: MoeDescription, passes: Passes) -> float:
    """Return the elements per token that equally busy experts keep.

    All tensor-parallel ranks of an expert receive the token.
    """
    routed = 2 * model.hidden_size * passes.layout.etp + passes.copies.inner * moe.intermediate_size
    shared = passes.copies.inner * moe.shared_intermediate_size / passes.layout.tp
    return moe.num_experts_per_tok * routed / passes.cut_of_hidden + shared
