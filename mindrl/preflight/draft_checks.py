"""Checks of `generate_config.speculative_config`. Imports no torch."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken
from mindrl.config.generate import Truncation
from mindrl.config.run import RunConfig
from mindrl.models.description import ModelDescription

_SECTION = "generate_config.speculative_config"
_METHOD = f"{_SECTION}.method"


def draft_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield what the engine cannot verify drafts with."""
    rollout = config.generate_config
    drafts = rollout.speculative_config
    shortest, longest = drafts.prompt_lookup_min, drafts.prompt_lookup_max
    if shortest > longest:
        need = f"must be at most {_SECTION}.prompt_lookup_max={longest}"
        yield broken(f"{_SECTION}.prompt_lookup_min", shortest, need, longest)
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


def draft_findings_on(config: RunConfig, actor: ModelDescription) -> Iterator[Finding]:
    """Yield that the engine cannot verify drafts of the actor's model."""
    method = config.generate_config.speculative_config.method
    if method and actor.delta:
        need = (
            f"must be null for {actor.class_name}: its gated delta nets forget no rejected tokens"
        )
        yield broken(_METHOD, method, need, None)


def _unverified(config: RunConfig) -> Iterator[tuple[str, float]]:
    """Yield the keys of options with which the engine does not verify drafts, and their values."""
    parts: dict[str, Truncation] = {
        "generate_config.sampling_config": config.generate_config.sampling_config
    }
    for at, each in enumerate(config.data_config.eval_sets):
        parts[f"data_config.eval_sets.{at}"] = each
    for section, part in parts.items():
        yield from ((f"{section}.{name}", value) for name, value in part.unverified().items())
