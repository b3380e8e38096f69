"""The options of an engine that depend on its device and plugin.

Without PyTorch: the command of a served replica has them too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from packaging.version import Version

from mindrl.platform.device import Platform
from mindrl.platform.environment import take_on

_FOR_TRAINING = Version("0.30.0.dev0")
"""Release of vllm-ascend whose engine must know that its weights will change."""
_BLOCK_OF_WHOLE_PROMPTS = 128
"""Tokens of a cache block that vllm-ascend requires with whole prompts."""
_KERNELS = {
    "batch_invariant_ops": "built with vllm-ascend if VLLM_BATCH_INVARIANT=1 is set",
    "flash_attn_npu_v3": "the wheel of flash-attention-npu, branch trainInferConsist",
}
"""Packages that vllm-ascend's two switches call, and where they come from."""


@dataclass(frozen=True, kw_only=True)
class InvarianceNeeds:
    """What a device's batch-invariant kernels require of a run."""

    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    """Data types of the engine, the nearest legal one first."""
    same_operators: bool = False
    """Whether the trainer calls the engine's kernels too: then neither cuts its matrices, the model
    is dense, and no adapters are trained."""
    plain_attention: bool = False
    """Whether the attention kernel supports neither latent attention nor windows."""
    whole_prompts: bool = False
    """Whether a prompt must be processed at once, without prefixes from the cache."""
    own_process: bool = False
    """Whether the engine replaces operators of torch, possibly without gradients, in its whole
    process."""
    eager: bool = False
    """Whether graphs cannot contain the attention kernel."""


def invariance_needs(platform: Platform) -> InvarianceNeeds:
    """Return what the kernels of a device require for `generate_config.batch_invariant`."""
    match platform.kind:
        case "npu":
            return InvarianceNeeds(
                dtypes=("bfloat16",),
                plain_attention=True,
                whole_prompts=True,
                own_process=True,
                eager=True,
            )
        case "cpu":
            return InvarianceNeeds(dtypes=("float32",), same_operators=True, plain_attention=True)
        case "gpu":
            return InvarianceNeeds(own_process=True)


@dataclass(frozen=True, kw_only=True)
class GraphLimits:
    """Memory and streams of an engine's graphs on a device, and limits of their content."""

    layer_bytes: int = 0
    """Bytes of a layer in one graph: a bound by published logs of captures, not a measurement."""
    streams: int | None = None
    """Streams that all graphs of a process may take; None if the device has no such limit."""
    latent_heads: tuple[int, ...] = ()
    """Numbers of heads of latent attention on a rank that graphs may contain; empty for any."""


def graph_limits(platform: Platform) -> GraphLimits:
    """Return the limits of graphs on a kind of device; sources: docs/explanation/memory.md#graphs.

    NPU: vllm-ascend#4807 and #2125 log 0.52 and 0.25 MiB for a layer of one size. Its releases up
    to 0.20 fill at most 1,800 of the 2,048 streams of a device. Its FAQ names the heads. GPU:
    vllm#47654 and #11349 log 0.27 and 0.38 MiB.
    """
    match platform.kind:
        case "npu":
            return GraphLimits(layer_bytes=1 << 20, streams=1800, latent_heads=(32, 64, 128))
        case "gpu":
            return GraphLimits(layer_bytes=1 << 19)
        case "cpu":
            return GraphLimits()


def engine_options(platform: Platform, *, batch_invariant: bool = False) -> Mapping[str, object]:
    """Return the arguments of a run's engine that depend on the device and its plugin."""
    options = platform.engine_options
    if platform.kind == "cpu" and batch_invariant:
        # On processors with AVX-512 the engine's rotary kernel rounds once. The trainer calls
        # torch's operators, which round twice.
        return {**options, "compilation_config": {"custom_ops": ["-rotary_embedding"]}}
    if platform.kind != "npu" or not _knows_of_training():
        return options
    # Without it the engine casts weights to a layout that cannot be written in place, and raises at
    # a wake-up. Earlier releases read an environment variable instead, and refuse this key.
    switches = {"enabled": True}
    if batch_invariant:
        switches |= {"enable_batch_invariant": True, "enable_training_consistency": True}
        whole = {"enable_chunked_prefill": False, "block_size": _BLOCK_OF_WHOLE_PROMPTS}
        options = {**options, **whole}
    return {**options, "additional_config": {"rl_config": switches}}


def capture_without_compiling(platform: Platform) -> None:
    """Let an engine of this process capture whole steps of a model that it does not compile."""
    if not platform.compiles_engine:
        import_module("mindrl.platform.patches.npu_graphs").install()


def make_batch_invariant(platform: Platform) -> None:
    """Select kernels for the whole process whose results do not depend on a batch.

    Call it before the engine starts. On an NPU the engine does it.
    """
    match platform.kind:
        case "gpu":
            take_on({"VLLM_BATCH_INVARIANT": "1"})
        case "cpu":
            import_module("mindrl.platform.engine_operators").use_engine_products()
            import_module("mindrl.platform.patches.vllm_cpu_token_attention").install()
        case "npu":
            pass


def lacks_for_batch_invariance(platform: Platform) -> Iterator[str]:
    """Yield the packages that batch-invariant kernels need and this machine lacks."""
    if platform.kind != "npu":
        return
    if not _knows_of_training():
        yield "vllm-ascend 0.30 or later"
    for package, source in _KERNELS.items():
        if find_spec(package) is None:
            yield f"{package} ({source})"


def _knows_of_training() -> bool:
    try:
        return Version(version("vllm-ascend")) >= _FOR_TRAINING
    except PackageNotFoundError:
        return False
