"""All checks before Ray starts: configuration, model, data, rewards, memory."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path

from pydantic import ValidationError

from mindrl.allocation.into_config import in_words_of_backend
from mindrl.config.changed import with_value
from mindrl.config.data import paths_of
from mindrl.config.data_rules import data_keys, is_address, is_pattern
from mindrl.config.finding import Finding, Value, broken, did_you_mean, once
from mindrl.config.layout_keys import Role
from mindrl.config.megatron_training import PLAIN
from mindrl.config.reward_columns import reward_kwargs
from mindrl.config.run import RunConfig
from mindrl.config.validate import findings, learning_warnings
from mindrl.data.files import files_of
from mindrl.errors import ConfigError, DataError, MindrlError
from mindrl.models.description import ModelDescription
from mindrl.models.own_family import FIELD, spec_at
from mindrl.observability.terminal import note
from mindrl.platform.device import Platform, has_fused_layers
from mindrl.preflight.algorithm_checks import part_findings
from mindrl.preflight.draft_checks import draft_file_findings, draft_findings
from mindrl.preflight.graph_checks import graph_findings, graph_findings_on, graph_warnings
from mindrl.preflight.hub import hub_hint
from mindrl.preflight.invariance_checks import (
    invariance_findings,
    invariance_findings_on,
    lacking_kernels,
)
from mindrl.preflight.machine_checks import (
    attention_findings,
    device_findings,
    host_findings,
    teacher_findings,
    tokenizer_findings,
)
from mindrl.preflight.memory_plan import Capacity, judged_memory
from mindrl.preflight.model_checks import describe_models, missing_weights, model_findings
from mindrl.preflight.quantization_checks import quantization_findings
from mindrl.preflight.rollout_memory import rollout_memory_findings
from mindrl.preflight.run_folders import (
    earlier_run_findings,
    export_findings,
    export_places,
)
from mindrl.preflight.run_shardings import RunPlan, RunShardings, unordered_plan
from mindrl.preflight.shipped import sizes_path, unknown_sizes
from mindrl.preflight.tracker_checks import tracker_findings
from mindrl.preflight.vision_checks import vision_findings
from mindrl.rewards.functions import BUILTIN_REWARDS, COMPARING_REWARDS
from mindrl.rewards.resolve import check_reward

_ANSWER = "megatron_training.answer_column"
_MOST_TRIED = 64
_MOST_NAMED = 2
"""Maximum number of legal values per finding."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Result of a check."""

    findings: list[Finding]
    """What prevents the run from working."""
    warnings: list[Finding]
    """Problems that do not prevent it."""
    not_checked: list[Finding]
    """Missing files, if those are allowed."""
    memory_checked: bool
    """Whether device memory was compared with a capacity."""
    models: Mapping[Role, ModelDescription] | None
    """None if a folder is missing and mindrl ships no model of its name."""
    shardings: RunShardings | None
    """Shardings in the engine's own rank order; None if the models cannot be run."""


def check(
    config: RunConfig, platform: Platform, *, goes_on: bool = False, here: bool = False
) -> RunPlan:
    """Refuse a run that cannot work; return the plan of one that can.

    With `goes_on` the run may replace its exports. With `here` this machine must provide what the
    run needs.

    Raises:
        ConfigError: All findings, one a line.
    """
    checked = _accepted(config, platform, goes_on=goes_on, here=here)
    assert checked.shardings is not None, "models that cannot run have a finding"
    return checked.shardings.ordered.plan


def check_without_files(config: RunConfig, platform: Platform) -> list[str]:
    """Check what needs no file; return what could not be checked because a file is missing.

    Raises:
        ConfigError: All findings, one a line.
    """
    return list(map(str, _accepted(config, platform, needs_files=False).not_checked))


def checked_with_legal_values(
    config: RunConfig,
    platform: Platform,
    capacity: Capacity,
    *,
    needs_files: bool = True,
    here: bool = False,
) -> Checked:
    """Apply every rule, as `checked_run`, and keep the nearest legal values that help."""
    checked = checked_run(config, platform, capacity, needs_files=needs_files, here=here)
    named = [
        replace(each, legal=_nearest_legal(each, config, platform, checked, here=here))
        for each in checked.findings
    ]
    spelled = [in_words_of_backend(config, each) for each in named]
    unknown = [] if needs_files else unknown_sizes(config)
    return replace(checked, findings=[*spelled, *unknown])


def checked_run(
    config: RunConfig,
    platform: Platform,
    capacity: Capacity,
    *,
    needs_files: bool = True,
    goes_on: bool = False,
    here: bool = False,
) -> Checked:
    """Apply every rule, including memory against the capacity of a device and its machine.

    A missing data or weight file is a finding; with `needs_files=False` it is not checked, and a
    missing model has its shipped sizes. With `here` this machine must have the devices, the memory
    and the tokenizer.
    """
    absent = {} if needs_files else missing_weights(config)
    missing = [*_files(config), *tracker_findings(config)]
    missing += [] if goes_on else earlier_run_findings(config)
    found = [*findings(config), *platform_findings(config, platform), *_rewards(config)]
    found += [*part_findings(config), *_data_folders(config)]
    specs = [*_own_specs(config)]
    found += [*specs, *(missing if needs_files else [])]
    found += device_findings(config, platform) if here else []
    warnings = [*learning_warnings(config), *fused_layer_warnings(config, platform)]
    warnings += graph_warnings(config, platform)
    models, shardings, judges_memory = None, None, False
    if not specs and (needs_files or not unknown_sizes(config)):
        models, unread = describe_models(config, without_weights=absent)
        found += unread
        found += model_findings(config, models)
        found += vision_findings(config, models)
        found += invariance_findings_on(config, platform, models.get("actor"))
        found += graph_findings_on(config, platform, models.get("actor"))
        found += [] if found else _own_networks(config, models)
        judges_memory = not found and config.rl_config.check_memory
        if not found:
            shardings = RunShardings(plan=unordered_plan(config, models))
            found, by_estimate = judged_memory(shardings, capacity)
            found += rollout_memory_findings(shardings, capacity)
            found += _of_this_machine(shardings, platform) if here else []
            warnings += by_estimate
    found += [] if goes_on else export_findings(export_places(config))
    return Checked(
        findings=found,
        warnings=warnings,
        # Report a folder used by several roles once.
        not_checked=[] if needs_files else once([*missing, *absent.values()]),
        memory_checked=judges_memory and capacity.device_bytes is not None,
        models=models,
        shardings=shardings,
    )


def _of_this_machine(models: RunShardings, platform: Platform) -> Iterator[Finding]:
    """Yield what an otherwise legal run lacks on this machine."""
    yield from tokenizer_findings(models.plan.config)
    yield from teacher_findings(models.plan.config)
    yield from draft_file_findings(models.plan.config)
    yield from attention_findings(models, platform)
    yield from lacking_kernels(models.plan.config, platform)
    yield from host_findings(models, platform)


def platform_findings(config: RunConfig, platform: Platform) -> Iterator[Finding]:
    """Yield what the devices do not support."""
    asked, own = config.megatron_training.distributed_backend, platform.collective_backend
    if asked not in ("auto", own):
        need = f": {platform.kind} devices use {own}"
        yield broken("megatron_training.distributed_backend", asked, need, own, "auto")
    rollout = config.generate_config
    tokens, longest = rollout.max_num_batched_tokens, rollout.max_model_len
    whole_prompts = not platform.engine_options.get("enable_chunked_prefill", True)
    if whole_prompts and tokens < longest:
        need = (
            f"must be at least generate_config.max_model_len={longest} on {platform.kind} "
            "devices, where the engine processes a prompt in one step"
        )
        yield broken("generate_config.max_num_batched_tokens", tokens, need, longest)
    yield from invariance_findings(config, platform)
    yield from draft_findings(config)
    yield from graph_findings(config, platform)
    yield from quantization_findings(config)


def fused_layer_warnings(config: RunConfig, platform: Platform) -> Iterator[Finding]:
    """Yield the keys of fused kernels that have no effect on these devices."""
    for name in ("rmsnorm", "swiglu", "rotary_pos_emb"):
        field = f"megatron_training.use_fused_{name}"
        if config.value_of(field) and not has_fused_layers(platform.device_type):
            need = f"has no effect on {platform.kind} devices: the kernel is for NPUs"
            yield broken(field, True, need, False)


def refuse(config: RunConfig, found: Iterable[Finding]) -> None:
    """Raise the findings, if any, in terms of the configuration's own keys."""
    if lines := [str(in_words_of_backend(config, each)) for each in found]:
        raise ConfigError("\n".join(lines))


def _accepted(
    config: RunConfig,
    platform: Platform,
    *,
    needs_files: bool = True,
    goes_on: bool = False,
    here: bool = False,
) -> Checked:
    """Raise the findings; print the warnings."""
    capacity = Capacity(device_bytes=config.rl_config.device_memory_bytes)
    asked = {"needs_files": needs_files, "goes_on": goes_on, "here": here}
    checked = checked_run(config, platform, capacity, **asked)
    refuse(config, checked.findings)
    for warning in checked.warnings:
        note(str(warning))
    return checked


def _nearest_legal(
    finding: Finding, config: RunConfig, platform: Platform, checked: Checked, *, here: bool
) -> tuple[Value, ...]:
    """Return the nearest legal values that resolve all findings on a key without new ones.

    Only rules whose result may change are applied; folders are not read again.
    """
    others = {each.field for each in checked.findings} - {finding.field}

    def helps(value: Value) -> bool:
        try:
            changed = with_value(config, finding.field, value)
        except ValidationError:
            return False
        left = [*findings(changed), *platform_findings(changed, platform)]
        left += model_findings(changed, checked.models or {})
        left += device_findings(changed, platform) if here else []
        return {each.field for each in left} <= others

    return tuple(islice(filter(helps, finding.legal[:_MOST_TRIED]), _MOST_NAMED))


def _rewards(config: RunConfig) -> Iterator[Finding]:
    fields = ["rl_config.verifier_function"]
    rewards = range(len(config.data_config.rewards))
    fields += [f"data_config.rewards.{place}.verifier_function" for place in rewards]
    given = reward_kwargs(config)
    for field in fields:
        names = config.value_of(field)
        for place, name in enumerate(names):
            if name in COMPARING_REWARDS and config.megatron_training.answer_column is None:
                text = f"{field}: {name} needs a reference answer"
                yield Finding(f"{text}, and {_ANSWER}=null reads none", field, names)
            try:
                check_reward(name, field, given.get(name, {}))
            except MindrlError as error:
                yield _unfit_reward(str(error), field, names, place)


def _unfit_reward(text: str, field: str, names: tuple[str, ...], place: int) -> Finding:
    """Return the finding about a function, or about its arguments."""
    of_arguments = field.replace("verifier_function", "verifier_kwargs")
    if text.startswith(of_arguments):
        return Finding(text, of_arguments)
    close = difflib.get_close_matches(names[place], BUILTIN_REWARDS, n=1, cutoff=0.5)
    legal = tuple((*names[:place], near, *names[place + 1 :]) for near in close)
    return Finding(text, field, names, legal)


def _own_specs(config: RunConfig) -> Iterator[Finding]:
    for place in config.megatron_training.own_models:
        try:
            spec_at(place)
        except MindrlError as error:
            yield Finding(str(error), FIELD, config.megatron_training.own_models)


def _own_networks(config: RunConfig, models: Mapping[Role, ModelDescription]) -> list[Finding]:
    """Build each of the user's networks without memory; torch is imported only for these."""
    found = []
    for role, model in models.items():
        if model.other and model.other.own:
            trial = import_module("mindrl.preflight.own_networks").try_network
            key, path = config.model_key(role), sizes_path(config, role)
            try:
                trial(path, model)
            except MindrlError as error:
                found.append(Finding(f"{key}: {error}", key, path))
    return once(found)


def _data_paths(config: RunConfig) -> Iterator[tuple[str, str]]:
    for key in data_keys(config):
        yield from ((key, path) for path in paths_of(config.value_of(key)))


def _trouble(path: str) -> str | None:
    """Return why a folder or a pattern contains no data; None if it does."""
    try:
        files_of(path)
    except DataError as error:
        return str(error)
    return None


def _data_folders(config: RunConfig) -> Iterator[Finding]:
    for key, path in _data_paths(config):
        if Path(path).is_dir() and (trouble := _trouble(path)):
            yield Finding(f"{key}: {trouble}", key, path)


def _is_data(path: Path) -> bool:
    return path.is_file() or path.is_dir()


def _missing_file(config: RunConfig, key: str) -> Iterator[Finding]:
    file = config.value_of(key)
    if file is not None and not Path(file).is_file():
        yield broken(key, file, ": no such file")


def _files(config: RunConfig) -> Iterator[Finding]:
    training = config.megatron_training
    for key, path in _data_paths(config):
        if is_pattern(path) and (trouble := _trouble(path)):
            yield Finding(f"{key}={trouble}", key, path)
        elif not is_pattern(path) and Path(path).exists() and not _is_data(Path(path)):
            yield broken(key, path, "is a device or a pipe; must be a file or a folder")
        elif not (is_pattern(path) or Path(path).exists() or is_address(path)):
            names = [each.name for each in Path(path).parent.glob("*")]
            hint = hub_hint(path, "dataset") or did_you_mean(Path(path).name, names)
            yield broken(key, path, f": no such file{hint}")
    template = training.chat_template
    if template is not None and not (training.takes_plain_text or Path(template).is_file()):
        yield broken("megatron_training.chat_template", template, ": no such file", PLAIN, None)
    for key in (
        "generate_config.server_token_file",
        "generate_config.servers_file",
        "teacher_config.token_file",
    ):
        yield from _missing_file(config, key)
    folder = training.tokenizer_name_or_path
    if folder is not None and not Path(folder).is_dir():
        need = f": no such folder{hub_hint(folder, 'model')}"
        yield broken("megatron_training.tokenizer_name_or_path", folder, need, None)
