"""Whether a model can share the prompts of its sequences."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig
from mindrl.config.shared_prompts import asks_for_shared_prompts
from mindrl.models.description import ModelDescription
from mindrl.platform.device import DeviceKind, shared_prompts_were_run


def shares_prompts(
    config: RunConfig, role: Role, model: ModelDescription, kind: DeviceKind
) -> bool:
    """Return whether the training engine of a role computes a prompt once for its samples.

    If not configured, only where it was run.
    """
    bf16, backend = config.megatron_training.bf16, config.training_backend(role)
    seen = shared_prompts_were_run(kind, bf16=bf16, backend=backend)
    if config.rl_config.share_prompts is None and not seen:
        return False
    return asks_for_shared_prompts(config, role) and not _why_not(model)


def prompts_findings(config: RunConfig, actor: ModelDescription) -> Iterator[Finding]:
    """Yield a finding if a model cannot share prompts as configured."""
    key = "rl_config.share_prompts"
    if config.value_of(key) and (reason := _why_not(actor)):
        yield broken(key, True, f"cannot be used: {reason}", False, None)


def _why_not(model: ModelDescription) -> str:
    if model.reads_images:
        return "prompts of equal tokens may have other pictures"
    if model.mla is not None:
        return "each layer of latent attention counts positions from the start of a slot"
    if model.delta:
        return "the state of gated delta nets goes from one token to the next of a sequence"
    return ""
