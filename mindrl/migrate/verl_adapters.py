"""Import rules of verl for LoRA adapters. Pure.

verl has two groups of keys: PEFT's for FSDP, and `lora.*` for Megatron-Bridge.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.config.lora import LINEARS, OF_MEGATRON
from mindrl.migrate.mapped import SAME_MEANING, Mapped
from mindrl.migrate.verl_training import has_critic

_MODEL, _OURS = "actor_rollout_ref.model", "actor_config.lora"
_OF_PEFT = ("lora_rank", "lora_alpha", "target_modules", "exclude_modules")
_BRIDGE = f"{_MODEL}.lora"
_OF_BRIDGE: Mapping[str, tuple[str, ...]] = {
    **OF_MEGATRON,
    "linear_q": ("q_proj",),
    "linear_k": ("k_proj",),
    "linear_v": ("v_proj",),
    "linear_fc1_gate": ("gate_proj",),
    "linear_fc1_up": ("up_proj",),
    "linear_q_proj": ("q_proj",),
    "linear_q_down_proj": ("q_a_proj",),
    "linear_q_up_proj": ("q_b_proj",),
    "linear_kv_down_proj": ("kv_a_proj_with_mqa",),
    "linear_kv_up_proj": ("kv_b_proj",),
}
"""Layer names of Megatron-Bridge: fused layers, single layers, and those of latent attention."""
_KINDS = {
    "lora": "verl has one LoRA matrix A for a fused layer; mindrl has one for each matrix in it",
    "canonical_lora": "each matrix has its own A, the same in mindrl",
}
_MERGED = "mindrl's engine gets merged weights"
_NO_TOWER = "with adapters mindrl never trains the tower"
_NO_RESULT: Mapping[str, str] = {
    **dict.fromkeys(("merge", "a2a_experimental", "fully_sharded_loras"), _MERGED),
    **{f"freeze_{part}": _NO_TOWER for part in ("vision_model", "vision_projection")},
    "freeze_language_model": "the same in mindrl",
    "lora_A_init_method": "mindrl initialises A as PEFT does",
}
_AS_HERE: Mapping[str, object] = {"dropout_position": "pre", "lora_B_init_method": "zero"}
_BASE = "the reference is the actor without its adapters, as in verl"


def verl_adapters(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the adapters of actor and critic; null equals an omitted key."""
    rank, folder = theirs.get(f"{_MODEL}.lora_rank", 0), theirs.get(f"{_MODEL}.lora_adapter_path")
    if rank > 0 or folder is not None:
        yield from _of_peft(theirs, rank, folder)
    else:
        yield from _unused(theirs, "lora_rank", [f"{_MODEL}.{name}" for name in _OF_PEFT])
    if theirs.get(f"{_BRIDGE}.rank", 0) > 0 and not rank > 0:
        yield from _of_bridge(theirs)
    else:
        keys = [key for key in theirs if key.startswith(f"{_BRIDGE}.")]
        yield from _unused(theirs, "lora.rank", keys)
    for key, note in (
        (f"{_MODEL}.use_shm", "affects only speed"),
        (
            "actor_rollout_ref.rollout.layered_summon",
            "mindrl always sends the weights to the engine in slices",
        ),
    ):
        if key in theirs:
            yield Mapped(key, "ignored", note=note)
    yield from _of_critic(theirs)


def _unused(theirs: Mapping[str, Any], rank: str, keys: list[str]) -> Iterator[Mapped]:
    for key in keys:
        if key in theirs:
            is_rank = key == f"{_MODEL}.{rank}"
            note = "no such adapters" if is_rank else f"no effect without {_MODEL}.{rank} above 0"
            yield Mapped(key, "ignored", note=note)


def _of_peft(theirs: Mapping[str, Any], rank: int, folder: str | None) -> Iterator[Mapped]:
    """Yield the entries for the PEFT keys; verl reads the rest from an adapter folder itself."""
    if folder is not None:
        note = "a PEFT folder, as in verl; r, alpha and layers are separate keys"
        sets = {f"{_OURS}.load": folder}
        yield Mapped(f"{_MODEL}.lora_adapter_path", "renamed", sets, note)
    if rank > 0:
        yield Mapped(f"{_MODEL}.lora_rank", "renamed", {f"{_OURS}.r": rank}, _BASE)
    else:
        note = "verl reads it from adapter_config.json: set it, 8 is only an example"
        yield Mapped(f"{_MODEL}.lora_rank", "open", {f"{_OURS}.r": 8}, note)
    alpha = f"{_MODEL}.lora_alpha"
    if alpha in theirs:
        yield Mapped(alpha, "renamed", {f"{_OURS}.alpha": theirs[alpha]}, SAME_MEANING)
    yield from _targets(theirs)
    excluded = f"{_MODEL}.exclude_modules"
    if theirs.get(excluded):
        note = "list the layers with adapters in target_modules; if dropped, no layer is excluded"
        yield Mapped(excluded, "refused", note=note)
    elif excluded in theirs:
        yield Mapped(excluded, "ignored", note="no layer is excluded")


def _targets(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    key = f"{_MODEL}.target_modules"
    given = theirs.get(key, "all-linear")
    names = [given] if isinstance(given, str) else [*given]
    known = [name for name in names if name in LINEARS]
    if "all-linear" in names:
        note = "all layers of attention and feed-forward; router and output head get no adapters"
        yield Mapped(key, "derived", {f"{_OURS}.target_modules": []}, note)
    elif len(known) == len(names):
        yield Mapped(key, "renamed", {f"{_OURS}.target_modules": known}, SAME_MEANING)
    else:
        other = ", ".join(str(name) for name in names if name not in known)
        rest = "only the other layers" if known else "all layers"
        note = f"{other}: use {', '.join(LINEARS)}; if dropped, {rest} get adapters"
        yield Mapped(key, "refused", {f"{_OURS}.target_modules": known}, note)


def _of_bridge(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the keys of Megatron-Bridge."""
    given = {key.removeprefix(f"{_BRIDGE}."): value for key, value in theirs.items()}
    yield Mapped(f"{_BRIDGE}.rank", "renamed", {f"{_OURS}.r": given["rank"]}, _BASE)
    kind = given.get("type", "lora")
    if kind in _KINDS:
        yield Mapped(f"{_BRIDGE}.type", "derived", note=_KINDS[kind])
    else:
        note = f"{kind}: use {' or '.join(_KINDS)}; if dropped, it is lora"
        yield Mapped(f"{_BRIDGE}.type", "refused", note=note)
    alpha, note = f"{_BRIDGE}.alpha", f"{SAME_MEANING}, or verl's default"
    yield Mapped(alpha, "renamed", {f"{_OURS}.alpha": given.get("alpha", 32)}, note)
    if "dropout" in given:
        sets = {f"{_OURS}.dropout": given["dropout"]}
        yield Mapped(f"{_BRIDGE}.dropout", "renamed", sets, SAME_MEANING)
    yield from _bridge_targets(theirs)
    if "adapter_path" in given:
        note = f"{given['adapter_path']} has Megatron's format; set {_OURS}.load to a PEFT folder"
        yield Mapped(f"{_BRIDGE}.adapter_path", "open", note=note)
    for name, note in _NO_RESULT.items():
        if name in given:
            yield Mapped(f"{_BRIDGE}.{name}", "ignored", note=note)
    for name, value in _AS_HERE.items():
        if given.get(name) == value:
            yield Mapped(f"{_BRIDGE}.{name}", "ignored", note="the same in mindrl")


def _bridge_targets(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    key, excluded = f"{_BRIDGE}.target_modules", f"{_BRIDGE}.exclude_modules"
    names = theirs.get(key) or [*OF_MEGATRON]
    found = [linear for name in names for linear in _OF_BRIDGE.get(name, ())]
    sets = {f"{_OURS}.target_modules": list(dict.fromkeys(found))}
    if unknown := [str(name) for name in names if name not in _OF_BRIDGE]:
        rest = "only the other layers" if found else "all layers"
        note = f"{', '.join(unknown)}: use {', '.join(_OF_BRIDGE)}; if dropped, {rest} get adapters"
        yield Mapped(key, "refused", sets, note)
    else:
        yield Mapped(key, "derived", sets, "the same layers, or verl's default")
    if theirs.get(excluded):
        note = "list the layers with adapters in target_modules; if dropped, no layer is excluded"
        yield Mapped(excluded, "refused", note=note)
    elif excluded in theirs:
        yield Mapped(excluded, "ignored", note="no layer is excluded")


def _of_critic(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the critic's adapters, which mindrl does not support."""
    for rank in ("lora_rank", "lora.rank"):
        key = f"critic.model.{rank}"
        if has_critic(theirs) and theirs.get(key, 0) > 0:
            note = "mindrl trains all weights of the critic; only the actor can have adapters"
            yield Mapped(key, "refused", note=note)
        elif key in theirs:
            note = "all weights of the critic are trained, the same in mindrl"
            yield Mapped(key, "ignored", note=note)
