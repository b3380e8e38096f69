"""Rules between a configuration and the models that it names. One rule, one function."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from mindrl.checkpoint.files import check_files
from mindrl.config.backends import TRAINING_ENGINE
from mindrl.config.finding import Finding, broken, must_divide, once
from mindrl.config.layout_keys import ROLLOUT_SIZE_KEYS, Role
from mindrl.config.role import LearningConfig
from mindrl.config.run import RunConfig
from mindrl.config.validate import layout_findings, sequence_limits
from mindrl.errors import MindrlError
from mindrl.layouts.layout import TrainLayout
from mindrl.models.description import ModelDescription, read_description
from mindrl.observability.units import MIB
from mindrl.preflight.memory_plan import one_sequence
from mindrl.preflight.shipped import sizes_path
from mindrl.rollout.planning import kv_bytes_per_token, rollout_findings
from mindrl.training.planning import training_findings

_KV_CACHE = "generate_config.kv_cache_mib"
ROLLOUT_KEYS = {name: f"generate_config.{key}" for name, key in ROLLOUT_SIZE_KEYS.items()}


@dataclass(frozen=True)
class Models:
    """The models of a run, as far as their folders can be read."""

    of: Mapping[Role, ModelDescription]
    """What config.json says, where it can be read."""
    broken: tuple[Finding, ...] = ()
    """One for each folder that does not hold what its role needs."""


def describe_models(config: RunConfig, *, without_weights: frozenset[Role] = frozenset()) -> Models:
    """Read the models of a run.

    Args:
        config: Names their folders.
        without_weights: Roles of which config.json alone is read: a shipped one where the folder
            is not here.
    """
    models: dict[Role, ModelDescription] = {}
    unread = []
    described = cache(read_description)
    for role in config.roles:
        key, path = config.model_key(role), config.model_path(role)
        try:
            if role in without_weights:
                models[role] = described(sizes_path(config, role))
                continue
            models[role] = described(path)
            _check_weights(role, path, models[role])
        except MindrlError as error:
            unread.append(Finding(f"{key}: {error}", key, path))
    # Of a folder that several roles read the same is said once.
    return Models(models, tuple(once(unread)))


def missing_weights(config: RunConfig) -> dict[Role, Finding]:
    """Say which roles have no weight files, or no folder at all."""
    found = {}
    for role in config.roles:
        key, path = config.model_key(role), config.model_path(role)
        if not Path(path).is_dir():
            found[role] = broken(key, path, ": no such folder")
        elif not any(Path(path).glob("*.safetensors")):
            found[role] = broken(key, path, ": no weight files")
    return found


def model_findings(config: RunConfig, models: Models) -> list[Finding]:
    """Return what keeps the models from being run as the configuration asks."""
    found = list(models.broken)
    if set(models.of) != set(config.roles):
        return found
    actor = models.of["actor"]
    if not layout_findings(config):
        found += _layouts(config, models.of)
        found += rollout_findings(actor, config.rollout_layout, ROLLOUT_KEYS)
        found += _kv_cache(config, actor)
    found += _lengths(config, actor)
    for role, model in models.of.items():
        if role != "actor":
            found += _vocabulary(config, role, model, actor)
            found += _length_beside_the_actor(config, role, model, actor)
    return found


def _check_weights(role: Role, folder: str, model: ModelDescription) -> None:
    """Compare the weight files with what a role needs of them."""
    check_files(
        folder,
        model,
        head="value" if role in ("critic", "reward") else "vocabulary",
        draws_missing_head=role == "critic",
    )


def _layouts(config: RunConfig, models: Mapping[Role, ModelDescription]) -> list[Finding]:
    """Compare each layout with its model; a finding on another model than the actor's names it."""
    found: list[Finding] = []
    for role, model in models.items():
        same = model == models["actor"]
        folder = "" if same else f"{config.model_key(role)}={config.model_path(role)}: "
        own = _layout(config, role, model)
        found += [replace(finding, text=f"{folder}{finding}") for finding in own]
    # What roles of one model have in common is said once.
    return once(found)


def _layout(config: RunConfig, role: Role, model: ModelDescription) -> Iterator[Finding]:
    """Compare the layout of a role with its model, and then what it recomputes."""
    layout, keys = config.layout(role), config.layout_keys(role)
    found = list(training_findings(model, layout, keys))
    yield from found
    if model.moe:
        yield from _sequence_parallel(config, keys["tp"], layout.tp)
    learning = {"actor": config.actor_config, "critic": config.critic_config}.get(role)
    if learning is None:
        return
    if model.moe is None:
        yield from _without_experts(f"{role}_config", learning)
    if not found:
        yield from _recomputed_runs(f"{role}_config", learning, layout, model)


def _sequence_parallel(config: RunConfig, key: str, tp: int) -> Iterator[Finding]:
    """Say so where experts would not train with a tensor-parallel size, which a key gives."""
    if tp > 1 and not config.megatron_training.sequence_parallel:
        need = f": with {key}={tp} {TRAINING_ENGINE} trains experts only where it is true"
        yield broken("megatron_training.sequence_parallel", False, need, True)


def _without_experts(section: str, learning: LearningConfig) -> Iterator[Finding]:
    if weight := learning.moe_aux_loss_coeff:
        need = "needs a model with experts; 0 is legal"
        yield broken(f"{section}.moe_aux_loss_coeff", weight, need, 0.0)
    if learning.moe_grouped_gemm:
        need = "needs a model with experts; false is legal"
        yield broken(f"{section}.moe_grouped_gemm", True, need, False)


def _recomputed_runs(
    section: str, learning: LearningConfig, layout: TrainLayout, model: ModelDescription
) -> Iterator[Finding]:
    """Say so where the last run of layers would go beyond its chunk: the engine does not stop."""
    run = learning.recompute_num_layers
    if learning.recompute_method != "uniform" or run is None:
        return
    for layers in sorted({len(chunk) for chunk in layout.chunks(model.num_hidden_layers)}):
        field = f"{section}.recompute_num_layers"
        yield from must_divide(field, run, "the layers of a pipeline chunk", layers)


def _kv_cache(config: RunConfig, actor: ModelDescription) -> Iterator[Finding]:
    """Say so where a KV cache of a given size does not hold one sequence."""
    generate = config.generate_config
    per_token = kv_bytes_per_token(actor, config.rollout_layout, generate.dtype)
    least, sequence = one_sequence(config, per_token)
    if generate.kv_cache_mib is not None and generate.kv_cache_mib * MIB < least:
        yield broken(_KV_CACHE, generate.kv_cache_mib, f": {sequence}", -(-least // MIB))


def _lengths(config: RunConfig, model: ModelDescription) -> Iterator[Finding]:
    longest = model.max_position_embeddings
    for field, length in sequence_limits(config):
        if length > longest:
            need = f"is beyond the model's max_position_embeddings={longest}"
            yield broken(field, length, need, longest)


def _vocabulary(
    config: RunConfig, role: Role, model: ModelDescription, actor: ModelDescription
) -> Iterator[Finding]:
    """Say so where a role could not read the actor's tokens."""
    ours, theirs = actor.vocab_size, model.vocab_size
    if ours != theirs:
        need = f": vocabulary of {theirs} tokens, the actor has {ours}"
        yield broken(config.model_key(role), config.model_path(role), need)


def _length_beside_the_actor(
    config: RunConfig, role: Role, model: ModelDescription, actor: ModelDescription
) -> Iterator[Finding]:
    """Say so where the actor can count further than a role that reads what it writes."""
    folder = f"{config.model_key(role)}={config.model_path(role)}"
    field, length = "megatron_training.seq_length", config.megatron_training.seq_length
    longest = model.max_position_embeddings
    if longest < length <= actor.max_position_embeddings:
        text = f"{folder}: {field}={length} is beyond its max_position_embeddings={longest}"
        yield Finding(text, field, length, (longest,))
