"""Everything that can be known before Ray starts: configuration, model, data, rewards."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from mindrl.allocation.from_config import role_layout, rollout_layout
from mindrl.allocation.layout import TrainLayout
from mindrl.config.layout_sizes import Role
from mindrl.config.role import LearningConfig
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings, layout_findings, must_divide, sequence_limits
from mindrl.errors import ConfigError, MindrlError
from mindrl.launch.memory_plan import memory_plan, too_small
from mindrl.models.description import ModelDescription, read_description
from mindrl.models.files import check_files
from mindrl.models.legality import rollout_findings, training_findings
from mindrl.platform.device import Platform
from mindrl.rewards.resolve import resolve_reward

_ROLLOUT_KEYS = {
    "tp": "generate_config.infer_tensor_parallel_size",
    "ep": "generate_config.infer_expert_parallel_size",
}


def check(config: RunConfig, platform: Platform) -> None:
    """Refuse a run that cannot work.

    Raises:
        ConfigError: All findings, one a line.
    """
    found = [*_without_files(config, platform), *_files(config), *_models(config)]
    found = found or list(_memory(config))
    if found:
        raise ConfigError("\n".join(found))


def check_without_files(config: RunConfig, platform: Platform) -> list[str]:
    """Check what needs no file; returns what could not be checked because a file is missing.

    Raises:
        ConfigError: All findings, one a line.
    """
    missing_models = list(_missing_models(config))
    found = _without_files(config, platform)
    if not missing_models:
        found += _models(config)
        found = found or list(_memory(config))
    if found:
        raise ConfigError("\n".join(found))
    return [*_files(config), *missing_models]


def _without_files(config: RunConfig, platform: Platform) -> list[str]:
    return [
        *findings(config),
        *_backend(config, platform),
        *_engine(config, platform),
        *_rewards(config),
    ]


def _backend(config: RunConfig, platform: Platform) -> Iterator[str]:
    asked = config.megatron_training.distributed_backend
    if asked not in ("auto", platform.collective_backend):
        yield (
            f"megatron_training.distributed_backend={asked}: {platform.kind} devices use "
            f"{platform.collective_backend}"
        )


def _memory(config: RunConfig) -> Iterator[str]:
    """Say so where the memory of the devices is known, and too small."""
    capacity = config.rl_config.device_memory_mib
    if capacity is None or not config.rl_config.check_memory:
        return
    try:
        plan = memory_plan(config, capacity << 20)
    except MindrlError as error:
        yield str(error)
        return
    if not plan.fits:
        yield too_small(plan)


def _engine(config: RunConfig, platform: Platform) -> Iterator[str]:
    generate = config.generate_config
    whole_prompts = not platform.engine_options.get("enable_chunked_prefill", True)
    if whole_prompts and generate.max_num_batched_tokens < generate.max_model_len:
        yield (
            f"generate_config.max_num_batched_tokens={generate.max_num_batched_tokens} must be at "
            f"least generate_config.max_model_len={generate.max_model_len} on {platform.kind} "
            "devices, whose engine takes a prompt in one piece"
        )


def _rewards(config: RunConfig) -> Iterator[str]:
    for name in config.rl_config.verifier_function:
        try:
            resolve_reward(name)
        except MindrlError as error:
            yield str(error)


def _files(config: RunConfig) -> Iterator[str]:
    training = config.megatron_training
    for field, path in (
        ("megatron_training.data_path", training.data_path),
        ("megatron_training.test_data_path", training.test_data_path),
    ):
        if path is not None and not Path(path).is_file():
            yield f"{field}={path}: no such file"


def _missing_models(config: RunConfig) -> Iterator[str]:
    folders = {config.model_key(role): config.model_path(role) for role in config.roles}
    for field, path in folders.items():
        if not Path(path).is_dir():
            yield f"{field}={path}: no such folder"


def _models(config: RunConfig) -> Iterator[str]:
    models: dict[Role, ModelDescription] = {}
    broken = []
    for role in config.roles:
        try:
            models[role] = _checked_model(role, config.model_path(role))
        except MindrlError as error:
            broken.append(f"{config.model_key(role)}: {error}")
    if broken:
        # Of a folder that several roles read the same is said once.
        yield from dict.fromkeys(broken)
        return
    actor = models["actor"]
    if not layout_findings(config):
        yield from _layouts(config, models)
        yield from rollout_findings(actor, rollout_layout(config), _ROLLOUT_KEYS)
    yield from _lengths(config, actor)
    for role, model in models.items():
        if role != "actor":
            yield from _beside_the_actor(config, role, model, actor)


def _layouts(config: RunConfig, models: Mapping[Role, ModelDescription]) -> list[str]:
    """Compare each layout with its model; a finding on another model than the actor's names it."""
    found = []
    for role, model in models.items():
        same = model == models["actor"]
        folder = "" if same else f"{config.model_key(role)}={config.model_path(role)}: "
        found += [f"{folder}{finding}" for finding in _sizes(config, role, model)]
    # What roles of one model have in common is said once.
    return list(dict.fromkeys(found))


def _checked_model(role: Role, folder: str) -> ModelDescription:
    """Compare config.json and weight files with what a role needs of them."""
    model = read_description(folder)
    check_files(
        folder,
        model,
        head="value" if role in ("critic", "reward") else "vocabulary",
        draws_missing_head=role == "critic",
    )
    return model


def _sizes(config: RunConfig, role: Role, model: ModelDescription) -> Iterator[str]:
    """Compare the layout of a role with its model, and then what it recomputes."""
    keys = config.layout_sizes(role).keys
    layout = role_layout(config, role)
    found = list(training_findings(model, layout, keys))
    yield from found
    if model.moe and layout.tp > 1 and not config.megatron_training.sequence_parallel:
        yield (
            f"megatron_training.sequence_parallel=false: with {keys['tp']}={layout.tp} "
            "Megatron trains experts only where it is true"
        )
    learning = {"actor": config.actor_config, "critic": config.critic_config}.get(role)
    if learning is not None:
        yield from _experts(f"{role}_config", learning, model)
        if not found:
            yield from _recomputed_runs(f"{role}_config", learning, layout, model)


def _experts(section: str, learning: LearningConfig, model: ModelDescription) -> Iterator[str]:
    if model.moe is not None:
        return
    if learning.moe_aux_loss_coeff:
        yield (
            f"{section}.moe_aux_loss_coeff={learning.moe_aux_loss_coeff:g} needs a "
            "model with experts; 0 is legal"
        )
    if learning.moe_grouped_gemm:
        yield f"{section}.moe_grouped_gemm=true needs a model with experts; false is legal"


def _recomputed_runs(
    section: str, learning: LearningConfig, layout: TrainLayout, model: ModelDescription
) -> Iterator[str]:
    """Say so where the last run of layers would go beyond its chunk: Megatron does not stop."""
    run = learning.recompute_num_layers
    if learning.recompute_method != "uniform" or run is None:
        return
    for layers in sorted({len(chunk) for chunk in layout.chunks(model.num_hidden_layers)}):
        field = f"{section}.recompute_num_layers"
        yield from must_divide(field, run, "the layers of a pipeline chunk", layers)


def _lengths(config: RunConfig, model: ModelDescription) -> Iterator[str]:
    for field, length in sequence_limits(config):
        if length > model.max_position_embeddings:
            yield (
                f"{field}={length} is beyond the model's "
                f"max_position_embeddings={model.max_position_embeddings}"
            )


def _beside_the_actor(
    config: RunConfig, role: Role, model: ModelDescription, actor: ModelDescription
) -> Iterator[str]:
    """Say why a role could not read what the actor writes."""
    field = f"{config.model_key(role)}={config.model_path(role)}"
    ours, theirs = actor.vocab_size, model.vocab_size
    if ours != theirs:
        yield f"{field}: vocabulary of {theirs} tokens, the actor has {ours}"
    length, longest = config.megatron_training.seq_length, model.max_position_embeddings
    if longest < length <= actor.max_position_embeddings:
        yield (
            f"{field}: megatron_training.seq_length={length} is beyond its "
            f"max_position_embeddings={longest}"
        )
