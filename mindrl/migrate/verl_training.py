"""Import rules of verl for the trainer: packing, recomputation, optimizer, checkpoints. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.migrate.mapped import SAME_MEANING, Mapped
from mindrl.migrate.verl_keys import ACTOR, OMITTED

_ROLES: Mapping[str, tuple[str, str]] = {
    ACTOR: ("actor_config", "actor_rollout_ref.model"),
    "critic": ("critic_config", "critic.model"),
}
"""By verl's name of a trained model: its mindrl section, and verl's section of its model."""


def training_of_verl(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the training of each model, and for the checkpoints."""
    yield from _packing(theirs)
    has_critic = theirs.get("algorithm.adv_estimator", "gae") == "gae"
    for role in _ROLES if has_critic else (ACTOR,):
        yield from _recomputation(theirs, role)
        section, key = _ROLES[role][0], f"{role}.optim.betas"
        betas = theirs.get(key, (0.9, 0.999))
        sets = {f"{section}.adam_beta1": betas[0], f"{section}.adam_beta2": betas[1]}
        yield Mapped(key, "renamed", sets, f"{SAME_MEANING}, or verl's default")
    yield from _experts(theirs)
    yield from _checkpoints(theirs)
    yield from _resume(theirs)


def uses_megatron(theirs: Mapping[str, Any], role: str) -> bool:
    """Return whether verl trains a model with Megatron; otherwise it does with FSDP."""
    named = theirs.get(f"{role}.strategy", theirs.get("model_engine"))
    return named == "megatron" or any(key.startswith(f"{role}.megatron.") for key in theirs)


def _packing(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for packing, which `use_dynamic_bsz` requires in mindrl."""
    ours, megatron = "rl_config.use_remove_padding", f"{ACTOR}.megatron.use_remove_padding"
    key = "actor_rollout_ref.model.use_remove_padding"
    if uses_megatron(theirs, ACTOR):
        if key in theirs:
            yield Mapped(key, "ignored", note=f"only FSDP reads it; for Megatron: {megatron}")
        key = megatron
    if key not in theirs:
        return
    if theirs.get(f"{ACTOR}.use_dynamic_bsz") and not theirs[key]:
        note = "use_dynamic_bsz requires packing, which does not change the gradient"
        yield Mapped(key, "derived", {ours: True}, note)
    else:
        yield Mapped(key, "renamed", {ours: theirs[key]}, SAME_MEANING)


def _recomputation(theirs: Mapping[str, Any], role: str) -> Iterator[Mapped]:
    """Yield the entry for FSDP's key; Megatron's keys have the same meaning in mindrl."""
    section, model = _ROLES[role]
    key = f"{model}.enable_gradient_checkpointing"
    if uses_megatron(theirs, role):
        if key in theirs:
            note = "only FSDP reads it; for Megatron: override_transformer_config.recompute_*"
            yield Mapped(key, "ignored", note=note)
    elif theirs.get(key, True):
        names = {"granularity": "full", "method": "uniform", "num_layers": 1}
        sets = {f"{section}.recompute_{name}": value for name, value in names.items()}
        if key in theirs:
            yield Mapped(key, "renamed", sets, "recomputes every layer")
        else:
            yield Mapped(key, "derived", sets, f"{OMITTED}: recomputes every layer")
    else:
        yield Mapped(key, "derived", note="nothing is recomputed")


def _experts(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entry for an omitted size, which is Megatron's default in verl."""
    key, place = f"{ACTOR}.megatron.expert_tensor_parallel_size", f"{ACTOR}.megatron"
    tensor = theirs.get(f"{place}.tensor_model_parallel_size", 1)
    if key not in theirs and theirs.get(f"{place}.expert_model_parallel_size", 1) > 1 < tensor:
        sets = {"actor_config.expert_tensor_parallel_size": tensor}
        yield Mapped(key, "derived", sets, "not in the file: verl's is tensor_model_parallel_size")


def _checkpoints(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    key, every = "trainer.max_actor_ckpt_to_keep", theirs.get("trainer.save_freq", -1)
    if theirs.get(key, 0) > 0:
        sets = {"megatron_training.keep_last": theirs[key]}
        yield Mapped(key, "renamed", sets, SAME_MEANING)
    elif every > 0:
        sets = {"megatron_training.keep_every": every}
        yield Mapped(key, "derived", sets, "no limit: verl keeps the checkpoints of all save_freq")
    elif key in theirs:
        yield Mapped(key, "ignored", note="no limit, and no checkpoint is written")


def _resume(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the checkpoint that the run starts from."""
    key, folder, ours = (
        *("trainer.resume_mode", "trainer.resume_from_path"),
        "megatron_training.resume",
    )
    mode, found = theirs.get(key, "auto"), theirs.get(folder)
    if mode == "resume_path":
        note = (
            f"was {found}; mindrl cannot read verl's checkpoint: finish the run in verl, start "
            f"from its weights, actor_config.load, or set {ours} to the folder of a mindrl run"
        )
        yield Mapped(key, "open", note=note)
        if found is not None:
            yield Mapped(folder, "derived", note=f"see {key}")
    elif key in theirs:
        sets = {ours: "never" if mode == "disable" else "auto"}
        yield Mapped(key, "renamed", sets, f"was {mode}; {ours} can also be a folder")
    if found is not None and mode != "resume_path":
        yield Mapped(folder, "ignored", note=f"verl reads it only with {key}=resume_path")
