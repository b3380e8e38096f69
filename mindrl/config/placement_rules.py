"""Rules for the devices of roles. Imports no torch."""

import json
from collections.abc import Iterator

from mindrl.config.backends import ROLLOUT_BACKEND
from mindrl.config.finding import Finding, broken
from mindrl.config.generate import GenerateConfig
from mindrl.config.layout_keys import DEVICES, RESOURCES, ROLLOUT_DEVICES, Role
from mindrl.config.resources import MOST_DEVICES
from mindrl.config.run import RunConfig
from mindrl.config.server_address import unfit_server

_APART = "rl_config.use_integrated_worker"
_ORDER = "rl_config.step_order"
_BRINGS: dict[Role, str] = {
    "ref": "rl_config.init_kl_coef above 0 or preference_config adds it",
    "critic": "rl_config.adv_estimator=gae adds it",
    "reward": "reward_config adds it",
    "teacher": "teacher_config adds it",
}
"""What adds a role to a run."""


def placement_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield what a run with or without separate rollout devices lacks or does not support."""
    rl = config.rl_config
    yield from _router(config)
    yield from _servers(config)
    yield from _roles(config)
    yield from _stop_texts(config)
    if config.is_apart:
        yield from _apart(config)
        if rl.step_order != "in_turns":
            yield from _ahead(config)
        return
    only = f"has an effect only with {_APART}=false, found true"
    own, order = rl.rollout_resource, rl.step_order
    if own.num_npus is not None:
        need = f"{only}: all roles share the {config.world_size} of {DEVICES}"
        yield broken(ROLLOUT_DEVICES, own.num_npus, need, None)
    if own.first:
        yield broken("rl_config.rollout_resource.first", own.first, only, False)
    if order != "in_turns":
        ways = "; on shared devices use rl_config.partial_rollout"
        yield broken(_ORDER, order, only + ways, "in_turns")


def _stop_texts(config: RunConfig) -> Iterator[Finding]:
    """Stop strings need one engine for the whole response, and the model's own tokenizer."""
    field, stop = (
        "generate_config.sampling_config.stop",
        config.generate_config.sampling_config.stop,
    )
    own = config.megatron_training.tokenizer_name_or_path not in (None, config.actor_config.load)
    whys = {
        f"{_APART}=false": config.is_apart,
        "rl_config.partial_rollout=true": config.rl_config.partial_rollout,
    }
    needs = [
        f"needs one engine for the whole response, found {why}; use stop_token_ids instead"
        for why, holds in whys.items()
        if holds
    ]
    if own:
        key = "megatron_training.tokenizer_name_or_path"
        needs.append(f"needs the tokenizer in actor_config.load, found another in {key}")
    for need in needs if stop else ():
        # Quoted, since such strings may contain line breaks.
        yield Finding(f"{field}={json.dumps(stop)} {need}", field, stop, ((),))


def _apart(config: RunConfig) -> Iterator[Finding]:
    rl = config.rl_config
    if rl.rollout_resource.num_npus is None:
        text = (
            f"{ROLLOUT_DEVICES} is missing: {_APART}=false needs the number of devices that "
            "generate, here or as the ranks of generate_config.backend, such as vllm:d2t2"
        )
        yield Finding(text, ROLLOUT_DEVICES, None, (config.world_size,))
    if rl.partial_rollout:
        need = f"must be false with {_APART}=false; use {_ORDER}=asynchronous instead"
        yield broken("rl_config.partial_rollout", rl.partial_rollout, need, False)
    if rl.on_device_loss == "shrink":
        need = f"needs {_APART}=true; separate devices have no smaller layout"
        yield broken("rl_config.on_device_loss", rl.on_device_loss, need, "wait")


def _router(config: RunConfig) -> Iterator[Finding]:
    generate, known = config.generate_config, config.rollout_backend == ROLLOUT_BACKEND
    if generate.router is not None and not (generate.is_served and known):
        need = f"needs generate_config.servers, all of {ROLLOUT_BACKEND}"
        yield broken("generate_config.router", generate.router, need, None)


def _roles(config: RunConfig) -> Iterator[Finding]:
    """A role with its own devices must be part of the run, and every device must have a role."""
    for role, section in RESOURCES.items():
        given = {name: config.value_of(f"{section}.{name}") for name in ("num_npus", "first_npu")}
        unused = {name: value for name, value in given.items() if value is not None}
        if role in config.roles or not unused:
            continue
        name, value = next(iter(unused.items()))
        if config.learns:
            need = f"belongs to a role that this run does not have: {_BRINGS[role]}"
            yield broken(f"{section}.{name}", value, need, None)
        elif config.role_devices(role).stop > MOST_DEVICES:
            need = f"needs more than the {MOST_DEVICES} devices that a run may have"
            yield broken(f"{section}.{name}", value, need, None)
    held = {device for role in config.roles for device in config.role_devices(role)}
    empty = [device for device in range(config.world_size) if device not in held]
    if empty:
        # The role after the gap starts too late.
        first_devices = {role: config.role_devices(role).start for role in config.roles}
        role = min(
            (each for each in first_devices if first_devices[each] > empty[0]),
            key=lambda r: first_devices[r],
        )
        key = f"{RESOURCES[role]}.first_npu"
        owner = key if config.value_of(key) is not None else f"{RESOURCES['actor']}.first_npu"
        last = f" to {first_devices[role] - 1}" if first_devices[role] - empty[0] > 1 else ""
        need = f"leaves device {empty[0]}{last} without a role; nearest: {empty[0]}"
        yield broken(owner, first_devices[role], need, empty[0])
    if config.is_spread and config.rl_config.on_device_loss == "shrink":
        field, need = "rl_config.on_device_loss", "needs all roles on the same devices"
        yield broken(field, "shrink", f"{need}", "wait")


def _servers(config: RunConfig) -> Iterator[Finding]:
    """Each server is one replica, needs a token, and is local unless allowed otherwise."""
    generate, key = config.generate_config, "generate_config.servers"
    if not generate.is_served:
        return
    if not config.learns:
        key = key if generate.servers else f"{key}_file"
        is_job = config.spool_config.job == "rollout"
        where = "in a rollout job" if is_job else "with rl_config.debug=rollout_only"
        need = f"cannot be used {where}: a server gets its weights from the training side"
        yield broken(key, config.value_of(key), need, () if generate.servers else None)
        return
    if not config.is_apart:
        yield broken(_APART, True, f"must be false with {key}, which have their own devices", False)
    elif generate.servers and config.rollout_devices:
        count = config.rollout_devices // generate.ranks_per_replica
        if len(generate.servers) != count:
            need = f"must be one address for each of the {count} replicas of {ROLLOUT_DEVICES}"
            yield broken(key, generate.servers, need)
    if generate.server_token_file is None:
        field = "generate_config.server_token_file"
        yield Finding(f"{field} is missing: {key} need a token", field)
    if config.rollout_backend != ROLLOUT_BACKEND and (cuts := generate.sampling_config.cuts):
        field = "generate_config.sampling_config"
        text = (
            f"{field}: {cuts}: remove it, because {config.rollout_backend} returns log-probs "
            "of the full"
        )
        yield Finding(f"{text} distribution", field)
    yield from _addresses(generate)


def _addresses(generate: GenerateConfig) -> Iterator[Finding]:
    key = "generate_config.servers"
    if generate.servers and generate.servers_file is not None:
        need = f"must be null with {key}: only one of them holds the addresses"
        yield broken(f"{key}_file", generate.servers_file, need, None)
    for address in dict.fromkeys(generate.servers):
        if generate.servers.count(address) > 1:
            yield Finding(f"{key}: {address} is listed twice: each server is one replica", key)
        if why := unfit_server(address, allow_remote=generate.servers_are_remote):
            yield Finding(f"{key}: {address} {why}", key, generate.servers)


def _ahead(config: RunConfig) -> Iterator[Finding]:
    """If the rollout overlaps training, refuse options that need it in turns."""
    rl, order = config.rl_config, config.rl_config.step_order
    if rl.has_baseline:
        need = f"needs {_ORDER}=in_turns, found {order}: it answers prompts in the middle of a step"
        yield broken("rl_config.adv_estimator", rl.adv_estimator, need, "rloo")
    if not rl.reproducible_sampling:
        need = f"must be true with {_ORDER}={order}, which continues each sequence by its own seed"
        yield broken("rl_config.reproducible_sampling", rl.reproducible_sampling, need, True)
