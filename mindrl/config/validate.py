"""Rules between fields: all that can be said of a configuration by itself."""

from collections.abc import Callable, Iterator, Mapping
from math import gcd, prod
from pathlib import Path

from mindrl.config.finding import (
    Finding,
    broken,
    divisors_near,
    must_divide,
    nearest_divisors,
    once,
)
from mindrl.config.layout_keys import DEVICES, Role
from mindrl.config.learning_rules import learning_findings
from mindrl.config.run import RunConfig

_ROLLOUT_TP = "generate_config.infer_tensor_parallel_size"
_BATCH = "megatron_training.global_batch_size"
_MINI_BATCH = "rl_config.mini_batch_size"
_SAMPLES = "rl_config.n_samples_per_prompt"
_RESPONSE = "generate_config.sampling_config.max_tokens"
_FUNCTIONS = "rl_config.verifier_function"
_BUDGETS = (
    "max_packing_token_size",
    "actor_max_packing_token_size",
    "ref_max_packing_token_size",
    "update_max_packing_token_size",
)
_SUFFIXES = (".jsonl", ".parquet")


def findings(config: RunConfig) -> list[Finding]:
    """Return everything that is wrong with a configuration; empty where nothing is."""
    return [*layout_findings(config), *(each for rule in _RULES for each in rule(config))]


def layout_findings(config: RunConfig) -> list[Finding]:
    """Return what keeps the layouts of the roles and of the rollout from being made."""
    found = [each for role in config.roles for each in role_findings(config, role)]
    # A size that several roles take from the actor is named once.
    return [
        *once(found),
        *_sequence_parallel(config),
        *_rollout_replicas(config),
        *_rollout_experts(config),
    ]


def role_findings(config: RunConfig, role: Role) -> Iterator[Finding]:
    """Say what keeps the layout of a role from being made."""
    layout, keys = config.layout(role), config.layout_keys(role)

    def cut(*names: str) -> dict[str, int]:
        """Return the key and the value of each of these sizes that cuts anything."""
        return {keys[name]: size for name in names if (size := getattr(layout, name)) > 1}

    yield from _product_must_divide(cut("tp", "cp", "pp"), DEVICES, config.world_size)
    if config.world_size % layout.pp == 0:
        of_a_stage = f"{DEVICES} per pipeline stage" if layout.pp > 1 else DEVICES
        ranks = config.world_size // layout.pp
        yield from _product_must_divide(cut("ep", "etp"), of_a_stage, ranks)


def sequence_limits(config: RunConfig) -> tuple[tuple[str, int], ...]:
    """Return the longest sequence that each side accepts, with its key."""
    return (
        ("megatron_training.seq_length", config.megatron_training.seq_length),
        ("generate_config.max_model_len", config.generate_config.max_model_len),
    )


def _product_must_divide(cut: Mapping[str, int], what: str, number: int) -> Iterator[Finding]:
    product = prod(cut.values())
    if len(cut) == 1:
        (field,) = cut
        yield from must_divide(field, product, what, number)
    elif number % product:
        near = nearest_divisors(number, product)
        text = f"{' times '.join(cut)}={product} must divide {what}={number}; nearest: {near}"
        # The one to change is the first for which the others leave something.
        alone = {key for key, size in cut.items() if number % (product // size) == 0}
        field = next((key for key in cut if key in alone), next(iter(cut)))
        left = number // (product // cut[field])
        legal = divisors_near(left, cut[field]) if field in alone else ()
        yield Finding(text, field, cut[field], legal)


def _sequence_parallel(config: RunConfig) -> Iterator[Finding]:
    sizes = [config.layout(role).tp for role in config.roles]
    if config.megatron_training.sequence_parallel and max(sizes) == 1:
        need = (
            "needs a tensor_model_parallel_size of 2 or "
            "more, found actor_config.tensor_model_parallel_size=1 and no larger one"
        )
        yield broken("megatron_training.sequence_parallel", True, need, False)


def _rollout_replicas(config: RunConfig) -> Iterator[Finding]:
    size = config.generate_config.infer_tensor_parallel_size
    yield from must_divide(_ROLLOUT_TP, size, DEVICES, config.world_size)


def _rollout_experts(config: RunConfig) -> Iterator[Finding]:
    rollout = config.generate_config
    tensor, expert = rollout.infer_tensor_parallel_size, rollout.infer_expert_parallel_size
    if expert not in (1, tensor):
        need = (
            f"must be 1 or equal to {_ROLLOUT_TP}={tensor}; experts that are shared across "
            "replicas can be planned, not run"
        )
        yield broken("generate_config.infer_expert_parallel_size", expert, need, tensor, 1)


def _mini_batches(config: RunConfig) -> Iterator[Finding]:
    mini_batch, batch = config.rl_config.mini_batch_size, config.megatron_training.global_batch_size
    yield from must_divide(_MINI_BATCH, mini_batch, _BATCH, batch)


def _shares(config: RunConfig) -> Iterator[Finding]:
    """Say so where a role's replicas cannot have equally many sequences."""
    for role in config.roles:
        if config.world_size % config.layout(role).ranks_per_replica == 0:
            yield from _shares_of(config, role)


def _shares_of(config: RunConfig, role: Role) -> Iterator[Finding]:
    samples, replicas = config.rl_config.n_samples_per_prompt, config.layout(role).dp
    field, value, step = _BATCH, config.megatron_training.global_batch_size, "step"
    if role in ("actor", "critic"):
        field, value, step = _MINI_BATCH, config.rl_config.mini_batch_size, "update"
    count = value * samples
    if count % replicas == 0:
        return
    multiple = replicas // gcd(replicas, samples)
    owner = "" if role == "actor" else f" of {role}_config"
    need = (
        f"times {_SAMPLES}={samples} gives "
        f"{count} sequences per {step}, which {replicas} data-parallel "
        f"replicas{owner} must divide; {field} needs a multiple of {multiple}"
    )
    below = value // multiple * multiple
    yield broken(field, value, need, *(size for size in (below, below + multiple) if size))


def _longest(config: RunConfig) -> tuple[int, str]:
    """Return the tokens of prompt and response together, and the same in words."""
    prompt = config.rl_config.max_prompt_length
    response = config.generate_config.sampling_config.max_tokens
    words = f"rl_config.max_prompt_length={prompt} plus {_RESPONSE}={response}"
    return prompt + response, words


def _lengths(config: RunConfig) -> Iterator[Finding]:
    """Prompt and response together must fit what either side accepts."""
    longest, words = _longest(config)
    for field, limit in sequence_limits(config):
        if longest > limit:
            yield broken(field, limit, f"is below {words}; needs {longest} or more", longest)


def _engine_step(config: RunConfig) -> Iterator[Finding]:
    """A step of the engine holds a token of every sequence."""
    rollout = config.generate_config
    tokens, sequences = rollout.max_num_batched_tokens, rollout.max_num_seqs
    if tokens < sequences:
        need = f"must be at least generate_config.max_num_seqs={sequences}"
        yield broken("generate_config.max_num_batched_tokens", tokens, need, sequences)


def _length_penalty(config: RunConfig) -> Iterator[Finding]:
    """The tokens over which the penalty grows are some, and not all, of a response's."""
    rl, longest = config.rl_config, config.generate_config.sampling_config.max_tokens
    if rl.overlong_buffer_enable and not 0 < rl.overlong_buffer < longest:
        need = (
            f"must be at least 1 and less than {_RESPONSE}={longest} "
            "with rl_config.overlong_buffer_enable=true"
        )
        legal = (max(1, longest // 4),) if longest > 1 else ()
        yield broken("rl_config.overlong_buffer", rl.overlong_buffer, need, *legal)


def _packed(config: RunConfig) -> Iterator[Finding]:
    if config.rl_config.use_dynamic_bsz and not config.rl_config.use_remove_padding:
        need = ": rl_config.use_dynamic_bsz=true counts the tokens of packed sequences and needs "
        yield broken("rl_config.use_remove_padding", False, f"{need}true", True)


def _token_budgets(config: RunConfig) -> Iterator[Finding]:
    longest, words = _longest(config)
    for name in _BUDGETS if config.rl_config.use_dynamic_bsz else ():
        budget = getattr(config.rl_config, name)
        if budget is not None and budget < longest:
            need = f"must hold the longest sequence, {words}: {longest} or more"
            yield broken(f"rl_config.{name}", budget, need, longest)


def _rewards(config: RunConfig) -> Iterator[Finding]:
    """Each reward function has a weight; without a reward model there is one at least."""
    names, weights = config.rl_config.verifier_function, config.rl_config.verifier_weight
    if len(weights) != len(names) or not (names or config.reward_config):
        field = "rl_config.verifier_weight"
        text = (
            f"{field} has {len(weights)} entries and "
            f"{_FUNCTIONS} has {len(names)}; each function needs one weight"
        )
        legal = (*weights, *(1.0,) * len(names))[: len(names)]
        yield Finding(text, field, weights, (legal,) if names else ())
    test_data = config.megatron_training.test_data_path
    if not names and not weights and config.reward_config and test_data is not None:
        text = (
            f"{_FUNCTIONS} is empty: its first entry measures the accuracy on "
            f"megatron_training.test_data_path={test_data}; name one, or evaluate nothing"
        )
        yield Finding(text, _FUNCTIONS, ())
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        need = f"names {', '.join(twice)} more than once; raise its weight"
        yield broken(_FUNCTIONS, names, need)


def _evaluation(config: RunConfig) -> Iterator[Finding]:
    frequency = config.rl_config.test_freq
    if frequency and config.megatron_training.test_data_path is None:
        need = "needs megatron_training.test_data_path, found none"
        yield broken("rl_config.test_freq", frequency, need, 0)


def _reference_folder(config: RunConfig) -> Iterator[Finding]:
    ours = config.ref_config.load
    theirs = config.rl_config.integrated_mode_config.ref_model_load_path
    if ours and theirs and ours != theirs:
        need = (
            f"and rl_config.integrated_mode_config.ref_model_load_path={theirs} are two names of "
            "one folder; give one of them"
        )
        yield broken("ref_config.load", ours, need, None, theirs)


def _data_format(config: RunConfig) -> Iterator[Finding]:
    for name in ("data_path", "test_data_path"):
        path = getattr(config.megatron_training, name)
        if path is not None and Path(path).suffix.lower() not in _SUFFIXES:
            need = f"must end in {' or '.join(_SUFFIXES)}"
            yield broken(f"megatron_training.{name}", path, need)


_RULES: tuple[Callable[[RunConfig], Iterator[Finding]], ...] = (
    _mini_batches,
    _shares,
    _lengths,
    _length_penalty,
    _engine_step,
    _packed,
    _token_budgets,
    learning_findings,
    _rewards,
    _evaluation,
    _reference_folder,
    _data_format,
)
