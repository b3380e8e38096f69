"""Rules between fields: all checks that need only the configuration."""

from collections.abc import Iterator, Mapping
from math import gcd, lcm, prod

from mindrl.config.adapter_rules import adapter_findings, adapter_warnings
from mindrl.config.algorithm_rules import algorithm_findings, gap_warnings
from mindrl.config.archon_rules import engine_findings
from mindrl.config.backends import TRAINING_ENGINE
from mindrl.config.data_rules import data_findings
from mindrl.config.debug_rules import debug_findings
from mindrl.config.environment_rules import environment_findings
from mindrl.config.finding import (
    Finding,
    Value,
    broken,
    divisors_near,
    must_divide,
    nearest_divisors,
    once,
    repeated,
    spelled,
)
from mindrl.config.layout_keys import DEVICES, ROLLOUT_DEVICES, Role
from mindrl.config.placement_rules import placement_findings
from mindrl.config.profiler_rules import profiler_findings
from mindrl.config.rl import ACCURACY, GROUP_ESTIMATORS
from mindrl.config.role import LearningConfig
from mindrl.config.role_places import devices_key
from mindrl.config.run import OTHER_REFERENCE, RunConfig
from mindrl.config.shared_prompts import shared_prompt_findings
from mindrl.config.spool_rules import spool_findings
from mindrl.config.supervision import sft_findings
from mindrl.config.tracking_rules import tracking_findings

_ROLLOUT_TP = "generate_config.infer_tensor_parallel_size"
_ROLLOUT_PP = "generate_config.infer_pipeline_parallel_size"
_BATCH = "megatron_training.global_batch_size"
_MINI_BATCH = "rl_config.mini_batch_size"
_SAMPLES = "rl_config.n_samples_per_prompt"
_RESPONSE = "generate_config.sampling_config.max_tokens"
_FUNCTIONS = "rl_config.verifier_function"
_ESTIMATOR = "rl_config.adv_estimator"
_RECOMPUTE: dict[str, tuple[str, tuple[Value, ...]]] = {
    "recompute_method": ("uniform or block", ("uniform", "block")),
    "recompute_num_layers": ("1 or more", (1,)),
}
"""Further requirements of full recomputation, as words and as values."""
_HIGH_RATE = 1e-2

_Rule = tuple[object, str, str, *tuple[Value, ...]]
"""Whether the rule is broken, the field, its requirement, and allowed values."""


def findings(config: RunConfig) -> list[Finding]:
    """Return all findings of a configuration; empty if it is valid."""
    rewarded = (_advantages, _some_weight) if not config.reads_answers else ()
    trained = (_shares, _learning, _sequence_parallel, engine_findings, *rewarded)
    scored = _rewards if not config.reads_answers else sft_findings
    rules = (_lengths, shared_prompt_findings, scored, _files, _checkpoints)
    others = (algorithm_findings, data_findings, placement_findings)
    alone = (adapter_findings, debug_findings, spool_findings, tracking_findings, profiler_findings)
    needed = (*(trained if config.learns else ()), *rules, *others, *alone)
    found = (each for rule in needed for each in rule(config))
    return [*layout_findings(config), *found, *environment_findings(config)]


def learning_warnings(config: RunConfig) -> Iterator[Finding]:
    """Yield warnings: legal settings that are almost always mistakes."""
    need = (
        "is unusual: Adam changes a weight by about this much per update; usual values are "
        "1e-7 to 1e-3"
    )
    for section, learner in _learners(config).items():
        yield from _judged(config, (learner.lr > _HIGH_RATE, f"{section}.lr", need))
    yield from adapter_warnings(config)
    yield from gap_warnings(config)


def layout_findings(config: RunConfig) -> list[Finding]:
    """Return what makes the layouts of the roles and of the rollout invalid."""
    found = [each for role in config.roles for each in _role(config, role)]
    # Report a size once that several roles take from the actor.
    return [*once(found), *_ring(config), *_rollout(config)]


def _ring(config: RunConfig) -> Iterator[Finding]:
    """Groups that trade heads must divide the context-parallel ranks of every role."""
    actor, field = config.actor_config, "actor_config.ulysses_degree_in_cp"
    degree, algo = actor.ulysses_degree_in_cp, "actor_config.context_parallel_algo"
    is_hybrid = actor.context_parallel_algo == "hybrid_cp_algo"
    if is_hybrid and degree is None:
        text = (
            f"{field} is missing: {algo}=hybrid_cp_algo needs the number of ranks that trade heads"
        )
        yield Finding(text, field)
        return
    if not is_hybrid and degree is not None:
        text = f"{field}={degree} has an effect only with {algo}=hybrid_cp_algo"
        yield Finding(text, field, degree, (None,))
        return
    sizes = {config.layout(role).cp: config.layout_keys(role)["cp"] for role in config.roles}
    for size, key in sizes.items():
        if degree is not None and size > 1:
            yield from must_divide(field, degree, key, size)


def _role(config: RunConfig, role: Role) -> Iterator[Finding]:
    """Yield what makes the layout of a role invalid."""
    layout, keys = config.layout(role), config.layout_keys(role)

    def cut(*names: str) -> dict[str, int]:
        """Return the keys and values of those of these sizes that are above 1."""
        return {keys[name]: size for name in names if (size := getattr(layout, name)) > 1}

    key, devices = devices_key(config, role), len(config.role_devices(role))
    yield from _product_must_divide(cut("tp", "cp", "pp"), key, devices)
    if devices % layout.pp == 0:
        of_a_stage = f"{key} per pipeline stage" if layout.pp > 1 else key
        ranks = devices // layout.pp
        yield from _product_must_divide(cut("ep", "etp"), of_a_stage, ranks)


def sequence_limits(config: RunConfig) -> dict[str, int]:
    """Return the longest sequence that trainer and engine accept, by key."""
    keys = ("megatron_training.seq_length", "generate_config.max_model_len")
    return {key: config.value_of(key) for key in keys}


def _judged(config: RunConfig, *rules: _Rule) -> Iterator[Finding]:
    for is_broken, field, need, *legal in rules:
        if is_broken:
            yield broken(field, config.value_of(field), need, *legal)


def _product_must_divide(cut: Mapping[str, int], what: str, number: int) -> Iterator[Finding]:
    product = prod(cut.values())
    if len(cut) == 1:
        (field,) = cut
        yield from must_divide(field, product, what, number)
    elif number % product:
        near = nearest_divisors(number, product)
        text = f"{' times '.join(cut)}={product} must divide {what}={number}; nearest: {near}"
        # Change the first size for which the other sizes divide the number.
        alone = {key for key, size in cut.items() if number % (product // size) == 0}
        field = next((key for key in cut if key in alone), next(iter(cut)))
        left = number // (product // cut[field])
        legal = divisors_near(left, cut[field]) if field in alone else ()
        yield Finding(text, field, cut[field], legal)


def _sequence_parallel(config: RunConfig) -> Iterator[Finding]:
    field = "megatron_training.sequence_parallel"
    uncut = all(config.layout(role).tp == 1 for role in config.roles)
    need = (
        "needs a tensor_model_parallel_size of 2 or more, such as "
        "actor_config.tensor_model_parallel_size=2"
    )
    yield from _judged(config, (config.value_of(field) and uncut, field, need, False))


def _rollout(config: RunConfig) -> Iterator[Finding]:
    """Whole replicas must fill the devices, and each needs all experts."""
    if not config.rolls_out:
        return
    rollout, devices = config.generate_config, config.rollout_devices
    tensor, expert = rollout.infer_tensor_parallel_size, rollout.infer_expert_parallel_size
    stages = rollout.infer_pipeline_parallel_size
    together = "the devices of all roles" if config.is_spread else DEVICES
    key = ROLLOUT_DEVICES if config.is_apart else together
    # 0 means missing, which has its own finding.
    cut = {name: size for name, size in ((_ROLLOUT_TP, tensor), (_ROLLOUT_PP, stages)) if size > 1}
    yield from _product_must_divide(cut, key, devices or tensor * stages)
    need = (
        f"must be 1 or equal to {_ROLLOUT_TP}={tensor}; a run cannot share experts across replicas"
    )
    field = "generate_config.infer_expert_parallel_size"
    yield from _judged(config, (expert not in (1, tensor), field, need, tensor, 1))


def _shares(config: RunConfig) -> Iterator[Finding]:
    """Mini-batches must divide the batch, and replicas must get equal numbers of sequences."""
    rl, batch = config.rl_config, config.megatron_training.global_batch_size
    mini_batch, samples = rl.mini_batch_size, rl.n_samples_per_prompt
    yield from must_divide(_MINI_BATCH, mini_batch, _BATCH, batch)
    for role in config.roles:
        learns, layout = role in ("actor", "critic"), config.layout(role)
        field, step = (_MINI_BATCH, "update") if learns else (_BATCH, "step")
        value, replicas = config.value_of(field), layout.dp
        devices = len(config.role_devices(role))
        if devices % layout.ranks_per_replica or value * samples % replicas == 0:
            continue
        multiple = replicas // gcd(replicas, samples)
        owner = "" if role == "actor" else f" of {role}_config"
        need = (
            f"times {_SAMPLES}={samples} gives {value * samples} sequences per {step}, "
            f"which must be divisible by the {replicas} data-parallel replicas{owner}; "
            f"{field} must be a multiple of {multiple}"
        )
        below = value // multiple * multiple
        yield broken(field, value, need, *(size for size in (below, below + multiple) if size))


def _lengths(config: RunConfig) -> Iterator[Finding]:
    """Prompt plus response must fit both sides and every token budget."""
    rl, rollout = config.rl_config, config.generate_config
    prompt, response = rl.max_prompt_length, rollout.sampling_config.max_tokens
    longest = prompt + response
    words = f"rl_config.max_prompt_length={prompt} plus {_RESPONSE}={response}"
    some = f"must be at least 1 and less than {_RESPONSE}={response}"
    for field, limit in sequence_limits(config).items():
        need = f"is below {words}; use {longest} or more"
        yield from _judged(config, (longest > limit, field, need, longest))
    yield from _judged(
        config,
        (
            # The penalty must grow over a part of the response's tokens, not over all.
            rl.overlong_buffer_enable and not 0 < rl.overlong_tokens(response) < response,
            "rl_config.overlong_buffer",
            f"{some} with rl_config.overlong_buffer_enable=true",
            *((max(1, response // 5),) if response > 1 else ()),
        ),
        (
            # A step of the engine has one token of each sequence.
            rollout.max_num_batched_tokens < rollout.max_num_seqs,
            "generate_config.max_num_batched_tokens",
            f"must be at least generate_config.max_num_seqs={rollout.max_num_seqs}",
            rollout.max_num_seqs,
        ),
        (
            (rollout.kv_block_tokens or 0) % 16 != 0,
            "generate_config.kv_block_tokens",
            "must be a multiple of 16",
            (rollout.kv_block_tokens or 0) // 16 * 16,
        ),
        (
            rl.use_dynamic_bsz and not rl.use_remove_padding,
            "rl_config.use_remove_padding",
            "must be true with rl_config.use_dynamic_bsz=true, which packs sequences",
            True,
        ),
    )
    for whose in ("", "actor_", "ref_", "update_") if rl.use_dynamic_bsz else ():
        field = f"rl_config.{whose}max_packing_token_size"
        need = f"must hold the longest sequence, {words}; use {longest} or more"
        budget = config.value_of(field)
        small = budget is not None and budget < longest
        yield from _judged(config, (small, field, need, longest))


def _learners(config: RunConfig) -> dict[str, LearningConfig]:
    """Return the sections of the trained roles."""
    sections = ("actor_config", "critic_config")
    return {section: there for section in sections if (there := config.value_of(section))}


def _learning(config: RunConfig) -> Iterator[Finding]:
    """Full recomputation needs its method, other modes must not have one; min_lr <= lr."""
    grouped = f"{TRAINING_ENGINE} multiplies grouped experts only in bfloat16"
    for section, learner in _learners(config).items():
        granularity = learner.recompute_granularity
        only = (
            f"has an effect only with {section}.recompute_granularity=full, found "
            f"{spelled(granularity)}"
        )
        for name, (need, legal) in _RECOMPUTE.items():
            field, value = f"{section}.{name}", getattr(learner, name)
            if granularity == "full" and value is None:
                text = f"{field} is missing: recompute_granularity=full needs {need}"
                yield Finding(text, field, None, legal)
            if granularity != "full" and value is not None:
                yield broken(field, value, only, None)
        yield from _judged(
            config,
            (
                learner.moe_grouped_gemm and not config.megatron_training.bf16,
                f"{section}.moe_grouped_gemm",
                f"needs megatron_training.bf16=true, found false: {grouped}",
                False,
            ),
            (
                learner.min_lr > learner.lr,
                f"{section}.min_lr",
                f"must not be above {section}.lr={spelled(learner.lr)}",
                learner.lr,
            ),
        )


def _advantages(config: RunConfig) -> Iterator[Finding]:
    """A critic must exist if and only if the estimator needs one, and warm-up must end."""
    rl, steps = config.rl_config, config.megatron_training.train_iters
    name, wanted, there = rl.adv_estimator, rl.has_critic, config.critic_config is not None
    if wanted and not there:
        text = (
            f"critic_config is missing: {_ESTIMATOR}=gae needs a critic; write "
            "`critic_config: {}` for the defaults"
        )
        yield Finding(text, "critic_config")
    if there and not wanted:
        text = f"critic_config needs {_ESTIMATOR}=gae, found {name}"
        yield Finding(text, "critic_config", "given", (None,))
    if wanted:
        need = f"must be below megatron_training.train_iters={steps}"
        late = rl.critic_warmup >= steps
        yield from _judged(config, (late, "rl_config.critic_warmup", need, steps - 1))
        return
    group = f"must be 2 or more, because {_ESTIMATOR}={name} compares the responses to a prompt"
    alone = name in GROUP_ESTIMATORS and rl.n_samples_per_prompt < 2
    yield from _judged(
        config,
        (rl.critic_warmup, "rl_config.critic_warmup", f"needs {_ESTIMATOR}=gae, found {name}", 0),
        (alone, _SAMPLES, group, 2),
    )


def _rewards(config: RunConfig) -> Iterator[Finding]:
    """Each reward function needs a weight; without a reward model at least one is required."""
    rl, test_data = config.rl_config, config.megatron_training.test_data_path
    names, weights = rl.verifier_function, rl.verifier_weight
    if len(weights) != len(names) or not (names or _has_other_rewards(config)):
        field = "rl_config.verifier_weight"
        text = (
            f"{field} has {len(weights)} entries and {_FUNCTIONS} has {len(names)}; give "
            "one weight for each function"
        )
        legal = (*weights, *(1.0,) * len(names))[: len(names)]
        yield Finding(text, field, weights, (legal,) if names else ())
    if not names and not weights and _has_other_rewards(config) and config.evaluates:
        held_out = f"megatron_training.test_data_path={test_data}"
        text = (
            f"{_FUNCTIONS} is empty, and its first entry measures accuracy on "
            f"{held_out if test_data else 'data_config.eval_sets'}; add a function or "
            "remove the evaluation data"
        )
        yield Finding(text, _FUNCTIONS, ())
    own = [name for each in config.data_config.rewards for name in each.verifier_function]
    by = {"model": config.reward_config, "environment": config.environment_config, ACCURACY: names}
    known = tuple(dict.fromkeys((*names, *own, *(name for name, given in by.items() if given))))
    if rl.filter_groups_enable and rl.filter_groups_metric not in (None, *known):
        field = "rl_config.filter_groups_metric"
        need = f"must be one of {', '.join(known)}, or null for the rewards"
        yield broken(field, rl.filter_groups_metric, need, *known[:1])
    alone = rl.filter_groups_enable and rl.n_samples_per_prompt < 2
    several = ": with rl_config.filter_groups_enable=true the responses to a prompt must differ"
    yield from _judged(config, (alone, _SAMPLES, f"{several}; use 2 or more", 2))
    twice = repeated(names)
    need = f"lists {', '.join(twice)} more than once; raise its weight instead"
    yield from _judged(config, (twice, _FUNCTIONS, need))


def _has_other_rewards(config: RunConfig) -> bool:
    """Return whether a reward model or an environment rates responses too."""
    return bool(config.reward_config or config.value_of("environment_config.reward_weight"))


def _some_weight(config: RunConfig) -> Iterator[Finding]:
    """Some weight must not be 0: of a reward function, or of the reward model."""
    others = ("environment_config.reward_weight", "reward_config.weight")
    if any(map(config.value_of, others)):
        return
    sections = ["rl_config"]
    sections += [f"data_config.rewards.{at}" for at in range(len(config.data_config.rewards))]
    for field in (f"{section}.verifier_weight" for section in sections):
        weights = config.value_of(field)
        need = "gives every response the reward 0; use at least one weight other than 0"
        nothing = bool(weights) and not any(weights)
        yield from _judged(config, (nothing, field, need, (1.0, *weights[1:])))


def _files(config: RunConfig) -> Iterator[Finding]:
    """The reference folder must be named once; evaluation needs data."""
    ours, theirs = config.ref_config.load, config.value_of(OTHER_REFERENCE)
    need = "needs megatron_training.test_data_path, data_config.held_out_fraction or eval_sets"
    names = f"and {OTHER_REFERENCE}={theirs} both set the folder of the reference; remove one"
    yield from _judged(
        config,
        (config.rl_config.test_freq and not config.evaluates, "rl_config.test_freq", need, 0),
        (ours and theirs and ours != theirs, "ref_config.load", names, None, theirs),
    )


def _checkpoints(config: RunConfig) -> Iterator[Finding]:
    """keep_best needs intermediate evaluations; finetune and no_load_* need a resume folder."""
    training = config.megatron_training
    steps, saved, judged = training.train_iters, training.save_interval, config.rl_config.test_freq
    apart = training.keep_best and not 0 < lcm(saved, judged) < steps
    need = (
        "needs a step before the last that is both saved and evaluated; "
        f"megatron_training.save_interval={saved} and rl_config.test_freq={judged} have "
        f"none below train_iters={steps}"
    )
    yield from _judged(config, (apart, "megatron_training.keep_best", need, False))
    need = f"has an effect only if megatron_training.resume is a folder, found {training.resume}"
    for name in ("finetune", "no_load_optim", "no_load_rng"):
        field = f"megatron_training.{name}"
        unused = training.begins_from is None and config.value_of(field)
        yield from _judged(config, (unused, field, need, False))
