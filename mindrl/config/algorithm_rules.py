"""Rules about what an algorithm requires of a run. Imports no torch."""

from collections.abc import Iterator
from dataclasses import fields

from mindrl.config.finding import Finding, broken, must_be_default, repeated, spelled
from mindrl.config.run import RunConfig
from mindrl.config.server_address import nearest_address, unfit_server
from mindrl.config.teacher import TeacherConfig

_OLD = "rl_config.old_log_probs"


def algorithm_findings(config: RunConfig) -> Iterator[Finding]:
    """Yield combinations of algorithm options that do not work together."""
    yield from _old_log_probs(config)
    yield from _rollout_correction(config)
    yield from _router_replay(config)
    rl = config.rl_config
    yield from _reference(config)
    yield from _teacher(config)
    if rl.clip_cov_lb > rl.clip_cov_ub:
        need = f"must not be above rl_config.clip_cov_ub={spelled(rl.clip_cov_ub)}"
        yield broken("rl_config.clip_cov_lb", rl.clip_cov_lb, need, rl.clip_cov_ub)
    if rl.partial_rollout and not rl.reproducible_sampling:
        need = (
            "must be true with rl_config.partial_rollout=true, which continues each sequence "
            "by its own seed"
        )
        yield broken("rl_config.reproducible_sampling", rl.reproducible_sampling, need, True)


def gap_warnings(config: RunConfig) -> Iterator[Finding]:
    """Warn of a limit on the log-prob gap if sampling truncates the engine's distribution."""
    limit, cuts = config.rl_config.max_logprob_gap, config.generate_config.sampling_config.cuts
    if limit is not None and cuts:
        need = (
            f": with {cuts} the engine's log-probs are of a truncated distribution and "
            "the trainer's of the full one, so the limit must be above the resulting gap"
        )
        yield broken("rl_config.max_logprob_gap", limit, need, None)


def _old_log_probs(config: RunConfig) -> Iterator[Finding]:
    """`from_update` needs no earlier or later use of the log-probs; `from_rollout` no warm-up."""
    rl, early = config.rl_config, config.needs_log_prob_pass
    asked, warmup = rl.old_log_probs, rl.critic_warmup
    legal = (None, "recompute")
    if asked == "from_update" and early:
        need = "needs one update per step, each of the actor, and no use of the old log-probs"
        yield broken(_OLD, asked, f"{need} before; found {early}", *legal)
    if asked == "from_rollout" and warmup:
        need = f"needs an update in each step; rl_config.critic_warmup={warmup} has steps without"
        yield broken(_OLD, asked, need, *legal)


def _rollout_correction(config: RunConfig) -> Iterator[Finding]:
    """Weights need valid bounds, and two different policies."""
    section, options = "rl_config.rollout_correction", config.rl_config.rollout_correction
    if config.old_log_probs == "from_rollout" and config.rollout_correction is not None:
        need = (
            "needs log-probs of both trainer and engine; "
            "rl_config.old_log_probs=from_rollout has only the engine's"
        )
        for name, off in (("level", "off"), ("reject_below", None), ("reject_above", None)):
            if (value := getattr(options, name)) not in (off, None):
                yield broken(f"{section}.{name}", value, need, off)
    if options.min_weight and options.beyond != "mask":
        need = f"has an effect only with {section}.beyond=mask, found {options.beyond}"
        yield broken(f"{section}.min_weight", options.min_weight, need, 0.0)
    if options.min_weight >= options.max_weight:
        need = f"must be below {section}.max_weight={spelled(options.max_weight)}"
        yield broken(f"{section}.min_weight", options.min_weight, need, 0.0)


def _router_replay(config: RunConfig) -> Iterator[Finding]:
    """R2 needs the pass that it replays."""
    if config.actor_config.router_replay == "R2" and config.old_log_probs != "recompute":
        need = (
            "replays the experts of the pass that computes the old log-probs: it needs "
            f"{_OLD}=recompute, found {config.old_log_probs}"
        )
        yield broken("actor_config.router_replay", "R2", need, "none")
    if config.actor_config.router_replay == "R3" and (reason := _no_engine_routes(config)):
        need = f"needs the experts of an engine of the run: {reason}"
        legal = "R2" if config.old_log_probs == "recompute" else "none"
        yield broken("actor_config.router_replay", "R3", need, legal)


def _no_engine_routes(config: RunConfig) -> str:
    """Return why workers cannot have the engine's experts; empty if they can."""
    generate, everywhere = config.generate_config, range(config.world_size)
    reasons = {
        "the run does not train on responses that it generates": not (
            config.rolls_out and config.learns
        ),
        "servers return none": config.is_apart and generate.is_served,
        "the actor is not on all devices": config.role_devices("actor") != everywhere,
        "generate_config.infer_pipeline_parallel_size must be 1": (
            generate.infer_pipeline_parallel_size > 1
        ),
        "generate_config.enforce_eager=false: graphs do not call the routers": (
            generate.enforce_eager is False
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _reference(config: RunConfig) -> Iterator[Finding]:
    """A reference that is updated must exist and have the actor's layout."""
    field, interval = "rl_config.ref_update_interval", config.rl_config.ref_update_interval
    if interval and not config.uses_reference:
        need = "needs a reference; rl_config.init_kl_coef=0 loads none"
        yield broken(field, interval, need, 0)
    elif interval and config.layout("ref") != config.layout("actor"):
        elsewhere = config.role_devices("ref") != config.role_devices("actor")
        own = "rl_config.reference_resource has devices" if elsewhere else "ref_config has a layout"
        need = f"needs a reference with the actor's layout; {own} of its own"
        yield broken(field, interval, need, 0)


def _teacher(config: RunConfig) -> Iterator[Finding]:
    """An estimator without rewards needs a teacher, and a teacher must have an effect."""
    name, section = config.rl_config.adv_estimator, config.teacher_config
    if section is None and name == "teacher":
        text = (
            "teacher_config is missing: rl_config.adv_estimator=teacher has no other advantages; "
            "write `teacher_config: {load: FOLDER}`"
        )
        yield Finding(text, "teacher_config")
    if section is None:
        return
    used = "divergence_coef" if section.candidates else "advantage_coef"
    if getattr(section, used) == 0:
        need = "gives the teacher no effect; use a weight above 0, or remove the section"
        yield broken(f"teacher_config.{used}", 0.0, need, 1.0)
    yield from _teachers(section)
    yield from _served_teacher(section, config.generate_config.sampling_config.temperature)
    unused = ("advantage_coef",) if section.candidates else ("divergence", "divergence_coef")
    what = "a term of the loss" if section.candidates else "an advantage"
    form = f"teacher_config.candidates={section.candidates}"
    need = f"has no effect: with {form} the signal is {what}"
    yield from must_be_default("teacher_config", section, need, unused)


_OF_ANY_TEACHER = frozenset(
    ("url", "token_file", "advantage_coef", "candidates", "divergence", "divergence_coef")
)
"""Keys of a teacher that also a server has; the others describe a model on the run's devices."""


def _served_teacher(section: TeacherConfig, temperature: float) -> Iterator[Finding]:
    """A teacher is a model folder, or a server that returns log-probs at temperature 1."""
    key, url = "teacher_config.url", section.url
    if url is None:
        if section.load is None:
            load = "teacher_config.load"
            yield Finding(f"{load} is missing: name a model folder, or a server by {key}", load)
        if (file := section.token_file) is not None:
            yield broken("teacher_config.token_file", file, f"has no effect without {key}", None)
        return
    if why := unfit_server(url, allow_remote=True):
        yield broken(key, url, why, nearest_address(url))
    need = f"has no effect with {key}: the server runs the teacher"
    names = [each.name for each in fields(section) if each.name not in _OF_ANY_TEACHER]
    yield from must_be_default("teacher_config", section, need, names)
    if temperature != 1:
        need = f"must be 1 with {key}: a server returns the log-probs of that temperature"
        yield broken("generate_config.sampling_config.temperature", temperature, need, 1.0)


def _teachers(section: TeacherConfig) -> Iterator[Finding]:
    """Teachers by `data_source` have one entry each, and leave the device to each other."""
    if twice := repeated(each.data_source for each in section.models):
        text = (
            f"teacher_config.models has {', '.join(twice)} more than once; give each data_source "
            "one teacher"
        )
        yield Finding(text, "teacher_config.models")
    if len(section.folders) > 1 and not section.offload_param:
        need = "must be true with several teacher_config.models, which take turns on the devices"
        yield broken("teacher_config.offload_param", False, need, True)
