"""Import rules of MindSpeed-RL for training on preferences."""

from collections.abc import Iterator

from mindrl.config.layout_keys import DEVICES
from mindrl.migrate.file import TheirRun
from mindrl.migrate.mapped import SAME_MEANING, Mapped, default, same

STAGE = "dpo"
"""Value of `stage` in a file for training on preferences."""
PAIR_COLUMNS = (
    "megatron_training.prompt_column, such as question, preference_config.chosen_column and "
    "rejected_column, and if rows have one preference_config.system_column"
)
"""Keys that name the columns of its rows."""


def preference_rules(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the keys of DPO, and for the sizes of an update."""
    actor = theirs.actor
    loss = "preference_config.loss"
    # A file without a section for generation; mindrl needs the section, with all its defaults.
    sets = {loss: "sigmoid", "generate_config": {}}
    yield Mapped(actor.place("stage"), "derived", sets, "run it with mindrl train")
    kind = actor.place("dpo_loss_type")
    if kind in theirs.given:
        yield Mapped(kind, "renamed", {loss: theirs.given[kind]}, SAME_MEANING)
    yield from same(theirs, DEVICES)
    yield from _update(theirs)
    yield from _reference(theirs)
    for name in ("is_pairwise_dataset", "algorithm"):
        if (place := actor.place(name)) in theirs.given:
            yield Mapped(
                place, "ignored", note="the section preference_config means this in mindrl"
            )


def _update(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the pairs of an update and the tokens of an answer."""
    actor, ours = theirs.actor, "megatron_training.global_batch_size"
    place, pairs = actor.place("global_batch_size"), actor.value("global_batch_size", 1)
    sets = {ours: pairs, "rl_config.mini_batch_size": pairs}
    yield Mapped(place, "derived", sets, "counts pairs, as in MindSpeed-RL; a step has one update")
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
