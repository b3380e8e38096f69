"""Rules of a MindSpeed-RL import for the run as a whole: data, lengths, devices, rollout layout."""

from collections.abc import Iterator
from math import gcd

from mindrl.config.layout_sizes import DEVICES
from mindrl.migrate.file import TheirRun
from mindrl.migrate.keys import SAME, SAME_OF_RUN
from mindrl.migrate.mapped import Mapped, default, raised, same, same_of_role
from mindrl.migrate.models import is_moe
from mindrl.migrate.releases import RELEASES

_TENSOR = "generate_config.infer_tensor_parallel_size"
_EXPERT = "generate_config.infer_expert_parallel_size"
_SEQUENCES = "generate_config.max_num_seqs"


def run_rules(theirs: TheirRun, devices_per_node: int) -> Iterator[Mapped]:
    """Say what becomes of the keys of the run and of the rollout."""
    for key in SAME:
        yield from same(theirs, key)
    for key in SAME_OF_RUN:
        yield from same_of_role(theirs, "actor", key, "megatron_training")
    yield from _of_releases(theirs)
    yield from _data(theirs)
    yield from _devices(theirs, devices_per_node)
    yield from _lengths(theirs)
    yield from _packing(theirs)
    yield from _optimizer_state(theirs)
    yield from _rollout_layout(theirs)
    yield from _sequences(theirs)


def _of_releases(theirs: TheirRun) -> Iterator[Mapped]:
    """What a release calls otherwise, or takes otherwise where it is left out."""
    old, new = theirs.place("actor", "use_deter_comp"), "npu_deterministic"
    if old in theirs.given and theirs.place("actor", new) not in theirs.given:
        sets = {f"megatron_training.{new}": theirs.given[old]}
        yield Mapped(key=old, kind="renamed", sets=sets, note="its name until 2.2")
    precision = theirs.place("actor", "bf16")
    if theirs.release == RELEASES[0] and precision not in theirs.given:
        yield default(precision, "megatron_training.bf16", False)


def _data(theirs: TheirRun) -> Iterator[Mapped]:
    path, split, template = (
        theirs.place("actor", key) for key in ("data_path", "split", "prompt_type")
    )
    found = theirs.given.get(path, "data/train.jsonl")
    note = (
        "the prefix of .bin/.idx files there; name the .jsonl or .parquet file that they were made "
        "from, with megatron_training.prompt_column and answer_column"
    )
    ours = {"megatron_training.data_path": found}
    yield Mapped(key=path, kind="open", sets=ours, note=note)
    policy = {"rl_config.overlong_prompt_policy": "drop"}
    note = "longer prompts are left out, as there"
    yield Mapped(key="rl_config.max_prompt_length", kind="derived", sets=policy, note=note)
    # The first share trains; in the others nothing but zeros is as if they were not there.
    _, _, others = str(theirs.given.get(split, "")).strip("[]").partition(",")
    if others.strip("0., "):
        note = f"{theirs.given[split]} there; here all rows of data_path train: cut the file first"
        yield Mapped(key=split, kind="open", note=note)
    if template in theirs.given:
        note = (
            f"{theirs.given[template]}: the tokenizer's own chat template is used here; see that "
            "it says the same"
        )
        yield Mapped(key=template, kind="open", note=note)


def _devices(theirs: TheirRun, devices_per_node: int) -> Iterator[Mapped]:
    sets = {"rl_config.actor_resource.npus_per_node": devices_per_node, "rl_config.device": "npu"}
    if DEVICES in theirs.given:
        note = "a node has 8 NPUs on Atlas A2 and 16 on A3; --devices-per-node says which"
        yield Mapped(key=DEVICES, kind="derived", sets=sets, note=note)
    else:
        note = "not in the file: say how many devices the run has"
        yield Mapped(key=DEVICES, kind="open", sets={DEVICES: devices_per_node, **sets}, note=note)
    place = theirs.place("actor", "sequence_parallel")
    sizes = [theirs.role("actor", "tensor_model_parallel_size", 1)]
    if theirs.has_critic:
        sizes.append(theirs.role("critic", "tensor_model_parallel_size", 1))
    if theirs.given.get(place) and max(sizes) == 1:
        off = {"megatron_training.sequence_parallel": False}
        note = "true there, which does nothing at tensor_model_parallel_size 1"
        yield Mapped(key=place, kind="derived", sets=off, note=note)
    else:
        yield from same(theirs, place, "megatron_training.sequence_parallel")


def _longest(theirs: TheirRun) -> int:
    prompt = theirs.value("rl_config.max_prompt_length", 512)
    return int(prompt + theirs.value("generate_config.sampling_config.max_tokens", 128))


def _lengths(theirs: TheirRun) -> Iterator[Mapped]:
    """Limits that prompt and response together must fit into."""
    longest = _longest(theirs)
    trained = theirs.place("actor", "seq_length")
    yield raised(
        trained,
        "megatron_training.seq_length",
        (theirs.given.get(trained), longest),
        f"prompt and response take {longest}; there seq_length bounds neither of them",
    )
    model, batched = "generate_config.max_model_len", "generate_config.max_num_batched_tokens"
    accepted = theirs.value(model, 2048)
    note = f"prompt and response take {longest}; there the engine cuts a response short unseen"
    yield raised(model, model, (theirs.given.get(model, 2048), longest), note)
    least = max(accepted, longest, _at_a_time(theirs))
    note = (
        "at least max_model_len, for the engine takes a prompt in one piece on NPUs, and "
        "at least max_num_seqs"
    )
    yield raised(batched, batched, (theirs.given.get(batched, 2048), least), note)


def _packing(theirs: TheirRun) -> Iterator[Mapped]:
    packed = "rl_config.use_remove_padding"
    if not theirs.given.get("rl_config.use_dynamic_bsz"):
        yield from same(theirs, packed)
        return
    if theirs.given.get(packed):
        yield from same(theirs, packed)
    else:
        note = "use_dynamic_bsz counts the tokens of packed sequences: the same gradient"
        yield Mapped(key=packed, kind="derived", sets={packed: True}, note=note)
    longest = _longest(theirs)
    note = f"the longest sequence takes {longest}; the cut into micro-batches changes no gradient"
    whole = "rl_config.max_packing_token_size"
    yield raised(whole, whole, (theirs.value(whole, 4096), longest), note)
    for role in ("actor", "ref", "update"):
        key = f"rl_config.{role}_max_packing_token_size"
        if key in theirs.given:
            yield raised(key, key, (theirs.given[key], longest), note)


def _optimizer_state(theirs: TheirRun) -> Iterator[Mapped]:
    """Where the optimizer state is while the trainer does not update."""
    key = "generate_config.offload_train_optimizer"
    swapped = theirs.place("actor", "swap_optimizer")
    if theirs.given.get(swapped):
        note = (
            "there the state stays on the host and streams through an update; here it is on the "
            "device for the update alone: `plan.py memory` says whether it fits"
        )
        yield Mapped(key=swapped, kind="derived", sets={key: True}, note=note)
        if key in theirs.given:
            yield Mapped(key=key, kind="derived", note=f"see {swapped}")
    elif key in theirs.given:
        yield from same(theirs, key)
    else:
        yield default(key, key, False)


def _rollout_layout(theirs: TheirRun) -> Iterator[Mapped]:
    """Over how many ranks a rollout replica is cut, and its experts are dealt."""
    tensor, expert = theirs.value(_TENSOR, 8), theirs.value(_EXPERT, 1)
    if is_moe(theirs, "actor") and expert > 1:
        yield from _across_replicas(theirs, tensor, expert)
        return
    if _TENSOR in theirs.given:
        yield from same(theirs, _TENSOR)
    else:
        yield default(_TENSOR, _TENSOR, tensor)
    if not is_moe(theirs, "actor"):
        note = "" if expert == 1 else f"{expert} there; the model has no experts"
        dense = {_EXPERT: 1}
        yield Mapped(key=_EXPERT, kind="derived" if note else "honoured", sets=dense, note=note)
    else:
        switch = "generate_config.enable_expert_parallel"
        whole = tensor if theirs.given.get(switch) else 1
        how = "each rank has whole experts" if whole > 1 else "each expert is cut over the ranks"
        yield Mapped(key=_EXPERT, kind="derived", sets={_EXPERT: whole}, note=how)


def _across_replicas(theirs: TheirRun, tensor: int, expert: int) -> Iterator[Mapped]:
    """Experts that several replicas share there; one larger replica has them here."""
    shared, size = tensor * expert, _replica_ranks(theirs)
    note = (
        f"{tensor} there, in {expert} replicas that share their experts over {shared} ranks; here "
        f"a replica has experts of its own: {size} ranks, the most of those {shared} that divide "
        "attention heads and experts"
    )
    yield Mapped(key=_TENSOR, kind="derived", sets={_TENSOR: size}, note=note)
    yield Mapped(key=_EXPERT, kind="derived", sets={_EXPERT: size}, note=f"see {_TENSOR}")


def _replica_ranks(theirs: TheirRun) -> int:
    """Return the ranks of a rollout replica here: theirs, or more where those share experts."""
    tensor: int = theirs.value(_TENSOR, 8)
    expert: int = theirs.value(_EXPERT, 1)
    if not is_moe(theirs, "actor") or expert == 1:
        return tensor
    shared = tensor * expert
    heads = theirs.role("actor", "num_attention_heads", shared)
    experts: int = theirs.role("actor", "num_experts")
    return gcd(shared, theirs.value(DEVICES, shared), heads, experts)


def _at_a_time(theirs: TheirRun) -> int:
    """Return how many sequences a replica decodes: all devices decode as many as there."""
    there: int = theirs.value(_SEQUENCES)
    tensor: int = theirs.value(_TENSOR, 8)
    return max(1, there * _replica_ranks(theirs) // tensor)


def _sequences(theirs: TheirRun) -> Iterator[Mapped]:
    there, here = theirs.value(_SEQUENCES), _at_a_time(theirs)
    if here == there:
        yield from same(theirs, _SEQUENCES)
        return
    note = (
        f"{there} there, for each replica of {theirs.value(_TENSOR, 8)} ranks; a replica has "
        f"{_replica_ranks(theirs)} here, and all devices decode as many sequences as there"
    )
    yield Mapped(key=_SEQUENCES, kind="derived", sets={_SEQUENCES: here}, note=note)
