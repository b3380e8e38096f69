"""Rules for jobs that share a spool. Imports no torch."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken, must_divide
from mindrl.config.run import RunConfig

_STALENESS = "rl_config.max_staleness"


def spool_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield what prevents a job from working with a spool."""
    spool, rl = config.spool_config, config.rl_config
    if spool.job is None:
        if spool.folder is not None:
            need = "has an effect only in a job of mindrl job; remove it"
            yield broken("spool_config.folder", spool.folder, need, None)
        return
    if spool.folder is None:
        text = (
            "spool_config.folder is missing: the train job and the rollout jobs exchange "
            "files in it"
        )
        yield Finding(text, "spool_config.folder")
    if spool.publish_every > rl.max_staleness + 1:
        need = (
            f"must be at most {_STALENESS}={rl.max_staleness} plus 1, because a response "
            "is as old as the weights that generated it"
        )
        yield broken("spool_config.publish_every", spool.publish_every, need, rl.max_staleness + 1)
    if (part := spool.prompts_per_record) is not None:
        batch = config.megatron_training.global_batch_size
        field = "spool_config.prompts_per_record"
        yield from must_divide(field, part, "megatron_training.global_batch_size", batch)
    yield from _steps(config)
    if spool.job == "train":
        yield from _train(config)


def _steps(config: RunConfig) -> Iterator[Finding]:
    """Yield what the exchange of whole responses and their scores does not support."""
    rl = config.rl_config
    if rl.partial_rollout:
        need = "must be false: a rollout job completes each response that it starts"
        yield broken("rl_config.partial_rollout", True, need, False)
    if rl.has_baseline:
        need = "is not supported with a spool, which has no greedy answers"
        yield broken("rl_config.adv_estimator", rl.adv_estimator, need)
    if rl.debug is not None:
        need = "is not supported in a job of mindrl job, which already runs one half of each step"
        yield broken("rl_config.debug", rl.debug, need, None)


def _train(config: RunConfig) -> Iterator[Finding]:
    training = config.megatron_training
    if not training.save_interval:
        need = "must be 1 or more: records stay in the spool until a checkpoint includes their step"
        yield broken("megatron_training.save_interval", 0, need, 1)
    if training.on_save_failure == "skip":
        need = (
            "is not supported with a spool: records stay there until a checkpoint includes "
            "their step"
        )
        yield broken("megatron_training.on_save_failure", "skip", need, "stop")
    if training.begins_from is not None and not training.finetune:
        need = "needs megatron_training.finetune=true, because the steps of a spool start at 1"
        yield broken("megatron_training.resume", training.resume, need, "auto")
