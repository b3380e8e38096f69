"""Import rules of MindSpeed-RL for one model: folder, layout, experts, optimizer."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from mindrl.migrate.answer_rows import ROW_COLUMNS
from mindrl.migrate.file import TheirModel, numbers
from mindrl.migrate.keys import SAME_OF_ROLE
from mindrl.migrate.mapped import Mapped, default, of_model, same_of_model

_FORMAT = "it has Megatron's format; mindrl reads Hugging Face format"
_NO_DROPOUT = "{}: mindrl has no dropout"
_PARTS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "optimizer",
        lambda given: given not in (None, "adam"),
        "{}: mindrl has only AdamW; if dropped, AdamW is used",
    ),
    ("attention_dropout", bool, _NO_DROPOUT),
    ("hidden_dropout", bool, _NO_DROPOUT),
    (
        "no_load_optim",
        lambda given: given is False,
        "mindrl cannot read this optimizer: finish the run in MindSpeed-RL, or start from weights",
    ),
    ("mm_model", bool, "archon: and fsdp: train a vision tower as a part of its model"),
)
"""Keys of a model, a test for values that mindrl does not support, and the note for those."""


def model_rules(model: TheirModel) -> Iterator[Mapped]:
    """Yield the entries for the keys of one model."""
    for key in SAME_OF_ROLE:
        yield from same_of_model(model, key.removeprefix("role."))
    if model.role == "critic":
        yield from _of_critic(model)
    else:
        yield from _folders(model)
    yield from _layers(model)
    yield from _context(model)
    if model.has_experts:
        yield from _experts(model)
        yield from _balance(model)
    yield from _decay(model)
    yield from _dropout(model)
    yield from same_of_model(model, "recompute_granularity")
    if model.value("recompute_granularity") == "full":
        yield from same_of_model(model, "recompute_method")
        yield from same_of_model(model, "recompute_num_layers")
    for key, is_unsupported, note in _PARTS:
        if is_unsupported(given := model.given(key)):
            yield of_model(model, key, "refused", note=note.format(given))


def _of_critic(model: TheirModel) -> Iterator[Mapped]:
    """Yield the critic's entries: omitted sizes are 1 in MindSpeed-RL, the actor's in mindrl."""
    for size in ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel"):
        place = model.place(f"{size}_size")
        if place not in model.run.given:
            yield default(place, f"critic_config.{size}_size", 1)
    note = (
        f"{_FORMAT}: set critic_config.load, or the critic starts from the actor's "
        "weights with a random value head"
    )
    yield of_model(model, "load", "open", note=note)


def _folders(model: TheirModel) -> Iterator[Mapped]:
    found, target = model.given("load"), model.given("save")
    tokenizer = model.value("tokenizer_name_or_path")
    was = "" if found is None else f"was {found}; "
    note = f"{was}{_FORMAT}: name such a folder"
    if tokenizer is not None:
        note = (
            f"{was}{_FORMAT}. This is the tokenizer's folder, which must also contain the "
            "weights; set another folder if the model was trained further"
        )
    yield of_model(model, "load", "open", found if tokenizer is None else tokenizer, note)
    if target is not None and target not in (found, tokenizer):
        note = "the model is exported in Hugging Face format; the folder must be empty"
        yield of_model(model, "save", "honoured", target, note)


def _layers(model: TheirModel) -> Iterator[Mapped]:
    """Yield the entries for pipeline stages and chunks: their number, and the layers of each."""
    stages = model.value("pipeline_model_parallel_size", 1)
    if stages == 1:
        return
    per_chunk = model.place("num_layers_per_virtual_pipeline_stage")
    layers, size, chunks = model.value("num_layers"), model.run.given.get(per_chunk), 1
    if size is not None and (not layers or layers % (stages * size)):
        note = f"num_layers={layers} must be a multiple of {stages} stages x {size}"
        yield Mapped(per_chunk, "refused", note=f"{note}; if dropped, a stage has one chunk")
    elif size is not None:
        chunks = layers // (stages * size)
        sets = {f"{model.section}.virtual_pipeline_model_parallel_size": chunks}
        note = f"{layers} layers / {stages} stages / {size} layers per chunk"
        yield Mapped(per_chunk, "renamed", sets, note)
    yield from _uneven(model, stages * chunks)


def _uneven(model: TheirModel, chunks: int) -> Iterator[Mapped]:
    given, layers = model.given("num_layer_list"), model.value("num_layers")
    sizes = numbers(given)
    empty = numbers(model.given("noop_layers"))
    if empty and (sizes or layers):
        sizes = sizes or [layers // chunks] * chunks
        counted, first = [], 0
        for size in sizes:
            counted.append(size - sum(first <= each < first + size for each in empty))
            first += size
        note = (
            f"layers {', '.join(map(str, empty))} were empty; in mindrl stages are uneven instead"
        )
        sets = {f"{model.section}.num_layer_list": counted}
        yield Mapped(model.place("noop_layers"), "renamed", sets, note)
    elif sizes and isinstance(given, str):
        note = "was text in the file, is a list in mindrl"
        yield of_model(model, "num_layer_list", "derived", sizes, note)
    elif sizes:
        yield of_model(model, "num_layer_list", "honoured", sizes)


def _context(model: TheirModel) -> Iterator[Mapped]:
    """Yield the context-parallel entries: the actor's method is every role's."""
    yield from same_of_model(model, "context_parallel_size")
    algo = model.given("context_parallel_algo")
    if model.given("context_parallel_size", 1) == 1 or algo is None:
        return
    ours = algo if model.role == "actor" else None
    yield of_model(model, "context_parallel_algo", "honoured", ours)


def _experts(model: TheirModel) -> Iterator[Mapped]:
    """Yield the entries for expert-parallel and expert-tensor-parallel sizes."""
    place, shared = model.place("expert_model_parallel_size"), bool(model.given("moe_tp_extend_ep"))
    tensor = model.value("tensor_model_parallel_size", 1)
    size = model.value("expert_model_parallel_size", 1)
    sets = {
        f"{model.section}.expert_model_parallel_size": size * tensor if shared else size,
        f"{model.section}.expert_tensor_parallel_size": 1 if shared else tensor,
    }
    note = "without moe_tp_extend_ep each expert is split over the tensor-parallel ranks"
    if shared:
        ranks = f"experts are also distributed over the {tensor} tensor-parallel ranks"
        note = f"was {size}; with moe_tp_extend_ep {ranks}"
    yield Mapped(place, "derived", sets, note)
    if shared:
        yield of_model(model, "moe_tp_extend_ep", "derived", note=f"see {place}")
    yield from same_of_model(model, "moe_grouped_gemm")


def _balance(model: TheirModel) -> Iterator[Mapped]:
    """Yield the entries for the loss that balances the load of the experts."""
    weight, kind = "moe_aux_loss_coeff", model.place("moe_router_load_balancing_type")
    balancing = model.given("moe_router_load_balancing_type", "aux_loss")
    if balancing == "seq_aux_loss":
        sets = {f"{model.section}.moe_router_load_balancing_type": balancing}
        yield from same_of_model(model, weight)
        yield Mapped(kind, "honoured", sets, "computed for each sequence, also in packs")
        return
    if balancing == "aux_loss":
        yield from same_of_model(model, weight)
        yield Mapped(kind, "ignored", note="also mindrl's default")
        return
    sets = {f"{model.section}.{weight}": 0.0}
    if balancing == "none":
        yield Mapped(kind, "derived", sets, "no balancing loss")
    else:
        note = f"{balancing}: use aux_loss or seq_aux_loss; if dropped, there is no balancing loss"
        yield Mapped(kind, "refused", sets, note)
    if model.given(weight) is not None:
        yield of_model(model, weight, "ignored", note=f"see {kind}")


def _decay(model: TheirModel) -> Iterator[Mapped]:
    """Yield the entries for the schedule, which MindSpeed-RL advances by sequences."""
    style, warmup = model.value("lr_decay_style"), "lr_warmup_fraction"
    passes = _passes(model)
    shorter = f"in MindSpeed-RL {{}} {passes} times as early: it counts each sequence of each epoch"
    if style not in ("constant", "linear", "cosine"):
        note = f"{style}: use constant, linear or cosine; if dropped, it is constant"
        yield of_model(model, "lr_decay_style", "refused", "constant", note)
    elif style != "constant" and passes > 1:
        there = "" if model.given("lr_decay_style") else "not in the file; "
        note = there + shorter.format("it ends")
        yield of_model(model, "lr_decay_style", "derived", style, note)
    else:
        yield from same_of_model(model, "lr_decay_style")
    if passes > 1 and model.given(warmup):
        note = shorter.format("the warm-up ends")
        yield of_model(model, warmup, "derived", model.given(warmup), note)
    else:
        yield from same_of_model(model, warmup)


def _passes(model: TheirModel) -> int:
    """Return how often MindSpeed-RL's schedule counts a prompt: its length is one for each."""
    if model.run.stage in ROW_COLUMNS:
        return 1
    keys = ("rl_config.n_samples_per_prompt", "rl_config.epochs")
    return prod(int(model.run.value(key, 1)) for key in keys)


def _dropout(model: TheirModel) -> Iterator[Mapped]:
    """Yield the entries for omitted rates, which are not 0 in MindSpeed-RL."""
    for key in ("attention_dropout", "hidden_dropout"):
        if model.given(key) is None:
            note = "not in the file; 0.1 in MindSpeed-RL, mindrl has no dropout"
            yield of_model(model, key, "derived", note=note)
