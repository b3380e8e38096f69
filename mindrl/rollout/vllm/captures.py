"""Steps that vLLM's engine captures as graphs. Imports no vLLM and no torch."""

from dataclasses import dataclass

from mindrl.config.generate import GenerateConfig, GraphMode
from mindrl.platform.device import Platform

WITHOUT_PARTS: tuple[GraphMode, ...] = ("FULL_DECODE_ONLY", "FULL")
"""Modes that need no compilation: nothing cuts a step into parts."""
_DEFAULT_MODE: GraphMode = "FULL_AND_PIECEWISE"
_LARGEST = 512
_OF_ENGINE = (1, 2, 4, *range(8, 256, 8), *range(256, _LARGEST + 1, 16))
"""Sizes of vLLM's `_set_cudagraph_sizes`."""
_FEW = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, _LARGEST)
"""Sequences of a decode step with a graph: a step is padded by half at most."""


def graph_mode(generate: GenerateConfig, platform: Platform) -> GraphMode | None:
    """Return the mode of graphs that the engine gets; None leaves it to the engine."""
    if generate.cudagraph_mode is not None or platform.is_eager(generate.enforce_eager):
        return generate.cudagraph_mode
    return None if platform.compiles_engine else WITHOUT_PARTS[0]


def capture_sizes(generate: GenerateConfig, platform: Platform) -> tuple[int, ...] | None:
    """Return the sizes that the engine gets; None leaves them to the engine.

    Without compilation they end with the largest decode step: vllm-ascend's own sizes may end below
    it, and larger steps would run without graphs (vllm-ascend#16049).
    """
    given = generate.cudagraph_capture_sizes
    if given is not None or platform.is_eager(generate.enforce_eager) or platform.compiles_engine:
        return given
    most, each = generate.max_num_seqs, _tokens_of_sequence(generate)
    counts = sorted({*(count for count in _FEW if count < most), min(most, _LARGEST)})
    sizes = tuple(count * each for count in counts)
    return tuple(size for size in sizes if size <= generate.max_num_batched_tokens) or sizes[:1]


def decode_tokens(generate: GenerateConfig) -> int:
    """Return the maximum tokens of a decode step, drafts included."""
    return generate.max_num_seqs * _tokens_of_sequence(generate)


def _tokens_of_sequence(generate: GenerateConfig) -> int:
    drafts = generate.speculative_config
    return 1 if drafts.method is None else 1 + drafts.num_speculative_tokens


@dataclass(frozen=True, kw_only=True)
class Captures:
    """Sizes of the graphs of an engine, in tokens of a step."""

    decode: tuple[int, ...] = ()
    """Sizes of whole decode steps."""
    others: tuple[int, ...] = ()
    """Sizes of other steps, whole or in parts."""

    @property
    def number(self) -> int:
        """Number of captured sizes; one of both kinds counts twice."""
        return len(self.decode) + len(self.others)


def captures(generate: GenerateConfig, platform: Platform) -> Captures:
    """Return the captured sizes; none if the engine is eager or the device has no graphs."""
    if platform.kind == "cpu" or platform.is_eager(generate.enforce_eager):
        return Captures()
    mode, most = graph_mode(generate, platform) or _DEFAULT_MODE, decode_tokens(generate)
    sizes = capture_sizes(generate, platform)
    if sizes is None:
        sizes = tuple(size for size in _OF_ENGINE if size <= 2 * most)
    decode = tuple(size for size in sizes if size <= most)
    return Captures(
        decode=() if mode in ("FULL", "PIECEWISE") else decode,
        others=() if mode == "FULL_DECODE_ONLY" else sizes,
    )
