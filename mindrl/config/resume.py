"""Check whether a run can resume from another run's checkpoint: keys that must not change."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from mindrl.config.finding import Finding, broken
from mindrl.config.load import sections
from mindrl.config.run import RunConfig
from mindrl.config.text import dotted

_FREE = re.compile(
    r"""
    \w+_config\.(backend|.*_parallel_size|num_layer_list|.*micro_batch_size|offload_\w+|save|sizes)
    |\w+_config\.(recompute_\w+|logprob_chunk_tokens|archon\.\w+|context_parallel_algo|ulysses_degree_in_cp)
    |megatron_training\.(save_interval|export_interval|keep_\w+|resume\w*|finetune|no_load_\w+)
    |megatron_training\.(allow_download|use_distributed_optimizer|sequence_parallel|overlap_\w+|ddp_bucket_size|distributed_\w+|on_\w+)
    |rl_config\.((actor|critic|reference|reward|teacher|rollout)_resource\..*|use_integrated_worker|device\w*)
    |rl_config\.(allocation_mode|.*packing_token_size|use_dynamic_bsz|share_prompts)
    |rl_config\.(use_remove_padding|blocking|guarantee_order|check_memory|memory_timeline_steps)
    |rl_config\.(test_freq|max_logprob_gap|logprob_gap_steps|log_samples|use_tensorboard|worker_\w+|report)
    |rl_config\.(max_restarts|device_wait_seconds|on_device_loss|grace_seconds|heartbeat_\w+)
    |rl_config\.(verifier_(timeout|parallel)|on_reward_failure|debug_rollouts|tracking\..*)
    |data_config\.(eval_sets|best_by)
    |environment_config\.(sandbox|processes|memory_mib|\w+_timeout_seconds|max_failed_fraction)
    |profiler_config\.\w+
    |spool_config\.(folder|job|max_records_mib|lease_seconds|poll_seconds|waits)
    |generate_config\.(max_num_\w+|max_model_len|gpu_memory_utilization|kv_cache_mib|enforce_eager|cudagraph_\w+)
    |generate_config\.(enable_prefix_caching|kv_block_tokens|trust_remote_code|rank_map|reshard_\w+|verify_weights)
    |generate_config\.(router|server(s|_\w+|s_\w+))
    |teacher_config\.(url|token_file)
    """,
    re.VERBOSE,
)
"""Keys that affect how a run is executed, not its results."""
_ALLOW = "list the key in megatron_training.resume_allow to continue anyway"
_WEIGHTS = re.compile(r"(actor|critic)_config\.load|actor_config\.lora\.(r|target_modules)")
"""Keys that determine which model the weights belong to, and which weights a checkpoint has."""


def recorded_config(config: RunConfig) -> dict[str, Any]:
    """Return all keys as stored in a checkpoint, dotted, with JSON values."""
    flat = dict(dotted(asdict(config)))
    kept: dict[str, Any] = json.loads(json.dumps(flat))
    return kept


def resume_findings(
    before: Mapping[str, Any], config: RunConfig, *, weights_alone: bool = False
) -> Iterator[Finding]:
    """Yield each key that makes the run differ from the one of a checkpoint.

    Args:
        before: `recorded_config` of the run that wrote it.
        config: Configuration of the resumed run.
        weights_alone: Only weights are loaded; then only the model must be the same.
    """
    allowed = config.megatron_training.resume_allow
    before, now = _by_field(before), _by_field(recorded_config(config))

    def may_differ(key: str) -> bool:
        free = not _WEIGHTS.fullmatch(key) if weights_alone else _FREE.fullmatch(key)
        return bool(free) or key in allowed

    for section, has in sorted(_new_or_gone(before, now).items()):
        if not may_differ(section):
            had = "no such section" if has else "one"
            yield Finding(f"{section}: the resumed run had {had}; {_ALLOW}", section)
    # Any other key that only one of them has comes from another version.
    for key in sorted(before.keys() & now.keys()):
        was, value = before[key], now[key]
        if was != value and not may_differ(key):
            shown = tuple(value) if isinstance(value, list) else value
            need = f"differs from the resumed run, which had {json.dumps(was)}; {_ALLOW}"
            yield broken(key, shown, need, was)


def _by_field(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of recorded keys, those below a field of free keys as one mapping."""
    places = sections(RunConfig)
    found: dict[str, Any] = {}
    for key, value in recorded.items():
        path = key.split(".")
        depth = next((n for n in range(1, len(path)) if (*path[:n],) not in places), len(path))
        field, rest = ".".join(path[:depth]), ".".join(path[depth:])
        if rest:
            found.setdefault(field, {})[rest] = value
        else:
            found[field] = value
    return found


def _new_or_gone(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, bool]:
    """Return the sections that only one of two runs has, and whether that is the later run."""
    found = {}
    for ours, theirs, is_later in ((now, before, True), (before, now, False)):
        for key in ours.keys() - theirs.keys():
            section = key.partition(".")[0]
            if section in theirs:
                found[section] = is_later
    return found
