"""Rules of a MindSpeed-RL import for one model: folder, layout, experts, optimizer."""

from collections.abc import Iterator
from typing import Any

from mindrl.migrate.file import Learner, TheirRun
from mindrl.migrate.keys import SAME_OF_ROLE
from mindrl.migrate.mapped import Mapped, default, ignored, same_of_role

_SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
)
_FORMAT = "in Megatron's format there; a folder in Hugging Face format is read here"


def model_rules(theirs: TheirRun, role: Learner) -> Iterator[Mapped]:
    """Say what becomes of the keys of one model."""
    for key in SAME_OF_ROLE:
        yield from same_of_role(theirs, role, key, f"{role}_config")
    if role == "critic":
        yield from _own_sizes(theirs)
    yield from _folder(theirs, role)
    yield from _layers(theirs, role)
    yield from _context(theirs, role)
    if is_moe(theirs, role):
        yield from _experts(theirs, role)
        yield from _balance(theirs, role)
    yield from _schedule(theirs, role)
    yield from _recompute(theirs, role)
    yield from _missing_parts(theirs, role)


def is_moe(theirs: TheirRun, role: Learner) -> bool:
    """Tell a model with experts."""
    return bool(theirs.role(role, "num_experts"))


def _own_sizes(theirs: TheirRun) -> Iterator[Mapped]:
    """A size that the critic leaves out is 1 there, and the actor's here."""
    for key in _SIZES:
        place = theirs.place("critic", key)
        if place not in theirs.given:
            yield default(place, f"critic_config.{key}", 1)


def _folder(theirs: TheirRun, role: Learner) -> Iterator[Mapped]:
    load, save = theirs.place(role, "load"), theirs.place(role, "save")
    tokenizer = theirs.role("actor", "tokenizer_name_or_path")
    if role == "critic":
        yield Mapped(
            key=load,
            kind="open",
            note=f"{_FORMAT}: give critic_config.load, or the critic starts from the actor's "
            "weights with a value head drawn at random",
        )
        return
    found = theirs.given.get(load, "nothing")
    if tokenizer is None:
        note = f"{_FORMAT}: name one"
        yield Mapped(key=load, kind="open", sets={"actor_config.load": found}, note=note)
    else:
        note = (
            f"{found} there, {_FORMAT}: the tokenizer's folder, which must hold the weights too; "
            "name another one if training went on from it"
        )
        yield Mapped(key=load, kind="open", sets={"actor_config.load": tokenizer}, note=note)
    target = theirs.given.get(save)
    if target is not None and target not in (found, tokenizer):
        note = "the model is exported in Hugging Face format; the folder must be empty"
        yield Mapped(key=save, kind="honoured", sets={"actor_config.save": target}, note=note)


def _layers(theirs: TheirRun, role: Learner) -> Iterator[Mapped]:
    """Pipeline stages and chunks: how many, and which layers each has."""
    stages = theirs.role(role, "pipeline_model_parallel_size", 1)
    if stages == 1:
        return
    per_chunk = theirs.place(role, "num_layers_per_virtual_pipeline_stage")
    layers, chunks = theirs.role(role, "num_layers"), 1
    if per_chunk in theirs.given:
        size = theirs.given[per_chunk]
        if not layers or layers % (stages * size):
            yield Mapped(
                key=per_chunk,
                kind="refused",
                note=f"num_layers={layers} must be a multiple of {stages} stages x {size}; correct "
                "it, or leave it out for one chunk a stage",
            )
        else:
            chunks = layers // (stages * size)
            yield Mapped(
                key=per_chunk,
                kind="renamed",
                sets={f"{role}_config.virtual_pipeline_model_parallel_size": chunks},
                note=f"{layers} layers / {stages} stages / {size} layers a chunk",
            )
    yield from _uneven(theirs, role, stages * chunks)


def _uneven(theirs: TheirRun, role: Learner, chunks: int) -> Iterator[Mapped]:
    given, empty = theirs.place(role, "num_layer_list"), theirs.place(role, "noop_layers")
    ours = f"{role}_config.num_layer_list"
    sizes = numbers(theirs.given.get(given))
    layers = theirs.role(role, "num_layers")
    if empty in theirs.given and (sizes or layers):
        sizes = sizes or [layers // chunks] * chunks
        ids, counted = numbers(theirs.given[empty]), []
        for chunk, size in enumerate(sizes):
            first = sum(sizes[:chunk])
            counted.append(size - sum(first <= each < first + size for each in ids))
        note = f"the layers {', '.join(map(str, ids))} are empty there; stages are uneven here"
        yield Mapped(key=empty, kind="renamed", sets={ours: counted}, note=note)
    elif sizes:
        written = isinstance(theirs.given[given], str)
        note = "written as text there, a list here" if written else ""
        kind: Any = "derived" if written else "honoured"
        yield Mapped(key=given, kind=kind, sets={ours: sizes}, note=note)


def numbers(value: Any) -> list[int]:
    """Read `7,8,8,8`, a list, or one number."""
    if value is None:
        return []
    parts = value.split(",") if isinstance(value, str) else value
    return [int(part) for part in (parts if isinstance(parts, list | tuple) else [parts])]


def _context(theirs: TheirRun, role: Learner) -> Iterator[Mapped]:
    """Ranks that share a sequence: here they share its heads, so those must suffice."""
    place, algo = (
        theirs.place(role, key) for key in ("context_parallel_size", "context_parallel_algo")
    )
    ring = theirs.given.get(algo) == "megatron_cp_algo"
    size = theirs.given.get(place, 1)
    kept = next(each for each in range(size, 0, -1) if not ring or _can_share(theirs, role, each))
    if kept < size:
        note = (
            f"{size} there; here such ranks share attention heads, and those of a tensor-parallel "
            f"rank suffice for {kept}: fewer ranks share a sequence, more are data-parallel"
        )
        sets = {f"{role}_config.context_parallel_size": kept}
        yield Mapped(key=place, kind="derived", sets=sets, note=note)
    else:
        yield from same_of_role(theirs, role, "context_parallel_size", f"{role}_config")
    if size == 1 or algo not in theirs.given:
        return
    ours = {f"{role}_config.context_parallel_algo": "ulysses_cp_algo"} if role == "actor" else {}
    if theirs.given[algo] == "ulysses_cp_algo":
        yield Mapped(key=algo, kind="honoured", sets=ours)
    else:
        note = f"{theirs.given[algo]} there: the same attention, computed in another order"
        yield Mapped(key=algo, kind="derived", sets=ours, note=note)


def _can_share(theirs: TheirRun, role: Learner, ranks: int) -> bool:
    """Tell whether so many ranks can share the heads of a tensor-parallel rank, and a sequence."""
    tensor = theirs.role(role, "tensor_model_parallel_size", 1)
    heads = theirs.role(role, "num_attention_heads", tensor * ranks)
    groups = theirs.role(role, "num_query_groups", heads) or heads
    own = max(1, groups // tensor)
    size = theirs.role(role, "context_parallel_size", 1)
    of_groups = own % ranks == 0 or ranks % own == 0
    return bool(size % ranks == 0 and (heads // tensor) % ranks == 0 and of_groups)


def _experts(theirs: TheirRun, role: Learner) -> Iterator[Mapped]:
    """Over how many ranks experts are dealt, and over how many each is cut."""
    expert, extends = (
        theirs.place(role, key) for key in ("expert_model_parallel_size", "moe_tp_extend_ep")
    )
    size, tensor = (
        theirs.role(role, key, 1)
        for key in ("expert_model_parallel_size", "tensor_model_parallel_size")
    )
    section = f"{role}_config"
    if theirs.given.get(extends):
        note = f"moe_tp_extend_ep: the {tensor} tensor-parallel ranks share experts too"
        whole = {
            f"{section}.expert_model_parallel_size": size * tensor,
            f"{section}.expert_tensor_parallel_size": 1,
        }
        yield Mapped(key=expert, kind="derived", sets=whole, note=f"{size} there; {note}")
        yield Mapped(key=extends, kind="derived", note=f"see {expert}")
    else:
        note = "without moe_tp_extend_ep each expert is cut over the tensor-parallel ranks"
        cut = {
            f"{section}.expert_model_parallel_size": size,
            f"{section}.expert_tensor_parallel_size": tensor,
        }
        yield Mapped(key=expert, kind="derived", sets=cut, note=note)
    yield from same_of_role(theirs, role, "moe_grouped_gemm", section)


def _balance(theirs: TheirRun, role: Learner) -> Iterator[Mapped]:
    """The loss that keeps experts equally busy."""
    kind = theirs.place(role, "moe_router_load_balancing_type")
    weight = theirs.place(role, "moe_aux_loss_coeff")
    ours = f"{role}_config.moe_aux_loss_coeff"
    balancing = theirs.given.get(kind, "aux_loss")
    if balancing == "aux_loss":
        if weight in theirs.given:
            yield Mapped(key=weight, kind="honoured", sets={ours: theirs.given[weight]})
        else:
            yield default(weight, ours, 0.001)
        yield ignored(kind, "the one kind here")
        return
    if balancing == "none":
        yield Mapped(key=kind, kind="derived", sets={ours: 0.0}, note="no such loss")
    else:
        note = f"{balancing}: experts are balanced over a micro-batch or not at all here"
        way = "set it to aux_loss, or leave it out for a weight of 0"
        yield Mapped(key=kind, kind="refused", sets={ours: 0.0}, note=f"{note}; {way}")
    if weight in theirs.given:
        yield ignored(weight, f"see {kind}")


def _schedule(theirs: TheirRun, role: Learner) -> Iterator[Mapped]:
    place = theirs.place(role, "lr_decay_style")
    style = theirs.role(role, "lr_decay_style")
    if style in ("constant", "linear", "cosine"):
        yield from same_of_role(theirs, role, "lr_decay_style", f"{role}_config")
    else:
        note = f"{style}: constant, linear and cosine are there; set one, or leave it out: constant"
        sets = {f"{role}_config.lr_decay_style": "constant"}
        yield Mapped(key=place, kind="refused", sets=sets, note=note)
    optimizer = theirs.role(role, "optimizer", "adam")
    if optimizer != "adam":
        note = f"{optimizer}: AdamW is the only one here; leave it out to train with that"
        yield Mapped(key=theirs.place(role, "optimizer"), kind="refused", note=note)


def _recompute(theirs: TheirRun, role: Learner) -> Iterator[Mapped]:
    section = f"{role}_config"
    yield from same_of_role(theirs, role, "recompute_granularity", section)
    if theirs.role(role, "recompute_granularity") == "full":
        yield from same_of_role(theirs, role, "recompute_method", section)
        yield from same_of_role(theirs, role, "recompute_num_layers", section)


def _missing_parts(theirs: TheirRun, role: Learner) -> Iterator[Mapped]:
    for key in ("attention_dropout", "hidden_dropout"):
        if theirs.role(role, key, 0):
            note = f"{theirs.role(role, key)}: there is no dropout here; leave it out for none"
            yield Mapped(key=theirs.place(role, key), kind="refused", note=note)
    for key, value, note in (
        ("no_load_optim", False, "a run starts from the weights alone; finish the old run there"),
        ("mm_model", None, "no model with images is trained here"),
        ("lora_target_modules", None, "there are no adapters here; left out, all weights train"),
    ):
        place = theirs.place(role, key)
        found = theirs.given.get(place)
        if place in theirs.given and (found is False if value is False else bool(found)):
            yield Mapped(key=place, kind="refused", note=note)
