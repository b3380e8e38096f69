"""Rules for profiles. Imports no torch."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken
from mindrl.config.run import RunConfig

_SECTION = "profiler_config"


def profiler_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield settings with which nothing would be profiled."""
    asked, last = config.profiler_config, config.megatron_training.train_iters
    start, end = asked.profile_step_start, asked.profile_step_end
    if end <= start:
        need = f"must be above {_SECTION}.profile_step_start={start}; the last step is not included"
        yield broken(f"{_SECTION}.profile_step_end", end, need, start + 1)
    if asked.profile and start > last:
        need = f"is after the last step, megatron_training.train_iters={last}"
        yield broken(f"{_SECTION}.profile_step_start", start, need, last)
    is_host = config.rl_config.device == "cpu"
    if not asked.profile_with_cpu and (is_host or not asked.profile_with_npu):
        also = "rl_config.device=cpu" if is_host else f"{_SECTION}.profile_with_npu=false"
        need = f"disables all profiling with {also}; set one of them to true"
        yield broken(f"{_SECTION}.profile_with_cpu", False, need, True)
    if asked.profile and config.spool_config.job == "rollout":
        need = "cannot be used in a rollout job, which has no steps"
        yield broken(f"{_SECTION}.profile", True, need, False)
    for key in ("profile_ranks", "stage"):
        if getattr(asked, key) == ():
            need = "is empty; use null for all"
            yield broken(f"{_SECTION}.{key}", (), need, None)
    if asked.profile:
        yield from _ranks(config)


def _ranks(config: RunConfig) -> Iterator[Finding]:
    ranks = config.profiler_config.profile_ranks or ()
    there = config.world_size
    if config.starts_engines:
        there = max(there, config.generate_config.ranks_per_replica)
    if too_large := [rank for rank in ranks if rank >= there]:
        need = f": rank {max(too_large)} does not exist; ranks are 0 to {there - 1}"
        legal = tuple(rank for rank in ranks if rank < there)
        yield broken(f"{_SECTION}.profile_ranks", ranks, need, legal or (0,))
