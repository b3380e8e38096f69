"""Import rules of verl for data, rewards, steps, devices, engines and profiles. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from mindrl.migrate.mapped import MISSING, SAME_MEANING, Mapped
from mindrl.migrate.verl_keys import ACTOR, OMITTED, REF, ROLLOUT, SPLITS
from mindrl.migrate.verl_training import has_critic

STEPS, LOAD = "megatron_training.train_iters", "actor_config.load"
_TEST = "rl_config.test_freq"
_GREEDY = {"n": 1, "temperature": 0, "top_p": 1.0, "top_k": -1}
"""verl's defaults of `val_kwargs`."""
_ENGINES = ("vllm", "sglang", "trtllm", "hf")
_DTYPES = {
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("float32", "fp32", "float"), "float32"),
}
_DEVICES = {"cuda": "gpu", "npu": "npu", "cpu": "cpu"}


def run_rules(theirs: Mapping[str, Any], rows: int | None) -> Iterator[Mapped]:
    """Yield the entries for the keys of the run; `rows` of training data, None if unknown."""
    yield from _data(theirs)
    yield from _steps(theirs, rows)
    yield from _warmup(theirs)
    yield from _run(theirs)
    yield from _engine(theirs)
    yield from _budgets(theirs)
    yield from _profiler(theirs)


def _data(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    key, ours, example = "data.train_files", "megatron_training.data_path", "data/train.parquet"
    if key in theirs:
        yield Mapped(key, "renamed", {ours: theirs[key]}, SAME_MEANING)
    else:
        yield Mapped(key, "open", {ours: example}, "not in the file: set the data file")
    yield from _held_out(theirs)
    note = "the column of verl's data with the reference answer"
    sets: dict[str, Any] = {"megatron_training.answer_column": "reward_model.ground_truth"}
    yield Mapped("data.train_files.ground_truth", "derived", sets, note)
    if "data.reward_fn_key" not in theirs:
        sets = {"data_config.source_column": "data_source"}
        yield Mapped("data.reward_fn_key", "derived", sets, "not in the file; verl's default")
    if "data.shuffle" in theirs:
        sets = {"megatron_training.no_shuffle": not theirs["data.shuffle"]}
        yield Mapped("data.shuffle", "renamed", sets, "the opposite meaning: the value is inverted")
    if "data.filter_overlong_prompts" in theirs:
        policy = "drop" if theirs["data.filter_overlong_prompts"] else "error"
        sets = {"rl_config.overlong_prompt_policy": policy}
        yield Mapped("data.filter_overlong_prompts", "renamed", sets, SAME_MEANING)
    yield from _reward(theirs)


def _held_out(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the test file; mindrl answers it greedily, as verl does by default."""
    key, ours = "data.val_files", "megatron_training.test_data_path"
    sampling = f"{ROLLOUT}.val_kwargs"
    given = {name: theirs.get(f"{sampling}.{name}", same) for name, same in _GREEDY.items()}
    keys = [f"{sampling}.{name}" for name in _GREEDY if f"{sampling}.{name}" in theirs]
    is_greedy = not given["temperature"]
    note = "the answers are greedy, as in mindrl" if is_greedy else "part of data_config.eval_sets"
    for each in keys:
        yield Mapped(each, "ignored" if is_greedy else "derived", note=note)
    if f"{sampling}.do_sample" in theirs:
        note = "verl's agent loop reads only val_kwargs.temperature"
        yield Mapped(f"{sampling}.do_sample", "ignored", note=note)
    if key in theirs and not is_greedy:
        own = {"samples" if name == "n" else name: value for name, value in given.items()}
        sets = {"data_config.eval_sets": [{"name": "test", "data_path": theirs[key], **own}]}
        yield Mapped(key, "derived", sets, f"a set with the sampling of {sampling}")
    elif key in theirs:
        yield Mapped(key, "renamed", {ours: theirs[key]}, SAME_MEANING)
    elif theirs.get("trainer.test_freq", -1) > 0:
        note = "not in the file: set the data file"
        yield Mapped(key, "open", {ours: "data/test.parquet"}, note)


def _reward(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for a custom reward function, which mindrl calls as verl does."""
    place = "custom_reward_function"
    path = str(theirs.get(f"{place}.path", ""))
    own = f"{path}:{theirs.get(f'{place}.name', 'compute_score')}"
    name = own if path.endswith(".py") else "math_verify"
    sets = {"rl_config.verifier_function": [name], "rl_config.verifier_weight": [1.0]}
    if name != own:
        note = (
            "verl selects a reward by data_source, or uses your own function: set your reward "
            "function"
        )
        yield Mapped(f"{place}.path" if path else "reward_model.reward_manager", "open", sets, note)
        return
    yield Mapped(f"{place}.path", "renamed", sets, "called with the same arguments as in verl")
    if f"{place}.name" in theirs:
        yield Mapped(f"{place}.name", "derived", note="part of rl_config.verifier_function")
    given = f"{place}.reward_kwargs."
    kwargs = {
        key.removeprefix(given): value for key, value in theirs.items() if key.startswith(given)
    }
    for key in kwargs:
        yield Mapped(
            f"{given}{key}", "renamed", {"rl_config.verifier_kwargs": [kwargs]}, SAME_MEANING
        )


def total_steps(theirs: Mapping[str, Any], rows: int | None) -> int | None:
    """Return the number of training steps, the lower of both limits; None if unknown."""
    known = [theirs.get("trainer.total_training_steps"), _of_epochs(theirs, rows)]
    return min((each for each in known if each), default=None)


def _of_epochs(theirs: Mapping[str, Any], rows: int | None) -> int:
    """Return the steps of all epochs, 0 if unknown; verl drops an incomplete last batch."""
    most = theirs.get("data.train_max_samples", -1)
    used = (rows or 0) if most < 1 else min(rows or 0, most)
    return int(theirs.get("trainer.total_epochs", 30) * (used // _loaded(theirs)))


def _loaded(theirs: Mapping[str, Any]) -> int:
    """Return the prompts that the data loader returns at a time."""
    trained = theirs.get("data.train_batch_size", 1024)
    return int(theirs.get("data.gen_batch_size", trained))


def _steps(theirs: Mapping[str, Any], rows: int | None) -> Iterator[Mapped]:
    """Yield the entries for the step count."""
    key, limit = "trainer.total_epochs", "trainer.total_training_steps"
    most = "data.train_max_samples"
    if theirs.get(most, -1) > 0:
        note = f"mindrl trains on all rows of a file: write {theirs[most]} rows to their own file"
        yield Mapped(most, "open", note=note)
    elif most in theirs:
        yield Mapped(most, "ignored", note="all rows, the same in mindrl")
    steps = _of_epochs(theirs, rows)
    formula = f"{theirs.get(key, 30)} epochs of ROWS // {_loaded(theirs)} steps"
    if limit in theirs:
        yield from _lower(theirs, steps, formula)
    elif rows is None:
        note = (
            f"{formula}, but data.train_files is not on this machine: set {STEPS} in the new "
            f"file, or add {limit}=STEPS to the command line"
        )
        yield Mapped(key, "open", {STEPS: MISSING}, note)
    elif not steps:
        note = f"{formula}: the {rows} rows of data.train_files do not fill one batch; set {STEPS}"
        yield Mapped(key, "open", {STEPS: MISSING}, note)
    else:
        note = f"{formula}, with the {rows} rows of data.train_files"
        yield Mapped(key, "derived", {STEPS: steps}, note)


def _lower(theirs: Mapping[str, Any], steps: int, formula: str) -> Iterator[Mapped]:
    """Yield the entry of the epochs if the steps are given too: verl ends at the lower of both.

    `steps` are those of all epochs, 0 if unknown.
    """
    key, limit = "trainer.total_epochs", "trainer.total_training_steps"
    if 0 < steps < theirs[limit]:
        yield Mapped(key, "derived", {STEPS: steps}, f"{formula}; {limit} is more")
    elif key in theirs and not steps:
        note = f"verl ends after {formula} if {limit} is more: set {STEPS} to the lower of both"
        yield Mapped(key, "open", note=note)
    elif key in theirs:
        yield Mapped(key, "ignored", note=f"{formula}; {limit} is not more")


def _warmup(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entry for the first steps, which train only the critic; verl counts one more."""
    key = "trainer.critic_warmup"
    if key in theirs and has_critic(theirs):
        sets = {"rl_config.critic_warmup": max(0, theirs[key] - 1)}
        note = f"was {theirs[key]}: verl trains the policy from the step with this number, from 1"
        yield Mapped(key, "derived", sets, note)


def _run(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for model, devices, save and test intervals, and lengths."""
    if (model := "actor_rollout_ref.model.path") not in theirs:
        yield Mapped(
            model, "open", {LOAD: MISSING}, f"not in the file: set {LOAD} to the model's folder"
        )
    nodes, per_node = theirs.get("trainer.nnodes", 1), theirs.get("trainer.n_gpus_per_node", 8)
    sets = {"rl_config.actor_resource.num_npus": nodes * per_node}
    yield Mapped("trainer.nnodes", "derived", sets, f"{nodes} machines of {per_node} devices")
    if (device := theirs.get("trainer.device")) in _DEVICES:
        sets = {"rl_config.device": _DEVICES[device]}
        yield Mapped("trainer.device", "renamed", sets, SAME_MEANING)
    for key, ours in (("save_freq", "megatron_training.save_interval"), ("test_freq", _TEST)):
        found = theirs.get(f"trainer.{key}", -1)
        yield Mapped(f"trainer.{key}", "renamed", {ours: max(found, 0)}, "0 means never")
    prompt, response = (
        theirs.get(f"data.max_{name}_length", 512) for name in ("prompt", "response")
    )
    given = theirs.get(f"{ROLLOUT}.max_model_len", 0)
    sets = {
        "megatron_training.seq_length": prompt + response,
        "generate_config.max_model_len": max(given, prompt + response),
    }
    note = f"{prompt} tokens of prompt and {response} of response"
    yield Mapped(f"{ROLLOUT}.max_model_len", "derived", sets, note)


def _engine(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for the rollout engine and its data type."""
    name = theirs.get(f"{ROLLOUT}.name", "vllm")
    if name in _ENGINES:
        note = f"was {name}; mindrl generates with vLLM, from the same distribution"
        yield Mapped(f"{ROLLOUT}.name", "derived", note=note)
    else:
        note = f"{name}: use {', '.join(_ENGINES)}; if dropped, vLLM is used"
        yield Mapped(f"{ROLLOUT}.name", "refused", note=note)
    key, dtype = f"{ROLLOUT}.dtype", theirs.get(f"{ROLLOUT}.dtype")
    if dtype in _DTYPES:
        yield Mapped(key, "renamed", {"generate_config.dtype": _DTYPES[dtype]}, SAME_MEANING)
    elif dtype is not None:
        yield Mapped(key, "refused", note=f"{dtype}: use bfloat16 or float32; if dropped, bfloat16")


def _budgets(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the entries for tokens per trainer pass: mindrl counts those of a whole sequence."""
    parts = max(theirs.get(key, 1) for key in SPLITS)
    split = f"; times {parts} devices that share a sequence" if parts > 1 else ""
    budget, ours = f"{ACTOR}.ppo_max_token_len_per_gpu", "rl_config.max_packing_token_size"
    if budget in theirs:
        note = "tokens per rank and micro-batch, used with use_dynamic_bsz"
        sets = {ours: theirs[budget] * parts}
        yield Mapped(budget, "derived" if split else "renamed", sets, f"{note}{split}")
    elif theirs.get(f"{ACTOR}.use_dynamic_bsz"):
        yield Mapped(budget, "derived", {ours: 16384 * parts}, f"{OMITTED}{split}")
    for role, ours in ((REF, "ref"), (ROLLOUT, "actor")):
        key = f"{role}.log_prob_max_token_len_per_gpu"
        if key in theirs:
            sets = {f"rl_config.{ours}_max_packing_token_size": theirs[key] * parts}
            yield Mapped(key, "derived" if split else "renamed", sets, f"{SAME_MEANING}{split}")


def _profiler(theirs: Mapping[str, Any]) -> Iterator[Mapped]:
    """Yield the profiler entries; mindrl supports the tools torch and npu."""
    key, tool = "global_profiler.steps", theirs.get("global_profiler.tool")
    steps = theirs.get(key)
    if steps and tool in ("torch", "npu"):
        ours = ("profile", "profile_step_start", "profile_step_end")
        values = (True, min(steps), max(steps) + 1)
        sets = {f"profiler_config.{name}": value for name, value in zip(ours, values, strict=True)}
        yield Mapped(
            key, "derived", sets, "profiles all steps from the first to the last of the list"
        )
        ranks = f"{ACTOR}.profiler.ranks"
        if theirs.get(ranks) and not theirs.get(f"{ACTOR}.profiler.all_ranks"):
            sets = {"profiler_config.profile_ranks": tuple(theirs[ranks])}
            yield Mapped(ranks, "renamed", sets, SAME_MEANING)
