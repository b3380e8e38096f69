"""Checks of `generate_config.speculative_config`. Imports no torch."""

from collections.abc import Iterator

from mindrl.checkpoint.files import check_files
from mindrl.config.finding import Finding, broken
from mindrl.config.generate import Truncation
from mindrl.config.run import RunConfig
from mindrl.data.vocabulary import other_token
from mindrl.errors import MindrlError
from mindrl.models.description import ModelDescription
from mindrl.models.legality import Keys
from mindrl.preflight.hub import hub_hint
from mindrl.preflight.shipped import planned_description
from mindrl.rollout.planning import rollout_findings

_SECTION = "generate_config.speculative_config"
_METHOD = f"{_SECTION}.method"


def draft_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield settings that prevent the engine from verifying drafts."""
    rollout = config.generate_config
    drafts = rollout.speculative_config
    shortest, longest = drafts.prompt_lookup_min, drafts.prompt_lookup_max
    if shortest > longest:
        need = f"must be at most {_SECTION}.prompt_lookup_max={longest}"
        yield broken(f"{_SECTION}.prompt_lookup_min", shortest, need, longest)
    yield from _model_of_drafts(config)
    if drafts.method is None:
        return
    if rollout.is_served:
        need = ": servers choose it when they start; use null, or no servers"
        yield broken(_METHOD, drafts.method, need, None)
    if rollout.batch_invariant:
        need = (
            ": verified tokens share a batch with drafts, so their number changes each batch; use "
            "null, or generate_config.batch_invariant=false"
        )
        yield broken(_METHOD, drafts.method, need, None)
    if (stages := rollout.infer_pipeline_parallel_size) > 1:
        need = f"must be 1 with {_METHOD}={drafts.method}: several stages do not verify drafts"
        yield broken("generate_config.infer_pipeline_parallel_size", stages, need, 1)
    for key, value in _unverified(config):
        need = f"must be 0 with {_METHOD}={drafts.method}: drafts are not verified with it"
        yield broken(key, value, need, 0)


def _model_of_drafts(config: RunConfig) -> Iterator[Finding]:
    """Yield that the model is missing, or what it cannot be combined with."""
    rollout, key = config.generate_config, f"{_SECTION}.model"
    drafts = rollout.speculative_config
    if drafts.method != "draft_model":
        if drafts.model is not None:
            need = f"has no effect without {_METHOD}=draft_model"
            yield broken(key, drafts.model, need, None)
        return
    if drafts.model is None:
        yield Finding(f"{key} is needed with {_METHOD}=draft_model: name a model's folder", key)
    if rollout.quantization is not None:
        need = f"must be null with {_METHOD}=draft_model: the two were not tried together"
        yield broken("generate_config.quantization", rollout.quantization, need, None)


def draft_findings_on(config: RunConfig, actor: ModelDescription, keys: Keys) -> Iterator[Finding]:
    """Yield what prevents the engine from verifying drafts of the actor's model.

    `keys` are those of the rollout's sizes.
    """
    section = config.generate_config.speculative_config
    method = section.method
    if method == "draft_model" and section.model is not None:
        yield from _draft_model(config, section.model, actor, keys)
    if method and actor.delta:
        need = (
            f"must be null for {actor.class_name}: its gated delta nets forget no rejected tokens"
        )
        yield broken(_METHOD, method, need, None)


def _draft_model(
    config: RunConfig, folder: str, actor: ModelDescription, keys: Keys
) -> Iterator[Finding]:
    """Yield what prevents a model from drafting for the actor's."""
    key = f"{_SECTION}.model"
    try:
        draft = planned_description(folder)
    except MindrlError as error:
        yield Finding(f"{key}: {error}{hub_hint(folder, 'model')}", key, folder)
        return
    if draft.delta or draft.moe or draft.other:
        need = f": {draft.class_name} is no dense model of a family with a network in mindrl"
        yield broken(key, folder, need)
        return
    if draft.vocab_size != actor.vocab_size:
        need = f"needs vocab_size={actor.vocab_size}, as the policy; found {draft.vocab_size}"
        yield broken(key, folder, need)
    yield from rollout_findings(draft, config.rollout_layout, {**keys, "model": key})


def draft_file_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield that a draft model lacks files, or that its tokens differ from the policy's."""
    key, folder = f"{_SECTION}.model", config.generate_config.speculative_config.model
    if folder is None:
        return
    try:
        check_files(folder, planned_description(folder), head="vocabulary")
    except MindrlError as error:
        yield Finding(f"{key}: {error}{hub_hint(folder, 'model')}", key, folder)
    if why := other_token(folder, config.tokenizer_path, "draft model"):
        need = f"needs the tokenizer in {config.tokenizer_path}: {why}"
        yield broken(key, folder, need)


def _unverified(config: RunConfig) -> Iterator[tuple[str, float]]:
    """Yield the keys of options with which the engine does not verify drafts, and their values."""
    parts: dict[str, Truncation] = {
        "generate_config.sampling_config": config.generate_config.sampling_config
    }
    for at, each in enumerate(config.data_config.eval_sets):
        parts[f"data_config.eval_sets.{at}"] = each
    for section, part in parts.items():
        yield from ((f"{section}.{name}", value) for name, value in part.unverified().items())
