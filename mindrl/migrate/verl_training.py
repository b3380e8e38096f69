"""Import rules of verl for the trainer: packing, recomputation, optimizer, checkpoints. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.migrate.mapped import SAME_MEANING, Mapped
from mindrl.migrate.verl_keys import ACTOR, DEFAULTS, LAYOUT, OMITTED, REF, SPLITS

_ROLES: Mapping[str, tuple[str, str]] = {
    ACTOR: ("actor_config", "actor_rollout_ref.model"),
    "critic": ("critic_config", "critic.model"),
}
"""By verl's name of a trained model: its mindrl section, and verl's section of its model."""

_STYLES = ("lr_scheduler_type", "warmup_style", "lr_decay_style")
"""Names of the decay: FSDP's, its old one, Megatron's."""
_REPLAYS = {"disabled": "none", "R2": "R2", "R3": "R3"}


def training_of_verl(theirs: Mapping[str, Any], total: int | None) -> Iterator[Mapped]:
    """Yield the entries for the training of each model, and for the checkpoints.

    `total` is the number of training steps, None if unknown.
    """
    yield from _packing(theirs)
    for role in _ROLES if has_critic(theirs) else (ACTOR,):
        yield from _recomputation(theirs, role)
        yield from _warmup(theirs, role, total)
        yield from _decay(theirs, role)
        yield from _clipping(theirs, role)
        section, key = _ROLES[role][0], f"{role}.optim.betas"
        betas = theirs.get(key, (0.9, 0.999))
        sets = {f"{section}.adam_beta1": betas[0], f"{section}.adam_beta2": betas[1]}
        yield Mapped(key, "renamed", sets, f"{SAME_MEANING}, or verl's default")
    yield from _split(theirs)
    yield from _experts(theirs)
    yield from _routes(theirs)
    yield from _reference(theirs)
    yield from _checkpoints(theirs)
    yield from _resume(theirs)


def has_critic(theirs: Mapping[str, Any]) -> bool:
    """Return whether verl trains a critic."""
    return bool(theirs.get("algorithm.adv_estimator", "gae") == "gae")


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


def _warmup(theirs: Mapping[str, Any], role: str, total: int | None) -> Iterator[Mapped]:
    """Yield the entries for a warm-up in steps, which replaces the one as a fraction."""
    key, fraction = f"{role}.optim.lr_warmup_steps", f"{role}.optim.lr_warmup_steps_ratio"
    ours = f"{_ROLES[role][0]}.lr_warmup_fraction"
    steps, least = theirs.get(key, -1), 1 if uses_megatron(theirs, role) else 0
    if steps < least:
        if key in theirs:
            yield Mapped(key, "ignored", note=f"below {least}: {fraction} counts")
        return
    if total is None:
        yield Mapped(key, "open", note=f"set {ours} to {steps} divided by the number of steps")
    else:
        note = f"{steps} of {total} steps"
        yield Mapped(key, "derived", {ours: min(1.0, steps / total)}, note)
    if fraction in theirs:
        yield Mapped(fraction, "ignored", note=f"replaced by {key}")


def _decay(theirs: Mapping[str, Any], role: str) -> Iterator[Mapped]:
    """Yield the entries for the decay of the learning rate."""
    place, (section, _) = f"{role}.optim", _ROLES[role]
    for key in (f"{place}.{name}" for name in _STYLES):
        if theirs.get(key) in ("constant", "linear", "cosine"):
            yield Mapped(key, "renamed", {f"{section}.lr_decay_style": theirs[key]}, SAME_MEANING)
        elif key in theirs:
            note = f"{theirs[key]}: use constant, linear or cosine; if dropped, it is constant"
            yield Mapped(key, "refused", note=note)
    key = f"{place}.min_lr_ratio"
    if key in theirs:
        peak = theirs.get(f"{place}.lr", DEFAULTS.get(f"{place}.lr", 1e-6))
        note = f"was {theirs[key]} times the peak"
        yield Mapped(key, "derived", {f"{section}.min_lr": theirs[key] * peak}, note)


def _clipping(theirs: Mapping[str, Any], role: str) -> Iterator[Mapped]:
    """Yield the entries for the maximum gradient norm: each engine of verl has its own key."""
    fsdp, megatron = f"{role}.grad_clip", f"{role}.optim.clip_grad"
    read, other = (megatron, fsdp) if uses_megatron(theirs, role) else (fsdp, megatron)
    if read in theirs:
        sets = {f"{_ROLES[role][0]}.clip_grad": theirs[read]}
        yield Mapped(read, "renamed", sets, SAME_MEANING)
    if other in theirs:
        yield Mapped(other, "ignored", note=f"verl's engine of this run reads {read}")


def _routes(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entry for the replay of an expert choice; newer releases have a longer key."""
    for key in (f"{ACTOR}.router_replay.mode", f"{ACTOR}.megatron.router_replay.mode"):
        mode = theirs.get(key)
        if mode in _REPLAYS:
            sets = {"actor_config.router_replay": _REPLAYS[mode]}
            if mode == "R2":
                sets["rl_config.old_log_probs"] = "recompute"
            yield Mapped(key, "renamed", sets, SAME_MEANING)
        elif mode is not None:
            note = f"{mode}: use {', '.join(_REPLAYS)}; if dropped, each pass chooses its experts"
            yield Mapped(key, "refused", note=note)


def _split(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the devices that share a sequence."""
    sizes = {key: theirs[key] for key in SPLITS if key in theirs}
    for key, size in sizes.items():
        if size == max(sizes.values()):
            sets = {"actor_config.context_parallel_size": size}
            yield Mapped(key, "renamed", sets, SAME_MEANING)
        else:
            yield Mapped(key, "ignored", note="another key of the actor's context is larger")


def _experts(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entry for an omitted size, which is Megatron's default in verl."""
    key, place = f"{ACTOR}.megatron.expert_tensor_parallel_size", f"{ACTOR}.megatron"
    tensor = theirs.get(f"{place}.tensor_model_parallel_size", 1)
    if key not in theirs and theirs.get(f"{place}.expert_model_parallel_size", 1) > 1 < tensor:
        sets = {"actor_config.expert_tensor_parallel_size": tensor}
        yield Mapped(key, "derived", sets, "not in the file: verl's is tensor_model_parallel_size")


def has_reference(theirs: Mapping[str, Any]) -> bool:
    """Return whether the run has a KL term, and so a reference model."""
    return bool(theirs.get(f"{ACTOR}.use_kl_loss") or theirs.get("algorithm.use_kl_in_reward"))


def _reference(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the reference's layout, which is the actor's in both without a key."""
    sizes = {f"{REF}.megatron.{key}": (f"{ACTOR}.megatron.{key}", key) for key in LAYOUT}
    split = "ulysses_sequence_parallel_size"
    sizes[f"{REF}.{split}"] = (f"{ACTOR}.{split}", "context_parallel_size")
    for key in sizes if has_reference(theirs) else ():
        actors, name = sizes[key]
        if key in theirs and theirs[key] == theirs.get(actors, 1):
            yield Mapped(key, "ignored", note=f"the value of {actors}")
        elif key in theirs:
            yield Mapped(key, "renamed", {f"ref_config.{name}": theirs[key]}, SAME_MEANING)


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
