"""Cost model of a step, in seconds, as documented in docs/how-to/plan-a-run.md.

Pure arithmetic on sizes, layouts and device rates. It ranks proposals; the time on real devices
depends on more than this.
"""

from collections.abc import Iterator, Mapping
from math import lcm

from mindrl.config.backends import TRAINING_BACKEND
from mindrl.layouts.layout import RolloutLayout, TrainLayout
from mindrl.models.decoder import ELEMENT_BYTES
from mindrl.propose.candidates import Settings, Task

COMPUTE_SHARE = 0.4
"""Share of a device's peak operations that large matrix products reach."""
MEMORY_SHARE = 0.6
"""Share of a device's memory bandwidth that decoding reaches."""
LINK_SHARE = 0.6
"""Share of a link's bandwidth that collectives and messages reach."""
NODE_LATENCY, NETWORK_LATENCY = 20e-6, 60e-6
"""Minimum seconds of a collective, inside a node and across nodes."""
LAYER_LAUNCH = 0.2e-3
"""Seconds in which the host launches the kernels of one layer."""

_BYTES = ELEMENT_BYTES["bfloat16"]
_GRADIENT_BYTES = 4
GIGA, _TERA = 1e9, 1e12


SecondsByStage = Mapping[str, float]
"""Seconds of a step by kind. `prefill`: prompts in the rollout. `decode`: responses. `compute`:
passes of all models. `bubble`: waiting pipeline stages. `communication`: between training ranks.
`copies`: between device and host. `reshard`: transfer of weights."""


def link_gbps(task: Task, span: int) -> float:
    """Return the GB/s of a rank in a group that spans `span` ranks, first to last."""
    device = task.device
    inside = span <= task.ranks_per_node
    return (device.node_gbps if inside else device.network_gbps) * LINK_SHARE


def training_seconds(task: Task, layout: TrainLayout, settings: Settings) -> dict[str, float]:
    """Return the seconds of the training side: `compute`, `bubble`, `communication`."""
    linear, square = task.forward_operations
    prompts, prompt = passed_prompts(task, layout, settings), task.prompt_tokens
    tokens = prompts * prompt + task.sequences * task.response_tokens
    # A response also attends to its prompt, shared or not.
    pairs = prompts * prompt**2 + task.sequences * (task.longest**2 - prompt**2)
    operations = linear * tokens + square * pairs
    rate = task.device.tflops * _TERA * COMPUTE_SHARE
    micro_batches = micro_batches_of(task, layout, settings)
    launches = micro_batches * _stage_layers(task, layout) * LAYER_LAUNCH
    forward = operations / task.devices / rate * longest_stage(task, layout) + launches
    learners, again = (2 if task.has_critic else 1), int(settings.recomputes)
    # Log-probs of reference or teacher, and of the actor if updates do not compute them; values;
    # updates. A backward pass computes as much as two forward ones, and communicates as one.
    reads = _frozen_cost(task) + int(task.reads_actor) + int(task.has_critic)
    compute = (reads + learners * (3 + again)) * forward
    sweeps = reads + learners * (2 + again)
    shared = _shared_seconds(task, layout, (reads, learners), micro_batches)
    return {
        "compute": compute,
        "bubble": compute * bubble_share(task, layout, settings),
        "communication": sweeps * sum(_traffic(task, layout, tokens)) + shared,
    }


def passed_prompts(task: Task, layout: TrainLayout, settings: Settings) -> float:
    """Return how many prompts a training pass of all sequences computes.

    One for each sequence, or one for the sequences of each prompt in a micro-batch: the sequences
    are in the order of their prompts.
    """
    if not task.shares_prompts or layout.ring > 1:
        return task.sequences
    each, samples = settings.micro_batch_size, task.samples
    return task.sequences * (1 / each + 1 / samples - 1 / lcm(each, samples))


def _frozen_cost(task: Task) -> float:
    """Return the work of the model that never changes, relative to the policy's."""
    costs = (each.forward_operations for each in (task.of_frozen, task))
    theirs, ours = (linear + square * task.longest for linear, square in costs)
    return theirs / ours


def micro_batches_of(task: Task, layout: TrainLayout, settings: Settings) -> int:
    """Return the micro-batches of a replica in one pass over the sequences of a step."""
    return -(-task.sequences // layout.dp // settings.micro_batch_size)


def bubble_share(task: Task, layout: TrainLayout, settings: Settings) -> float:
    """Return the time that a stage waits for others, relative to its working time."""
    return (layout.pp - 1) / micro_batches_of(task, layout, settings)


def _stage_layers(task: Task, layout: TrainLayout) -> int:
    """Return the layers of the longest pipeline stage."""
    return max(map(len, layout.chunks(task.model.num_hidden_layers)))


def longest_stage(task: Task, layout: TrainLayout) -> float:
    """Return the work of the longest pipeline stage relative to the mean; the last has a head.

    Work is measured by the weights of a stage's matrix products.
    """
    moe, sizes = task.model.moe, task.parameters
    chosen = moe.num_experts_per_tok / moe.num_experts if moe else 1.0
    work = [
        sum(sizes.dense[layer] + sizes.experts[layer] * chosen for layer in chunk)
        for chunk in layout.chunks(task.model.num_hidden_layers)
    ]
    work[-1] += task.model.vocab_size * task.model.hidden_size
    return max(work) * layout.pp / sum(work)


def _shared_seconds(
    task: Task, layout: TrainLayout, passes: tuple[float, int], micro_batches: int
) -> float:
    """Return the seconds of communication between replicas, for `passes` (reading, learning).

    Megatron reduces gradients once per update, and gathers the weights. With sharded weights, ranks
    gather them for every pass of a micro-batch, forward and backward, and reduce its gradients;
    pipeline stages gather once for all micro-batches.
    """
    reads, learners = passes
    if task.engine == TRAINING_BACKEND:
        return learners * _among_replicas(task, layout, _GRADIENT_BYTES + _BYTES)
    times, of_an_update = (1, _BYTES) if layout.pp > 1 else (micro_batches, 2 * _BYTES)
    nbytes = reads * _BYTES + learners * (of_an_update + _GRADIENT_BYTES)
    return times * _among_replicas(task, layout, nbytes)


def _among_replicas(task: Task, layout: TrainLayout, nbytes: float) -> float:
    """Return the seconds to gather or reduce `nbytes` per parameter over replicas."""
    bandwidth = link_gbps(task, layout.tp * layout.cp * layout.dp) * GIGA
    copies = (layout.cp * layout.dp, layout.expert_dp)
    most = max(stage_parameters(task, layout), key=sum)
    return sum(
        parameters * nbytes * (ranks - 1) / ranks / bandwidth
        for parameters, ranks in zip(most, copies, strict=True)
    )


def stage_parameters(task: Task, layout: TrainLayout) -> list[tuple[float, float]]:
    """Return a rank's dense and expert parameters for each stage, without padding."""
    sizes, chunks = task.parameters, layout.chunks(task.model.num_hidden_layers)
    dense = [sum(sizes.dense[layer] for layer in chunk) for chunk in chunks]
    dense[0] += sizes.embedding
    dense[-1] += sizes.head
    experts = [sum(sizes.experts[layer] for layer in chunk) for chunk in chunks]
    cut = layout.ep * layout.etp
    return [(one / layout.tp, other / cut) for one, other in zip(dense, experts, strict=True)]


def rollout_seconds(
    task: Task, layout: RolloutLayout, weights: float, at_a_time: int, per_token: int
) -> dict[str, float]:
    """Return the seconds of the rollout: `prefill` and `decode`.

    All responses are assumed to have the maximum length. `weights` are the bytes on a rank, and
    `per_token` those of a token in its KV cache; a replica decodes `at_a_time` sequences together.
    """
    of_replica = task.sequences_of(layout)
    waves = -(-of_replica // at_a_time)
    linear, square = task.forward_operations
    rate = task.device.tflops * _TERA * COMPUTE_SHARE * layout.tp
    prompt = (linear * task.prompt_tokens + square * task.prompt_tokens**2) / rate
    prompt += _reductions(task, layout, task.prompt_tokens)
    kept = at_a_time * (task.prompt_tokens + task.response_tokens / 2) * per_token
    read = weights * _read_share(task, at_a_time) + kept
    memory = read / (task.device.memory_gbps * GIGA * MEMORY_SHARE)
    layers = task.model.num_hidden_layers
    crosses = layout.tp > task.ranks_per_node
    latency = (NETWORK_LATENCY if crosses else NODE_LATENCY) if layout.tp > 1 else 0.0
    step = max(memory, at_a_time * linear / rate) + _reductions(task, layout, at_a_time)
    step += layers * (LAYER_LAUNCH + 2 * latency)
    return {"prefill": of_replica * prompt, "decode": waves * task.response_tokens * step}


def _traffic(task: Task, layout: TrainLayout, all_tokens: float) -> Iterator[float]:
    """Yield the seconds of one forward pass: tensor, context and expert ranks, then stages."""
    model, layers = task.model, _stage_layers(task, layout)
    tokens = all_tokens / (layout.dp * layout.cp)
    hidden = tokens * model.hidden_size * _BYTES
    tp, cp = layout.tp, layout.cp
    # Two all-reduces over the tensor-parallel ranks per layer, each a reduce-scatter and a gather.
    yield layers * 2 * 2 * hidden * (tp - 1) / tp / (link_gbps(task, tp) * GIGA)
    heads = 2 * model.num_attention_heads + 2 * model.num_key_value_heads
    widths = tokens * heads * model.head_dim / tp * _BYTES
    yield layers * widths * (cp - 1) / cp / (link_gbps(task, tp * cp) * GIGA)
    if model.moe:
        dispatched = hidden / tp * model.moe.num_experts_per_tok
        with_experts = layers * (1 - len(model.moe.dense_layers) / model.num_hidden_layers)
        bandwidth = link_gbps(task, layout.etp * layout.ep) * GIGA
        # Tokens are sent to their experts and back; all ranks that share an expert receive them.
        moved = 2 * dispatched * ((layout.ep - 1) / layout.ep + layout.etp - 1)
        yield with_experts * moved / bandwidth
    if layout.pp > 1:
        # Stages are the farthest apart of all ranks.
        yield hidden / tp / (link_gbps(task, task.devices) * GIGA)


def _reductions(task: Task, layout: RolloutLayout, tokens: int) -> float:
    """Return the seconds in which the engine's ranks reduce the hidden states of tokens."""
    hidden = tokens * task.model.hidden_size * _BYTES
    moved = task.model.num_hidden_layers * 2 * 2 * hidden * (layout.tp - 1) / layout.tp
    return moved / (link_gbps(task, layout.tp) * GIGA)


def _read_share(task: Task, tokens: int) -> float:
    """Return the share of the weights that a step of `tokens` tokens reads: not every expert."""
    moe, sizes = task.model.moe, task.parameters
    if moe is None:
        return 1.0
    experts = sum(sizes.experts)
    others = sum(sizes.dense) + sizes.embedding + sizes.head
    hit = 1 - (1 - moe.num_experts_per_tok / moe.num_experts) ** tokens
    return (others + experts * hit) / (others + experts)
