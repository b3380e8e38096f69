"""Everything that can be known before Ray starts: configuration, model, data, rewards, memory."""

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mindrl.allocation.into_config import in_words_of_backend
from mindrl.config.finding import Finding, broken
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings, learning_warnings
from mindrl.errors import ConfigError, MindrlError
from mindrl.observability.notes import note
from mindrl.platform.device import Platform
from mindrl.preflight.memory_checks import Capacity, judged_memory
from mindrl.preflight.model_checks import Models, describe_models, missing_weights, model_findings
from mindrl.preflight.run_folders import export_findings, export_places
from mindrl.preflight.run_plan import RunPlan, unordered_plan
from mindrl.preflight.run_shardings import RunShardings
from mindrl.preflight.shipped import unknown_sizes
from mindrl.rewards.functions import BUILTIN_REWARDS
from mindrl.rewards.resolve import resolve_reward


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check has found."""

    findings: list[Finding]
    """What keeps the run from working."""
    warnings: list[Finding]
    """What does not, and deserves a word."""
    not_checked: list[Finding]
    """Files that are not there, where that is allowed."""
    memory_checked: bool
    """Whether memory of the devices was compared with anything."""
    models: Models | None
    """None where a folder is not there, and mindrl knows no model of its name."""
    shardings: RunShardings | None
    """In the engine's own order of the ranks; None where the models cannot be run."""


def check(config: RunConfig, platform: Platform) -> RunPlan:
    """Refuse a run that cannot work; returns the plan of one that can.

    Raises:
        ConfigError: All findings, one a line.
    """
    checked = checked_run(config, platform, device_capacity(config))
    _refuse(config, checked)
    assert checked.shardings is not None, "there is a finding where the models cannot be run"
    return checked.shardings.ordered.plan


def check_without_files(config: RunConfig, platform: Platform) -> list[str]:
    """Check what needs no file; returns what could not be checked because a file is missing.

    Raises:
        ConfigError: All findings, one a line.
    """
    found = checked_run(config, platform, device_capacity(config), needs_files=False)
    _refuse(config, found)
    return list(map(str, found.not_checked))


def checked_run(
    config: RunConfig, platform: Platform, capacity: Capacity, *, needs_files: bool = True
) -> Checked:
    """Ask every rule.

    Args:
        config: Of the run.
        platform: Its devices.
        capacity: Memory of them and of their machines.
        needs_files: A data or weight file that is missing is a finding; else it is not checked,
            and of a model that is not here the shipped sizes are taken.
    """
    absent = {} if needs_files else missing_weights(config)
    missing = [*_files(config)]
    found = [*findings(config), *platform_findings(config, platform), *_rewards(config)]
    found += missing if needs_files else []
    warnings = [*learning_warnings(config)]
    models, shardings, judges_memory = None, None, False
    if needs_files or not unknown_sizes(config):
        models = describe_models(config, without_weights=frozenset(absent))
        found += model_findings(config, models)
        judges_memory = not found and config.rl_config.check_memory
        if not found:
            shardings = RunShardings(plan=unordered_plan(config, models.of))
            memory = judged_memory(shardings, capacity)
            found, warnings = memory.findings, warnings + memory.warnings
    found += export_findings(export_places(config))
    # Of a folder that several roles read the same is said once.
    notes = {str(note): note for note in [*missing, *absent.values()]}
    return Checked(
        findings=found,
        warnings=warnings,
        not_checked=[] if needs_files else [*notes.values()],
        memory_checked=judges_memory and capacity.device_bytes is not None,
        models=models,
        shardings=shardings,
    )


def device_capacity(config: RunConfig) -> Capacity:
    """Return the memory that the configuration tells of."""
    return Capacity(device_bytes=config.rl_config.device_memory_bytes)


def platform_findings(config: RunConfig, platform: Platform) -> Iterator[Finding]:
    """Say what the devices do not allow."""
    yield from _backend(config, platform)
    yield from _whole_prompts(config, platform)


def refuse(config: RunConfig, found: Iterable[Finding]) -> None:
    """Raise what was found, if anything was, in the words that the configuration is written in."""
    if lines := [str(in_words_of_backend(config, each)) for each in found]:
        raise ConfigError("\n".join(lines))


def _refuse(config: RunConfig, checked: Checked) -> None:
    """Raise what was found; say what was not enough for that."""
    refuse(config, checked.findings)
    for warning in checked.warnings:
        note(str(warning))


def _backend(config: RunConfig, platform: Platform) -> Iterator[Finding]:
    asked, own = config.megatron_training.distributed_backend, platform.collective_backend
    if asked not in ("auto", own):
        need = f": {platform.kind} devices use {own}"
        yield broken("megatron_training.distributed_backend", asked, need, own, "auto")


def _whole_prompts(config: RunConfig, platform: Platform) -> Iterator[Finding]:
    rollout = config.generate_config
    tokens, longest = rollout.max_num_batched_tokens, rollout.max_model_len
    whole_prompts = not platform.engine_options.get("enable_chunked_prefill", True)
    if whole_prompts and tokens < longest:
        need = (
            f"must be at least generate_config.max_model_len={longest} on {platform.kind} "
            "devices, whose engine takes a prompt in one piece"
        )
        yield broken("generate_config.max_num_batched_tokens", tokens, need, longest)


def _rewards(config: RunConfig) -> Iterator[Finding]:
    names = config.rl_config.verifier_function
    for place, name in enumerate(names):
        try:
            resolve_reward(name)
        except MindrlError as error:
            close = difflib.get_close_matches(name, BUILTIN_REWARDS, n=1, cutoff=0.5)
            legal = tuple((*names[:place], near, *names[place + 1 :]) for near in close)
            yield Finding(str(error), "rl_config.verifier_function", names, legal)


def _files(config: RunConfig) -> Iterator[Finding]:
    training = config.megatron_training
    for name in ("data_path", "test_data_path"):
        path = getattr(training, name)
        if path is not None and not Path(path).is_file():
            yield broken(f"megatron_training.{name}", path, ": no such file")
    folder = training.tokenizer_name_or_path
    if folder is not None and not Path(folder).is_dir():
        yield broken("megatron_training.tokenizer_name_or_path", folder, ": no such folder", None)
