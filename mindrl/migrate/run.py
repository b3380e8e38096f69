"""Import of a MindSpeed-RL file; every key of it gets an entry. Pure.

The rules in this file concern the whole run: data, lengths, devices, rollout layout.
"""

from collections.abc import Iterator
from math import gcd

from mindrl.config.layout_keys import DEVICES
from mindrl.migrate.adapters import adapter_rules
from mindrl.migrate.algorithm import algorithm_rules
from mindrl.migrate.answer_rows import ROW_COLUMNS, row_rules
from mindrl.migrate.file import TheirRun, of_any_role
from mindrl.migrate.keys import PROFILER, REASONS, RELEASES, SAME, SAME_OF_RUN
from mindrl.migrate.mapped import (
    SAME_MEANING,
    Import,
    Mapped,
    at_least,
    default,
    same,
    same_of_model,
)
from mindrl.migrate.models import model_rules
from mindrl.migrate.trackers import tracker_rules

_TENSOR = "generate_config.infer_tensor_parallel_size"
_EXPERT = "generate_config.infer_expert_parallel_size"
_SEQUENCES = "generate_config.max_num_seqs"


def import_run(theirs: TheirRun, devices_per_node: int = 8) -> Import:
    """Return the entry of each key; the file does not contain the number of devices per node.

    Raises:
        ConfigError: The file is not for GRPO, DAPO, PPO, DPO, a reward model or SFT.
    """
    found = [*_run_rules(theirs, devices_per_node)]
    if theirs.stage in ROW_COLUMNS:
        found += row_rules(theirs)
    else:
        found += [*_rollout_rules(theirs), *algorithm_rules(theirs)]
    for model in theirs.learners:
        found += model_rules(model)
    found += adapter_rules(theirs)
    accounted = {each.key for each in found}
    left = [key for key in (*theirs.given, *theirs.nulls) if key not in accounted]
    rest = [Mapped(key, "ignored", note=_why_ignored(theirs, key)) for key in left]
    return Import(mapped=[*found, *rest])


def _why_ignored(theirs: TheirRun, key: str) -> str:
    """Return the reason why no rule returned an entry for a key."""
    if key in theirs.nulls:
        return "null: the same as without the key"
    known, section = of_any_role(key), key.partition(".")[0]
    if section in ("model", "megatron_training"):
        winner = theirs.actor.place(known.removeprefix("role."))
        if winner != key:
            return f"overridden by {winner}"
    if section == "critic_config" and not theirs.has_critic:
        return "only rl_config.adv_estimator: gae trains a critic"
    return REASONS.get(known, "the same in mindrl")


def _run_rules(theirs: TheirRun, devices_per_node: int) -> Iterator[Mapped]:
    """Yield the entries for the keys that all runs have."""
    for key in SAME_OF_RUN:
        yield from same_of_model(theirs.actor, key.removeprefix("role."), "megatron_training")
    yield from _of_releases(theirs)
    yield from _saving(theirs)
    yield from _data(theirs)
    yield from _devices(theirs, devices_per_node)
    yield from _overlap(theirs)
    yield from tracker_rules(theirs)
    yield from _profiler(theirs)


def _rollout_rules(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the keys of runs that sample responses."""
    for key in SAME:
        yield from same(theirs, key)
    policy = {"rl_config.overlong_prompt_policy": "drop"}
    note = "longer prompts are dropped, as in MindSpeed-RL"
    yield Mapped("rl_config.max_prompt_length", "derived", policy, note)
    yield from _lengths(theirs)
    yield from _packing(theirs)
    yield from _optimizer_state(theirs)
    yield from _rollout_layout(theirs)
    yield from _sequences(theirs)


def _of_releases(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for keys that have another name or another default in some release."""
    place = theirs.actor.place
    old, new = place("use_deter_comp"), "npu_deterministic"
    if old in theirs.given and place(new) not in theirs.given:
        sets = {f"megatron_training.{new}": theirs.given[old]}
        yield Mapped(old, "renamed", sets, "old name, until MindSpeed-RL 2.2")
    if theirs.release == RELEASES[0] and place("bf16") not in theirs.given:
        yield default(place("bf16"), "megatron_training.bf16", False)


def _saving(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the state that the run starts from, and for the save intervals."""
    actor = theirs.actor
    place, interval = actor.place("save_interval"), actor.given("save_interval")
    if actor.given("finetune") is False:
        note = "false: MindSpeed-RL continues the step count of load; mindrl starts at step 1"
        yield Mapped(actor.place("finetune"), "open", note=note)
    if actor.given("no_save_optim"):
        # A checkpoint in mindrl always holds the optimizer; without it the folder is an export.
        note = (
            "only weights are exported; set megatron_training.save_interval to make a run resumable"
        )
        off = {"megatron_training.save_interval": 0}
        yield Mapped(actor.place("no_save_optim"), "derived", off, note)
        if interval is not None:
            yield Mapped(place, "renamed", {"megatron_training.export_interval": interval})
    elif interval is not None:
        note = (
            "MindSpeed-RL keeps all checkpoints; mindrl those that keep_last and keep_every select"
        )
        yield Mapped(place, "honoured", {"megatron_training.save_interval": interval}, note)


def _data(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the rows: their file, the held-out ones, and their template."""
    actor, columns = theirs.actor, "megatron_training.prompt_column and answer_column"
    yield Mapped(
        actor.place("data_path"),
        "open",
        {"megatron_training.data_path": actor.given("data_path", "data/train.jsonl")},
        "was a prefix of .bin/.idx files; set the .jsonl or .parquet file that they were made "
        f"from, with {ROW_COLUMNS.get(theirs.stage, columns)}",
    )
    split, template = str(actor.given("split", "")).strip("[]"), actor.given("prompt_type")
    # The first share is for training; if all others are 0, no rows are held out.
    if split.partition(",")[2].strip("0., "):
        first, *others = map(float, split.split(","))
        held_out = {"data_config.held_out_fraction": round(sum(others) / (first + sum(others)), 4)}
        note = f"was {split}; the same number of rows is held out, but other rows"
        yield Mapped(actor.place("split"), "derived", held_out, note)
    if template is not None:
        note = (
            f"was {template}; mindrl uses the tokenizer's chat template: check that it renders "
            "prompts in the same way"
        )
        yield Mapped(actor.place("prompt_type"), "open", note=note)


def _devices(theirs: TheirRun, devices_per_node: int) -> Iterator[Mapped]:
    sets = {"rl_config.actor_resource.npus_per_node": devices_per_node, "rl_config.device": "npu"}
    if DEVICES in theirs.given:
        note = "a node has 8 NPUs on Atlas A2 and 16 on A3; set --devices-per-node"
        yield Mapped(DEVICES, "derived", sets, note)
    else:
        note = "not in the file: set the number of devices of the run"
        yield Mapped(DEVICES, "open", {DEVICES: devices_per_node, **sets}, note)
    sizes = [model.value("tensor_model_parallel_size", 1) for model in theirs.learners]
    place, ours = theirs.actor.place("sequence_parallel"), "sequence_parallel"
    if theirs.given.get(place) and max(sizes) == 1:
        note = "was true, which has no effect with tensor_model_parallel_size 1"
        yield Mapped(place, "derived", {f"megatron_training.{ours}": False}, note)
    else:
        yield from same(theirs, place, f"megatron_training.{ours}")


def _overlap(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for keys of communication during passes that mindrl would refuse."""
    actor = theirs.actor
    size, gathers = "ddp_bucket_size", "overlap_param_gather"
    if actor.given("overlap_grad_reduce"):
        yield from same_of_model(actor, size, "megatron_training")
    elif actor.given(size) is not None:
        yield Mapped(actor.place(size), "ignored", note="no effect without overlap_grad_reduce")
    if actor.given(gathers) and not actor.given("use_distributed_optimizer"):
        note = "was true, which has no effect without use_distributed_optimizer"
        off = {f"megatron_training.{gathers}": False}
        yield Mapped(actor.place(gathers), "derived", off, note)
    else:
        yield from same_of_model(actor, gathers, "megatron_training")


def _longest(theirs: TheirRun) -> int:
    prompt = theirs.value("rl_config.max_prompt_length", 512)
    return int(prompt + theirs.value("generate_config.sampling_config.max_tokens", 128))


def _lengths(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the limits on the total length of prompt and response."""
    longest = _longest(theirs)
    whole = f"prompt and response take {longest} tokens"
    trained = theirs.actor.place("seq_length")
    why = f"{whole}, which seq_length does not limit in MindSpeed-RL"
    given = theirs.given.get(trained)
    yield at_least(trained, given, longest, why, "megatron_training.seq_length")
    model, batched = "generate_config.max_model_len", "generate_config.max_num_batched_tokens"
    accepted = theirs.value(model, 2048)
    why = f"{whole}; MindSpeed-RL would truncate responses without a message"
    yield at_least(model, accepted, longest, why)
    least = max(accepted, longest, _at_a_time(theirs))
    why = (
        "at least max_model_len, because batch_invariant, and any run on CPUs, needs prompts in "
        "one step of the engine, and at least max_num_seqs"
    )
    yield at_least(batched, theirs.value(batched, 2048), least, why)


def _packing(theirs: TheirRun) -> Iterator[Mapped]:
    packed, dynamic = "rl_config.use_remove_padding", theirs.given.get("rl_config.use_dynamic_bsz")
    if dynamic and not theirs.given.get(packed):
        note = "use_dynamic_bsz requires packing, which does not change the gradient"
        yield Mapped(packed, "derived", {packed: True}, note)
    else:
        yield from same(theirs, packed)
    if not dynamic:
        return
    longest = _longest(theirs)
    why = f"the longest sequence has {longest} tokens; micro-batches do not change the gradient"
    for role in ("", "actor_", "ref_", "update_"):
        key = f"rl_config.{role}max_packing_token_size"
        if not role or key in theirs.given:
            yield at_least(key, theirs.value(key, 4096), longest, why)


def _optimizer_state(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for the location of the optimizer state between updates."""
    key = "generate_config.offload_train_optimizer"
    swapped = theirs.actor.place("swap_optimizer")
    if not theirs.given.get(swapped):
        yield from same(theirs, key)
        return
    note = (
        "MindSpeed-RL streams the optimizer state from the host during an update; mindrl has it on "
        "the device during the update: check with `mindrl plan memory` that it fits"
    )
    yield Mapped(swapped, "derived", {key: True}, note)
    if key in theirs.given:
        yield Mapped(key, "derived", note=f"see {swapped}")


def _rollout_layout(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the entries for tensor and expert parallelism of a rollout replica."""
    tensor, expert = theirs.value(_TENSOR), theirs.value(_EXPERT, 1)
    has_experts = theirs.actor.has_experts
    if has_experts and expert > 1:
        # Several replicas share experts in MindSpeed-RL; one larger replica has them in mindrl.
        shared, size = tensor * expert, _replica_ranks(theirs)
        note = (
            f"was {tensor}, in {expert} replicas that share experts over {shared} ranks; a mindrl "
            f"replica has its own experts on {size} ranks: the largest part of the {shared} ranks "
            "that divides attention heads and experts"
        )
        yield Mapped(_TENSOR, "derived", {_TENSOR: size}, note)
        yield Mapped(_EXPERT, "derived", {_EXPERT: size}, f"see {_TENSOR}")
        return
    yield from same(theirs, _TENSOR)
    if not has_experts:
        note = "" if expert == 1 else f"was {expert}; the model has no experts"
        yield Mapped(_EXPERT, "derived" if note else "honoured", {_EXPERT: 1}, note)
    else:
        whole = tensor if theirs.given.get("generate_config.enable_expert_parallel") else 1
        note = "each rank has whole experts" if whole > 1 else "each expert is split over the ranks"
        yield Mapped(_EXPERT, "derived", {_EXPERT: whole}, note)


def _replica_ranks(theirs: TheirRun) -> int:
    """Return the ranks of a mindrl rollout replica: as given, or more to hold shared experts."""
    actor, tensor, expert = theirs.actor, int(theirs.value(_TENSOR)), int(theirs.value(_EXPERT, 1))
    if not actor.has_experts or expert == 1:
        return tensor
    shared = tensor * expert
    heads = actor.value("num_attention_heads", shared)
    return gcd(shared, theirs.value(DEVICES, shared), heads, actor.value("num_experts"))


def _at_a_time(theirs: TheirRun) -> int:
    """Return the sequences that a replica decodes at a time; the total over all devices is kept."""
    there, tensor = int(theirs.value(_SEQUENCES)), int(theirs.value(_TENSOR))
    return max(1, there * _replica_ranks(theirs) // tensor)


def _sequences(theirs: TheirRun) -> Iterator[Mapped]:
    there, here = theirs.value(_SEQUENCES), _at_a_time(theirs)
    if here == there:
        yield from same(theirs, _SEQUENCES)
        return
    note = (
        f"was {there} per replica of {theirs.value(_TENSOR)} ranks; a mindrl replica has "
        f"{_replica_ranks(theirs)} ranks. The total number of sequences is the same"
    )
    yield Mapped(_SEQUENCES, "derived", {_SEQUENCES: here}, note)


def _profiler(theirs: TheirRun) -> Iterator[Mapped]:
    """Yield the profiler entries; mindrl has no section `integrated`."""
    for key in PROFILER:
        if key in theirs.given:
            # An empty folder name means no folder.
            found = None if theirs.given[key] == "" else theirs.given[key]
            yield Mapped(key, "renamed", {key.replace("integrated.", ""): found}, SAME_MEANING)
    for name in ("stage", "profile_ranks"):
        key, ours = f"profiler_config.integrated.{name}", f"profiler_config.{name}"
        found = theirs.given.get(key)
        if found == "all":
            yield Mapped(key, "renamed", {ours: None}, "null means all")
        elif found is not None:
            several = tuple(found) if isinstance(found, (list, tuple)) else (found,)
            yield Mapped(key, "renamed", {ours: several}, SAME_MEANING)
    marks = "profiler_config.integrated.mstx"
    if theirs.given.get(marks):
        last = theirs.given.get("profiler_config.integrated.profile_step_end", 2) - 1
        note = "mindrl records a light timeline of the first steps, on any device"
        yield Mapped(marks, "derived", {"profiler_config.trace_steps": last}, note)
