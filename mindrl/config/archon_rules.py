"""Rules of the engines: unsupported options are refused, never ignored.

Most are about PyTorch's own engine, `archon:` and `fsdp:`, and its section.
"""

from collections.abc import Iterator
from typing import Literal

from mindrl.config.archon import ZERO_BUBBLE, ArchonConfig
from mindrl.config.backends import TRAINING_BACKEND
from mindrl.config.finding import Finding, Value, broken, must_be_default, must_divide
from mindrl.config.layout_keys import Role
from mindrl.config.run import RunConfig

_Learner = Literal["actor", "critic"]
_MEGATRONS: dict[str, tuple[Value, str]] = {
    "recompute_granularity": (None, "choose recomputation with archon.ac_mode"),
    "recompute_method": (None, "choose recomputation with archon.ac_mode"),
    "recompute_num_layers": (None, "choose recomputation with archon.ac_mode"),
    "moe_grouped_gemm": (False, "the experts of a layer are always multiplied together"),
}
"""Keys of a role that only Megatron reads: the neutral value, and a hint."""


_OF_RUN: dict[str, tuple[Value, str]] = {
    "overlap_grad_reduce": (False, "overlaps by itself"),
    "overlap_param_gather": (False, "overlaps by itself"),
    "ddp_bucket_size": (None, "has no such buckets"),
    "use_fused_rmsnorm": (False, "has no fused norm"),
    "use_fused_swiglu": (False, "has no fused activation"),
    "use_fused_rotary_pos_emb": (False, "has no fused rotation"),
}
"""Keys of `megatron_training` that only Megatron reads: the neutral value, and the reason."""


def engine_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield what the engine of each role does not support."""
    yield from _overlap(config)
    for role in config.roles:
        if config.training_backend(role) == "fsdp":
            yield from _fully_sharded(config, role)
    learners: tuple[_Learner, ...] = ("actor", "critic")
    for learner in (each for each in learners if each in config.roles):
        if config.training_backend(learner) == TRAINING_BACKEND:
            yield from _unread(config, learner)
        else:
            yield from _megatron_only_keys(config, learner)
            yield from _pipeline(config, learner)
            yield from _recomputation(config, learner)
            yield from _sharing(config, learner)


def _fully_sharded(config: RunConfig, role: Role) -> Iterator[Finding]:
    """Refuse sizes given by keys that an `fsdp` string could not contain."""
    layout, keys = config.layout(role), config.layout_keys(role)
    for name in ("pp", "vpp", "ep", "etp"):
        if (size := getattr(layout, name)) > 1:
            yield broken(
                keys[name],
                size,
                f"needs archon: {_named(config, role)} has only d, t and c",
                1,
            )


def _unread(config: RunConfig, role: _Learner) -> Iterator[Finding]:
    """Refuse keys of the section if Megatron trains the role."""
    need = f"has an effect only with {role}_config.backend=archon:... or fsdp:..."
    yield from must_be_default(f"{role}_config.archon", _section(config, role), need)


def _megatron_only_keys(config: RunConfig, role: _Learner) -> Iterator[Finding]:
    """Refuse keys that this engine does not read."""
    for name, (off, hint) in _MEGATRONS.items():
        field = f"{role}_config.{name}"
        if (value := config.value_of(field)) != off:
            yield broken(
                field, value, f"is a Megatron option; with {_named(config, role)} {hint}", off
            )
    for name, (off, reason) in _OF_RUN.items():
        field = f"megatron_training.{name}"
        if (value := config.value_of(field)) != off:
            need = f"is a Megatron option; {_named(config, role)} {reason}"
            yield broken(field, value, need, off)
    field = "megatron_training.use_distributed_optimizer"
    if not config.value_of(field):
        need = (
            f": {_named(config, role)} shards the optimizer; set "
            f"{role}_config.archon.fsdp_size=1 to keep it whole"
        )
        yield broken(field, False, need, True)


def _overlap(config: RunConfig) -> Iterator[Finding]:
    """Check what is reduced and gathered during passes."""
    training, section = config.megatron_training, "megatron_training"
    reduces = f"{section}.overlap_grad_reduce"
    if training.overlap_param_gather:
        for key in (reduces, f"{section}.use_distributed_optimizer"):
            if not config.value_of(key):
                need = f"needs {key}=true, found false"
                yield broken(f"{section}.overlap_param_gather", True, need, False)
    if training.ddp_bucket_size is not None and not training.overlap_grad_reduce:
        need = f"needs {reduces}=true, found false: otherwise there is one bucket"
        yield broken(f"{section}.ddp_bucket_size", training.ddp_bucket_size, need, None)


def _pipeline(config: RunConfig, role: _Learner) -> Iterator[Finding]:
    """Check the schedule against the number of layer chunks per stage."""
    layout, keys, section = config.layout(role), config.layout_keys(role), _section(config, role)
    field, asked = f"{role}_config.archon.pp_schedule", section.pp_schedule
    if asked is None:
        return
    if layout.pp == 1:
        yield broken(field, asked, f"needs {keys['pp']} of 2 or more, found 1", None)
        return
    schedule, chunks = section.schedule(layout.vpp), f"{keys['vpp']}={layout.vpp}"
    exact = {"1F1B": 1, "ZBVZeroBubble": 2}.get(schedule)
    if exact is not None and layout.vpp != exact:
        yield broken(field, asked, f"needs {keys['vpp']}={exact}, found {layout.vpp}", None)
    elif exact is None and layout.vpp == 1:
        yield broken(field, asked, f"needs 2 or more chunks per stage, found {chunks}", None)


def _recomputation(config: RunConfig, role: _Learner) -> Iterator[Finding]:
    """Refuse recomputation keys without effect, and invalid combinations."""
    section, at = _section(config, role), f"{role}_config.archon"
    mode, chunks = section.ac_mode, config.layout(role).vpp
    for name, needed in {
        "selective_ac_option": "selective",
        "ac_memory_budget": "memory_budget",
    }.items():
        if mode != needed:
            need = f"has an effect only with {at}.ac_mode={needed}, found {mode}"
            yield from must_be_default(at, section, need, [name])
    if section.ac_debug and mode == "none":
        need = f"needs recomputation; set {at}.ac_mode to full, found none"
        yield broken(f"{at}.ac_debug", True, need, False)
    if mode == "memory_budget" and not section.enable_compile:
        need = f"needs {at}.enable_compile=true, because the compiler chooses; found false"
        yield broken(f"{at}.ac_mode", mode, need, "full", "none")
    by_op = mode == "selective" and section.selective_ac_option == "op"
    if by_op and config.layout(role).pp > 1 and section.schedule(chunks) in ZERO_BUBBLE:
        need = (
            f"cannot be used with {at}.pp_schedule={section.pp_schedule}, which runs two "
            "backward passes"
        )
        yield broken(f"{at}.selective_ac_option", "op", f"{need}; use a number from 1", "1", "2")


def _sharing(config: RunConfig, role: _Learner) -> Iterator[Finding]:
    """The sharding group size must divide the ranks that hold one part of the model."""
    layout, size = config.layout(role), _section(config, role).fsdp_size
    devices = len(config.role_devices(role))
    if size is not None and devices % layout.ranks_per_replica == 0:
        field = f"{role}_config.archon.fsdp_size"
        ranks = layout.dp * layout.cp
        yield from must_divide(field, size, "the data- and context-parallel ranks", ranks)


def _section(config: RunConfig, role: _Learner) -> ArchonConfig:
    return config.learning(role).archon


def _named(config: RunConfig, role: Role) -> str:
    """Return the engine of a role as the user wrote it."""
    key = config.backend_key(role)
    return f"{key}={config.value_of(key)}"
