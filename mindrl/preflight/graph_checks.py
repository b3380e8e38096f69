"""Checks of the rollout engine's graphs."""

from collections.abc import Iterator

from mindrl.config.finding import Finding, broken
from mindrl.config.generate import GenerateConfig
from mindrl.config.run import RunConfig
from mindrl.models.description import ModelDescription
from mindrl.platform.device import Platform
from mindrl.platform.device_engine import graph_limits
from mindrl.rollout.planning import WITHOUT_PARTS, captures, decode_tokens, graph_mode

_MODE, _SIZES = "generate_config.cudagraph_mode", "generate_config.cudagraph_capture_sizes"
_EAGER, _SEQUENCES = "generate_config.enforce_eager", "generate_config.max_num_seqs"


def graph_findings(config: RunConfig, platform: Platform) -> Iterator[Finding]:
    """Yield options of graphs that would have no effect, and sizes that no batch has."""
    rollout = config.generate_config
    for field in (_MODE, _SIZES):
        if config.value_of(field) is None:
            continue
        if platform.kind == "cpu":
            need = "has no effect on cpu devices, where the engine captures no graphs"
            yield broken(field, config.value_of(field), need, None)
        elif platform.is_eager(rollout.enforce_eager):
            need = "needs graphs: set generate_config.enforce_eager=false"
            yield broken(field, config.value_of(field), need, None)
    mode = rollout.cudagraph_mode
    if mode not in (None, *WITHOUT_PARTS) and not platform.compiles_engine:
        where = f"in a process with a trainer on {platform.kind} devices"
        need = f"needs torch.compile, which does nothing {where}"
        yield broken(_MODE, mode, need, *WITHOUT_PARTS)
    if rollout.cudagraph_capture_sizes is not None:
        yield from _sizes(rollout, platform, rollout.cudagraph_capture_sizes)


def _sizes(
    rollout: GenerateConfig, platform: Platform, given: tuple[int, ...]
) -> Iterator[Finding]:
    ordered = tuple(sorted(set(given)))
    if not given or given != ordered:
        need = "must be one or more rising sizes"
        yield broken(_SIZES, given, need, ordered or (rollout.max_num_seqs,))
    most, what = rollout.max_num_batched_tokens, "tokens of a step"
    key = "generate_config.max_num_batched_tokens"
    if graph_mode(rollout, platform) == WITHOUT_PARTS[0] and decode_tokens(rollout) < most:
        most, key, what = decode_tokens(rollout), _SEQUENCES, "tokens of a decode step"
        if most > rollout.max_num_seqs:
            key = f"{_SEQUENCES} times one more than num_speculative_tokens"
    if given and max(given) > most:
        need = f"must be at most {key}={most}, {what}"
        yield broken(_SIZES, given, need, tuple(size for size in ordered if size <= most) or None)


def graph_findings_on(
    config: RunConfig, platform: Platform, model: ModelDescription | None
) -> Iterator[Finding]:
    """Yield parts of the actor's model that graphs of the device cannot contain."""
    rollout = config.generate_config
    if model is None or model.mla is None or not captures(rollout, platform).number:
        return
    legal, tp = graph_limits(platform).latent_heads, rollout.infer_tensor_parallel_size
    heads = model.num_attention_heads // tp
    if legal and heads not in legal:
        need = (
            f": graphs of latent attention need {', '.join(map(str, legal))} heads on a device; "
            f"num_attention_heads={model.num_attention_heads} over "
            f"generate_config.infer_tensor_parallel_size={tp} are {heads}; use true"
        )
        yield broken(_EAGER, False, need, True)


def graph_warnings(config: RunConfig, platform: Platform) -> Iterator[Finding]:
    """Yield captured sizes that leave decode steps without a graph, or exceed the streams."""
    rollout = config.generate_config
    found, most = captures(rollout, platform), decode_tokens(rollout)
    if found.decode and max(found.decode) < most:
        need = f": decode steps of {max(found.decode) + 1} to {most} tokens run without graphs"
        given = rollout.cudagraph_capture_sizes
        yield broken(_SIZES, given, need, *([] if given is None else [(*given, most)]))
    streams = graph_limits(platform).streams
    if streams is None:
        return
    groups = int(rollout.infer_tensor_parallel_size > 1)
    # Each group of ranks takes 40 streams, and two in each graph.
    legal = (streams - 40 * groups) // (1 + 2 * groups)
    if found.number > legal:
        need = f": {found.number} graphs may exceed the {streams} streams of a device; use {legal}"
        yield broken(_SIZES, rollout.cudagraph_capture_sizes, need)
