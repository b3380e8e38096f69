"""Everything that can be known before Ray starts: configuration, model, data, rewards."""

from collections.abc import Iterator
from pathlib import Path

from mindrl.allocation.from_config import rollout_layout, train_layout
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings, layout_findings, must_divide, sequence_limits
from mindrl.errors import ConfigError, MindrlError
from mindrl.models.description import ModelDescription, read_description
from mindrl.models.files import check_files
from mindrl.models.legality import rollout_findings, training_findings
from mindrl.platform.device import Platform
from mindrl.rewards.resolve import resolve_reward

_TRAINING_KEYS = {
    "tp": "actor_config.tensor_model_parallel_size",
    "cp": "actor_config.context_parallel_size",
    "pp": "actor_config.pipeline_model_parallel_size",
    "vpp": "actor_config.virtual_pipeline_model_parallel_size",
    "layers_per_chunk": "actor_config.num_layer_list",
    "ep": "actor_config.expert_model_parallel_size",
    "etp": "actor_config.expert_tensor_parallel_size",
}
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
    for field, path in _model_folders(config):
        if not Path(path).is_dir():
            yield f"{field}={path}: no such folder"


def _model_folders(config: RunConfig) -> list[tuple[str, str]]:
    """List the folders that weights come from: the actor's, then the reference's if it differs."""
    folders = [("actor_config.load", config.actor_config.load)]
    if config.uses_reference and config.reference_path != config.actor_config.load:
        field = "rl_config.integrated_mode_config.ref_model_load_path"
        folders.append((field, config.reference_path))
    return folders


def _models(config: RunConfig) -> Iterator[str]:
    models = []
    for field, path in _model_folders(config):
        try:
            models.append(_checked_model(path))
        except MindrlError as error:
            yield f"{field}: {error}"
    if len(models) != len(_model_folders(config)):
        return
    model, reference = models[0], models[-1]
    yield from _sizes(config, model)
    yield from _lengths(config, model)
    if reference is not model:
        yield from _reference(config, model, reference)


def _checked_model(folder: str) -> ModelDescription:
    model = read_description(folder)
    check_files(folder, model)
    return model


def _sizes(config: RunConfig, model: ModelDescription) -> Iterator[str]:
    """Compare both layouts with the model, where the configuration makes any."""
    if layout_findings(config):
        return
    yield from _training(config, model)
    yield from rollout_findings(model, rollout_layout(config), _ROLLOUT_KEYS)
    tp = config.actor_config.tensor_model_parallel_size
    if config.actor_config.moe_aux_loss_coeff and model.moe is None:
        yield (
            f"actor_config.moe_aux_loss_coeff={config.actor_config.moe_aux_loss_coeff:g} needs a "
            "model with experts; 0 is legal"
        )
    if config.actor_config.moe_grouped_gemm and model.moe is None:
        yield "actor_config.moe_grouped_gemm=true needs a model with experts; false is legal"
    if model.moe and tp > 1 and not config.megatron_training.sequence_parallel:
        yield (
            f"megatron_training.sequence_parallel=false: with {_TRAINING_KEYS['tp']}={tp} "
            "Megatron trains experts only where it is true"
        )


def _training(config: RunConfig, model: ModelDescription) -> Iterator[str]:
    """Compare the training layout with a model, and then what it recomputes."""
    found = list(training_findings(model, train_layout(config), _TRAINING_KEYS))
    yield from found or _recomputed_runs(config, model)


def _recomputed_runs(config: RunConfig, model: ModelDescription) -> Iterator[str]:
    """Say so where the last run of layers would go beyond its chunk: Megatron does not stop."""
    run = config.actor_config.recompute_num_layers
    if config.actor_config.recompute_method != "uniform" or run is None:
        return
    chunks = train_layout(config).chunks(model.num_hidden_layers)
    for layers in sorted({len(chunk) for chunk in chunks}):
        field = "actor_config.recompute_num_layers"
        yield from must_divide(field, run, "the layers of a pipeline chunk", layers)


def _lengths(config: RunConfig, model: ModelDescription) -> Iterator[str]:
    for field, length in sequence_limits(config):
        if length > model.max_position_embeddings:
            yield (
                f"{field}={length} is beyond the model's "
                f"max_position_embeddings={model.max_position_embeddings}"
            )


def _reference(
    config: RunConfig, model: ModelDescription, reference: ModelDescription
) -> Iterator[str]:
    field = f"rl_config.integrated_mode_config.ref_model_load_path={config.reference_path}"
    ours, theirs = model.vocab_size, reference.vocab_size
    if ours != theirs:
        yield f"{field}: vocabulary of {theirs} tokens, the actor has {ours}"
    if not layout_findings(config):
        for finding in _training(config, reference):
            yield f"{field}: {finding}"
