"""Import rules of MindSpeed-RL for training on answers in rows: pairs, or demonstrations."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.config.layout_keys import DEVICES
from mindrl.migrate.file import TheirRun
from mindrl.migrate.mapped import SAME_MEANING, Mapped, default, same

_PAIRS = (
    "megatron_training.prompt_column, such as question, preference_config.chosen_column and "
    "rejected_column, and if rows have one preference_config.system_column"
)
_ANSWERS = (
    "megatron_training.prompt_column, such as instruction, and sft_config.response_column, such as "
    "output; without the latter the first is a column of conversations"
)
_LOSS = "preference_config.loss"
ROW_COLUMNS = {"dpo": _PAIRS, "orm": _PAIRS, "sft": _ANSWERS}
"""The keys that name the columns of rows, by the `stage` of a file that trains on rows."""
_SETS: Mapping[str, Mapping[str, Any]] = {
    "dpo": {_LOSS: "sigmoid"},
    "orm": {_LOSS: "bradley_terry"},
    "sft": {"sft_config": {}},
}
"""What each `stage` means."""


def row_rules(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the keys of training on rows, and for the sizes of an update."""
    actor, stage = theirs.actor, theirs.stage
    # A file without a section for generation; mindrl needs the section, with all its defaults.
    sets = {**_SETS[stage], "generate_config": {}}
    yield Mapped(actor.place("stage"), "derived", sets, "run it with mindrl train")
    kind = actor.place("dpo_loss_type")
    if kind in theirs.given and stage == "dpo":
        yield Mapped(kind, "renamed", {_LOSS: theirs.given[kind]}, SAME_MEANING)
    yield from same(theirs, DEVICES)
    yield from _update(theirs)
    if stage == "dpo":
        yield from _reference(theirs)
    section = next(iter(_SETS[stage])).partition(".")[0]
    for name in ("is_pairwise_dataset", "is_instruction_dataset", "algorithm"):
        if (place := actor.place(name)) in theirs.given:
            yield Mapped(place, "ignored", note=f"the section {section} means this in mindrl")


def _update(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the rows of an update and the tokens of an answer."""
    actor, ours = theirs.actor, "megatron_training.global_batch_size"
    place, rows = actor.place("global_batch_size"), actor.value("global_batch_size", 1)
    sets = {ours: rows, "rl_config.mini_batch_size": rows}
    what = "answers" if theirs.stage == "sft" else "pairs"
    note = f"counts {what}, as in MindSpeed-RL; a step has one update"
    yield Mapped(place, "derived", sets, note)
    longest, length = actor.place("seq_length"), "megatron_training.seq_length"
    if longest in theirs.given:
        yield Mapped(longest, "honoured", {length: theirs.given[longest]})
    else:
        yield default(longest, length, actor.value("seq_length", 4096))


def _reference(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the model that the policy is compared with."""
    actor, load = theirs.actor, theirs.actor.given("load")
    place = actor.place("ref_model")
    if (model := theirs.given.get(place)) in (None, load):
        note = "the reference is the initial model, also in a run that is resumed"
        if place in theirs.given:
            yield Mapped(place, "derived", note=note)
    else:
        note = f"was {model}, in Megatron's format; mindrl reads Hugging Face format"
        yield Mapped(place, "open", {"ref_config.load": model}, note)
    for name in ("refer_model_iter", "ref_model_iter"):
        if (each := actor.place(name)) in theirs.given:
            yield Mapped(each, "ignored", note="mindrl keeps the initial model for a resumed run")
