"""Import rules of MindSpeed-RL for LoRA adapters, which mindrl supports for the actor only."""

from collections.abc import Iterator

from mindrl.config.lora import OF_MEGATRON
from mindrl.migrate.file import TheirModel, TheirRun
from mindrl.migrate.mapped import SAME_MEANING, Mapped, default

_OURS = "actor_config.lora"
_TARGETS = "lora_target_modules"
_SHARED = "rl_config.share_backbone"
_OTHERS = ("lora_r", "lora_alpha", "lora_fusion", "lora_ckpt_filter")
_OF_LATENT = {
    "linear_qkv": ("q_a_proj", "kv_a_proj_with_mqa"),
    "linear_qb": ("q_b_proj",),
    "linear_kvb": ("kv_b_proj",),
}
"""Additional layer names of a model with latent attention (MLA) that compresses its queries too."""
_A_OF_A_MATRIX = (
    "MindSpeed-RL has one LoRA matrix A for a fused layer; mindrl has one for each matrix in it, "
    "as PEFT has"
)
_CRITIC_LEARNS = "mindrl trains all weights of the critic"


def adapter_rules(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the LoRA keys of the actor, the reference and the critic."""
    actor = theirs.actor
    names = _texts(actor.given(_TARGETS))
    if names:
        yield from _of_actor(actor, names)
    is_shared = theirs.given.get(_SHARED)
    if is_shared is not None and (is_shared or names):
        yield _reference(theirs, has_adapters=bool(names))
    if theirs.has_critic:
        yield from _of_critic(theirs)


def _of_actor(actor: TheirModel, names: list[str]) -> Iterator[Mapped]:
    """Yield the entries for the target modules, rank and alpha of the actor's adapters."""
    place, known = actor.place(_TARGETS), _linears(actor)
    found = [linear for name in names for linear in known.get(name, ())]
    sets = {f"{_OURS}.target_modules": list(dict.fromkeys(found))} if found else {}
    critic = TheirModel(run=actor.run, role="critic")
    if unknown := [name for name in names if name not in known]:
        rest = "only the other layers get adapters" if found else "all weights are trained"
        note = f"{', '.join(unknown)}: use {', '.join(known)}; if dropped, {rest}"
        yield Mapped(place, "refused", sets, note)
    elif actor.run.has_critic and critic.place(_TARGETS) == place:
        note = (
            f"set for the critic too, but {_CRITIC_LEARNS}; if dropped, only the actor has adapters"
        )
        yield Mapped(place, "refused", sets, note)
    else:
        yield Mapped(place, "renamed", sets, _A_OF_A_MATRIX)
    if found:
        yield from _kind(actor)


def _linears(actor: TheirModel) -> dict[str, tuple[str, ...]]:
    """Return the layers that each MindSpeed-RL layer name stands for in this model."""
    latent = actor.value("multi_latent_attention") or actor.value("multi_head_latent_attention")
    if not latent:
        return {**OF_MEGATRON}
    found = {**OF_MEGATRON, **_OF_LATENT}
    if not actor.value("q_lora_rank"):
        found["linear_qkv"] = ("q_proj", "kv_a_proj_with_mqa")
        del found["linear_qb"]
    return found


def _kind(actor: TheirModel) -> Iterator[Mapped]:
    for key, theirs in (("lora_r", 8), ("lora_alpha", 16)):
        place, ours = actor.place(key), f"{_OURS}.{key.removeprefix('lora_')}"
        if place in actor.run.given:
            yield Mapped(place, "renamed", {ours: actor.given(key)}, SAME_MEANING)
        else:
            yield default(place, ours, theirs)
    for key, note in (
        ("lora_fusion", "affects only speed"),
        (
            "lora_ckpt_filter",
            "mindrl saves only the adapters in checkpoints, and the whole model in exports",
        ),
    ):
        if actor.given(key) is not None:
            yield Mapped(actor.place(key), "ignored", note=note)


def _reference(theirs: TheirRun, *, has_adapters: bool) -> Mapped:
    """Return the entry for `share_backbone`: which weights the reference model uses."""
    own = "for other weights set ref_config.load"
    if not theirs.given[_SHARED]:
        why = "the reference is always the actor without its adapters; the log-probs are the same"
        return Mapped(_SHARED, "ignored", note=f"{why}; {own}")
    if not has_adapters:
        note = f"true requires {_TARGETS}; if dropped, the reference is a separate model"
        return Mapped(_SHARED, "refused", note=note)
    if theirs.stage == "dapo":
        return Mapped(_SHARED, "ignored", note="DAPO has no reference model")
    return Mapped(
        _SHARED, "derived", note=f"the reference is the actor without its adapters; {own}"
    )


def _of_critic(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the LoRA keys of `critic_config`."""
    targets = f"critic_config.{_TARGETS}"
    if theirs.given.get(targets):
        note = f"{_CRITIC_LEARNS}; only the actor can have adapters"
        yield Mapped(targets, "refused", note=note)
    for key in _OTHERS:
        if f"critic_config.{key}" in theirs.given:
            yield Mapped(f"critic_config.{key}", "ignored", note=_CRITIC_LEARNS)


def _texts(value: object) -> list[str]:
    """Return a list of names as texts; a single value becomes a list of one."""
    several = value if isinstance(value, list) else [value]
    return [str(each) for each in several if each]
