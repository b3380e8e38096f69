"""What graphs of the rollout engine need."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken
from mindrl.config.run import RunConfig
from mindrl.platform.device import Platform


def graph_findings(config: RunConfig, platform: Platform) -> Iterator[Finding]:
    """Yield options of graphs that would have no effect, and sizes that no batch has."""
    rollout = config.generate_config
    modes, sizes = "generate_config.cudagraph_mode", "generate_config.cudagraph_capture_sizes"
    for field in (modes, sizes):
        if config.value_of(field) is None:
            continue
        if platform.kind == "cpu":
            need = "has no effect on cpu devices, where the engine captures no graphs"
            yield broken(field, config.value_of(field), need, None)
        elif platform.is_eager(rollout.enforce_eager):
            need = "needs graphs: set generate_config.enforce_eager=false"
            yield broken(field, config.value_of(field), need, None)
    given = rollout.cudagraph_capture_sizes
    if given is None:
        return
    ordered = tuple(sorted(set(given)))
    if not given or given != ordered:
        need = "must be one or more rising sizes"
        yield broken(sizes, given, need, ordered or (rollout.max_num_seqs,))
    most = rollout.max_num_batched_tokens
    if given and max(given) > most:
        need = f"must be at most generate_config.max_num_batched_tokens={most}, tokens of a step"
        yield broken(sizes, given, need, tuple(size for size in ordered if size <= most) or None)
