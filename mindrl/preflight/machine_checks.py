"""Checks of this machine: devices, memory, a tokenizer. Imports no torch."""

from collections.abc import Iterator
from math import ceil

from mindrl.config.changed import with_value
from mindrl.config.finding import Finding, broken
from mindrl.config.layout_keys import DEVICES
from mindrl.config.model_folders import further_models
from mindrl.config.run import RunConfig
from mindrl.data.vocabulary import has_vocabulary, other_token
from mindrl.errors import MindrlError
from mindrl.memory.plan import with_kv_cache
from mindrl.models.config_file import VOCABULARY_FILES
from mindrl.observability.units import MIB, mib_text
from mindrl.platform.device import Platform, choose_platform
from mindrl.platform.environment import ray_address
from mindrl.platform.host_memory import memory_bound
from mindrl.platform.probes.machine import SETTINGS_PAGE
from mindrl.preflight.memory_plan import memory_plan, one_sequence
from mindrl.preflight.rollout_memory import rollout_memory_plan
from mindrl.preflight.run_shardings import RunShardings
from mindrl.rollout.planning import cpu_attention_findings

_KV_CACHE = "generate_config.kv_cache_mib"


def device_findings(config: RunConfig, platform: Platform) -> Iterator[Finding]:
    """Yield what this machine lacks, or sets wrongly, for devices, unless a cluster is joined."""
    present, kind = platform.local_devices(), config.rl_config.device
    for text in platform.refused_settings() if ray_address() is None else ():
        yield Finding(text, text.partition("=")[0], page=SETTINGS_PAGE)
    if not present:
        best = choose_platform("auto").kind
        need = f": this machine has no such device; rl_config.device=auto selects {best}"
        yield broken("rl_config.device", kind, need, "auto", best)
    elif ray_address() is None and config.devices > present:
        actor = config.rl_config.actor_resource.num_npus
        left = present - (config.devices - actor)
        fits = left > 0 and with_value(config, DEVICES, left).devices <= present
        need = (
            f": the run needs {config.devices} devices, and this machine has {present} "
            f"{platform.ray_resource} device(s); {f'use {left} or fewer, or ' if fits else ''}set "
            "RAY_ADDRESS to join a larger cluster"
        )
        yield broken(DEVICES, actor, need, *([left] if fits else []))


def attention_findings(models: RunShardings, platform: Platform) -> Iterator[Finding]:
    """Yield a finding if this machine's engine lacks a kernel for the head size of a model."""
    config, draft = models.plan.config, models.plan.draft
    if platform.kind == "cpu" and config.rolls_out and not config.generate_config.is_served:
        yield from cpu_attention_findings(models.plan.models["actor"], config.model_key("actor"))
        if draft is not None:
            key = "generate_config.speculative_config.model"
            yield from cpu_attention_findings(draft, key)


def tokenizer_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield a finding if the tokenizer's folder has none.

    The finding is on `megatron_training.tokenizer_name_or_path` if that is set, otherwise on the
    model's key.
    """
    key, path = "megatron_training.tokenizer_name_or_path", config.tokenizer_path
    if config.value_of(key) is None:
        key = "actor_config.load"
    trusts = config.generate_config.trust_remote_code
    if not has_vocabulary(path, trust_remote_code=trusts):
        need = (
            f": the folder has no tokenizer ({', '.join(VOCABULARY_FILES)}); set "
            "megatron_training.tokenizer_name_or_path to a folder with one"
        )
        yield broken(key, path, need)


def teacher_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield a finding for each teacher that reads the policy's tokens as other text."""
    section = config.teacher_config
    if section is None or section.load is None:
        # A server is compared when the run starts.
        return
    first = {section.load: "teacher_config.load"}
    folders = first | further_models(config, "teacher")
    for path, key in folders.items():
        if why := other_token(path, config.tokenizer_path):
            need = (
                f"needs the tokenizer in {config.tokenizer_path}: {why}; use a model of the "
                "policy's family"
            )
            yield broken(key, path, need)


def host_findings(models: RunShardings, platform: Platform) -> Iterator[Finding]:
    """Compare the memory of all workers with that of a CPU machine, if all are on it.

    The models are of a run without other findings.
    """
    config = models.plan.config
    if platform.kind != "cpu" or ray_address() is not None or not config.rl_config.check_memory:
        return
    try:
        sides = [(memory_plan(models, None, models.most_staging), config.world_size)]
        if config.starts_engines:
            apart = rollout_memory_plan(models, None, models.most_staging)
            sides.append((apart, config.rollout_devices))
    except MindrlError:
        # What prevents a plan has its own finding.
        return
    there, needed = memory_bound(), sum(plan.peak_bytes * count for plan, count in sides)
    if needed <= there:
        return
    text = (
        f"the workers of this machine need {mib_text(needed)} of memory, and it has "
        f"{mib_text(there)}"
    )
    mib = config.generate_config.kv_cache_mib
    left = 0 if mib is None else mib - ceil((needed - there) / config.rollout_devices / MIB)
    # The cache may not be part of the peak.
    smaller = (
        (with_kv_cache(plan, left * MIB) if plan.kv_cache_bytes else plan).peak_bytes * count
        for plan, count in sides
    )
    least, _ = one_sequence(config, models.plan.cache_sizes)
    if left * MIB >= least and sum(smaller) <= there:
        yield broken(_KV_CACHE, mib, f": {text}", left)
    else:
        path = config.actor_config.load
        yield broken("actor_config.load", path, f": {text}; use a smaller model or fewer devices")
