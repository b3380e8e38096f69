"""Rules between a configuration and its models. One rule, one function."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from mindrl.allocation.meaning import layout_string
from mindrl.checkpoint.files import check_files
from mindrl.config.backends import TRAINING_BACKEND
from mindrl.config.finding import Finding, Value, broken, must_divide, once, spelled
from mindrl.config.layout_keys import ROLLOUT_SIZE_KEYS, SIZE_KEYS, Role
from mindrl.config.model_folders import further_models
from mindrl.config.role import LearningConfig
from mindrl.config.run import RunConfig
from mindrl.config.validate import layout_findings, sequence_limits
from mindrl.errors import MindrlError
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription
from mindrl.preflight.adapter_checks import adapter_findings_on
from mindrl.preflight.draft_checks import draft_findings_on
from mindrl.preflight.hub import hub_hint
from mindrl.preflight.memory_plan import kv_cache_findings
from mindrl.preflight.quantization_checks import quantization_findings_on
from mindrl.preflight.role_heads import draws_head, role_head
from mindrl.preflight.shared_prompts import prompts_findings
from mindrl.preflight.shipped import (
    description_of,
    draft_description,
    families_of,
    sizes_path,
)
from mindrl.rollout.planning import cache_sizes, rollout_findings
from mindrl.training.planning import planning_of

ROLLOUT_KEYS = {name: f"generate_config.{key}" for name, key in ROLLOUT_SIZE_KEYS.items()}


def describe_models(
    config: RunConfig, *, without_weights: Collection[Role] = ()
) -> tuple[dict[Role, ModelDescription], list[Finding]]:
    """Read the models of a run; return findings for folders that lack what their role needs.

    For roles in `without_weights` only config.json is read: a shipped one if the folder is missing.
    """
    models: dict[Role, ModelDescription] = {}
    unread: list[Finding] = []
    described = cache(description_of)
    for role in config.roles:
        key, path = config.model_key(role), config.model_path(role)
        families = families_of(config, role)
        try:
            if role in without_weights:
                models[role] = described(sizes_path(config, role), families)
                continue
            models[role] = described(path, families)
            head, draws = role_head(config, role), draws_head(config, role)
            check_files(path, models[role], head=head, draws_missing_head=draws)
            unread += _further_models(config, role, models[role])
        except MindrlError as error:
            unread.append(Finding(f"{key}: {error}{hub_hint(path, 'model')}", key, path))
    # Report a folder used by several roles once.
    return models, once(unread)


def _further_models(config: RunConfig, role: Role, first: ModelDescription) -> Iterator[Finding]:
    """Yield models of a role that cannot take turns with its first: they share one layout."""
    for path, key in further_models(config, role).items():
        try:
            model = description_of(path, families_of(config, role))
            if model != first:
                need = f"needs the sizes of {config.model_key(role)}={config.model_path(role)}"
                yield broken(key, path, f"{need}: they take turns in one layout")
                continue
            check_files(path, model, head=role_head(config, role))
        except MindrlError as error:
            yield Finding(f"{key}: {error}{hub_hint(path, 'model')}", key, path)


def missing_weights(config: RunConfig) -> dict[Role, Finding]:
    """Return findings for roles without weight files or without a folder."""
    found = {}
    for role in config.roles:
        key, path = config.model_key(role), config.model_path(role)
        if not Path(path).is_dir():
            found[role] = broken(key, path, f": no such folder{hub_hint(path, 'model')}")
        elif not any(Path(path).glob("*.safetensors")):
            found[role] = broken(key, path, ": no weight files")
    return found


def model_findings(config: RunConfig, models: Mapping[Role, ModelDescription]) -> list[Finding]:
    """Return what prevents the models from running as configured; empty if one is unknown."""
    if set(models) != set(config.roles):
        return []
    found: list[Finding] = []
    actor = models["actor"]
    if not layout_findings(config):
        found += draft_findings_on(config, actor, ROLLOUT_KEYS)
        found += _layouts(config, models)
        found += adapter_findings_on(config, actor)
        words = ROLLOUT_KEYS | {"model": config.model_key("actor")}
        found += rollout_findings(actor, config.rollout_layout, words)
        generate, layout = config.generate_config, config.rollout_layout
        sizes = cache_sizes(actor, layout, generate.dtype, generate.kv_block_tokens)
        if not found and (draft := draft_description(config)) is not None:
            sizes = sizes.with_draft(draft, layout, generate.dtype)
        found += kv_cache_findings(config, sizes)
    found += [*_too_long(config, actor), *_shared_prefixes(config, actor)]
    found += prompts_findings(config, actor)
    found += quantization_findings_on(config, actor)
    for role, model in models.items():
        if role != "actor":
            found += _compared_with_actor(config, role, model, actor)
    return found


def _too_long(config: RunConfig, actor: ModelDescription) -> Iterator[Finding]:
    """Compare the longest sequences with the model's positions, and with its window."""
    longest, window = actor.max_position_embeddings, actor.sliding_window
    for field, each in sequence_limits(config).items():
        if each > longest:
            need = f"exceeds the model's max_position_embeddings={longest}"
            yield broken(field, each, need, longest)
        if window is not None and each > window:
            need = (
                f"exceeds the model's sliding_window={window}; mindrl applies full "
                "attention, which is equal only up to the window"
            )
            yield broken(field, each, need, window)


def _shared_prefixes(config: RunConfig, actor: ModelDescription) -> Iterator[Finding]:
    """Yield a finding if prefixes are to be shared whose states the engine does not keep."""
    field = "generate_config.enable_prefix_caching"
    if actor.delta and config.rolls_out and config.value_of(field):
        need = (
            f"must be false for {actor.class_name}: its gated delta nets have one state "
            "per sequence, and the engine does not keep those of prefixes"
        )
        yield broken(field, True, need, False)


def _layouts(config: RunConfig, models: Mapping[Role, ModelDescription]) -> list[Finding]:
    """Compare each layout with its model; findings on models other than the actor's name it."""
    found: list[Finding] = []
    for role, model in models.items():
        same = model == models["actor"]
        folder = "" if same else f"{config.model_key(role)}={config.model_path(role)}: "
        own = _layout(config, role, model, models["actor"])
        found += [replace(finding, text=f"{folder}{finding}") for finding in own]
    # Report what roles with the same model share once.
    return once(found)


def _layout(
    config: RunConfig, role: Role, model: ModelDescription, actor: ModelDescription
) -> Iterator[Finding]:
    """Compare the layout of a role with its model, and its recomputation."""
    found = list(training_findings(config, role, model, actor))
    yield from found
    if config.layout(role).tp > 1:
        yield from _sequence_parallel(config, role, model)
    if role not in ("actor", "critic"):
        return
    section, learning = f"{role}_config", config.learning(role)
    of_actor: dict[str, Value] = {"router_replay": "none"} if role == "actor" else {}
    switches: dict[str, Value] = of_actor | {
        "moe_aux_loss_coeff": 0.0,
        "moe_grouped_gemm": False,
        "moe_router_load_balancing_type": "aux_loss",
    }
    if model.moe:
        switches = {"moe_aux_loss_coeff": 0.0} if model.other else {}
    for switch, off in switches.items():
        if (asked := getattr(learning, switch)) != off:
            kind = " that mindrl's own networks route" if model.other else ""
            need = f"needs a model with experts{kind}; use {spelled(off)}"
            yield broken(f"{section}.{switch}", asked, need, off)
    if not found:
        yield from _recomputed_runs(section, learning, config.layout(role), model)


def _sequence_parallel(config: RunConfig, role: Role, model: ModelDescription) -> Iterator[Finding]:
    """Yield a finding if sequence parallelism is required or not supported."""
    field, found = "megatron_training.sequence_parallel", config.megatron_training.sequence_parallel
    key, other = config.layout_keys(role)["tp"], model.other
    engine = planning_of(config.training_backend(role)).name
    if model.is_routed_by_own_tokens and not found:
        need = (
            f"must be true: with {key}={config.layout(role).tp} {engine} needs it to train experts"
        )
        yield broken(field, False, need, True)
    is_of_transformers = config.training_backend(role) == "fsdp"
    if other and not other.own and is_of_transformers and found:
        need = (
            f"is not supported: {engine} splits {other.architecture} by the plan of "
            "transformers, which does not include it"
        )
        yield broken(field, True, need, False)


def training_findings(
    config: RunConfig, role: Role, model: ModelDescription, actor: ModelDescription | None = None
) -> Iterator[Finding]:
    """Yield what prevents a role's engine from building its model in its layout.

    A model other than the actor's needs sizes of its own: findings name the keys of its section.
    """
    key, backend = config.backend_key(role), config.training_backend(role)
    text, keys = config.value_of(key), config.layout_keys(role) | {"backend": key}
    if actor not in (None, model):
        own = SIZE_KEYS | {"layers_per_chunk": "num_layer_list"}
        keys |= {name: f"{role}_config.{size}" for name, size in own.items()}
    sizes = config.layout(role if key == f"{role}_config.backend" else "actor")
    if model.moe and backend != TRAINING_BACKEND:
        # torch's grouped products require rows of whole 16 bytes.
        multiple = 8 if config.megatron_training.bf16 else 4
        if (width := model.moe.intermediate_size // config.layout(role).etp) % multiple:
            need = (
                f"needs experts with a width per rank that is a multiple of {multiple}, found "
                f"{width}"
            )
            legal = layout_string(sizes, TRAINING_BACKEND)
            yield Finding(f"{key}={text}: {backend} {need}", key, text, (legal,))
    for found in planning_of(backend).findings(model, config.layout(role), keys):
        if found.field != key:
            yield found
            continue
        said = f"{key}={text}{found.text.removeprefix(key)}"
        # The legal value is an engine, which gets the sizes of the string.
        strings = tuple(layout_string(sizes, str(other)) for other in found.legal)
        yield Finding(said, key, text, strings)


def _recomputed_runs(
    section: str, learning: LearningConfig, layout: TrainLayout, model: ModelDescription
) -> Iterator[Finding]:
    """Yield a finding if the last recomputed run exceeds its chunk: the engine does not check."""
    run = learning.recompute_num_layers
    if learning.recompute_method != "uniform" or run is None:
        return
    for layers in sorted({len(chunk) for chunk in layout.chunks(model.num_hidden_layers)}):
        field = f"{section}.recompute_num_layers"
        yield from must_divide(field, run, "the layers of a pipeline chunk", layers)


def _compared_with_actor(
    config: RunConfig, role: Role, model: ModelDescription, actor: ModelDescription
) -> Iterator[Finding]:
    """Yield a role whose vocabulary or model does not fit, or whose context is too short."""
    key, path = config.model_key(role), config.model_path(role)
    ours, theirs = actor.vocab_size, model.vocab_size
    # Sizes of one family pad the vocabulary differently, and a teacher samples no token.
    if theirs < ours or (theirs > ours and role != "teacher"):
        yield broken(key, path, f"has a vocabulary of {theirs} tokens; the actor's has {ours}")
    elif role == "teacher" and (number := config.value_of("teacher_config.candidates")) > ours:
        need = f"must be at most the policy's vocabulary of {ours} tokens"
        yield broken("teacher_config.candidates", number, need, ours)
    elif role == "ref" and config.rl_config.ref_update_interval and model != actor:
        need = (
            "must be the actor's model with rl_config.ref_update_interval, which copies the "
            "actor's weights into it"
        )
        yield broken(key, path, need)
    field, length = "megatron_training.seq_length", config.megatron_training.seq_length
    longest = model.max_position_embeddings
    if longest < length <= actor.max_position_embeddings:
        text = f"{key}={path}: {field}={length} exceeds its max_position_embeddings={longest}"
        yield Finding(text, field, length, (longest,))
    window = model.sliding_window
    if window is not None and window < length and window != actor.sliding_window:
        text = f"{key}={path}: {field}={length} exceeds its sliding_window={window}"
        yield Finding(text, field, length, (window,))
