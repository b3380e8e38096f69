"""Proposals as figures and text, for people before a run and for programs as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from mindrl.layouts.layout import TrainLayout
from mindrl.observability.units import memory_text
from mindrl.propose.candidates import PARTS, Task, written_values
from mindrl.propose.costs import bubble_share, micro_batches_of
from mindrl.propose.fitting import Fit, activations_of
from mindrl.propose.search import Proposal, Search

LEAST_SECONDS = 0.05
"""Smaller differences would be printed as 0.0 and are omitted."""


def task_figures(task: Task) -> dict[str, Any]:
    """Return the figures of the request."""
    return {
        "model": task.load,
        "teacher": None if task.teacher is None else task.teacher.load,
        "device": task.device.name,
        "devices": task.devices,
        "devices_per_node": task.ranks_per_node,
    }


def figures_of(task: Task, found: Search, best: Proposal | None = None) -> dict[str, Any]:
    """Return the figures of a search, in bytes; `best`, by default its first, is the reference."""
    first = best or found.proposals[0]
    return {
        **task_figures(task),
        "training_layouts": len(found.training),
        "rollout_layouts": len(found.rollout),
        "fitting": found.fitting,
        "proposals": [
            _figures(task, found, each, None if each is first else first.fit)
            for each in found.proposals
        ],
    }


def _figures(task: Task, found: Search, proposal: Proposal, first: Fit | None) -> dict[str, Any]:
    fit, moved, total = proposal.fit, proposal.moved, proposal.fit.step_seconds
    training, rollout = task.texts(proposal.candidate)
    return {
        "training": training,
        "rollout": rollout,
        "step_seconds": total,
        "seconds": fit.seconds,
        "shares": {name: seconds / total for name, seconds in fit.seconds.items()},
        "peak_bytes": fit.peak_bytes,
        "peak_moment": fit.peak_moment,
        "with_activations_bytes": fit.with_activations_bytes,
        "device_bytes": task.device.memory_bytes,
        "host_bytes_per_node": fit.host_bytes,
        # By all ranks together; None if the reshard was not planned.
        "reshard_received_bytes": moved.received if moved else None,
        "reshard_across_nodes_bytes": moved.across_nodes if moved else None,
        "bubble_share": bubble_share(task, proposal.candidate.training, fit.settings),
        "reasons": [*reasons(task, found, proposal)],
        "behind_the_first": slowdown(first, fit) if first else None,
        "config": written_values(task, proposal.candidate, fit.settings),
    }


def slowdown(first: Fit, other: Fit) -> str:
    """Return by how much a proposal is slower than the first, and where."""
    gap = other.step_seconds - first.step_seconds
    more = {name: seconds - first.seconds[name] for name, seconds in other.seconds.items()}
    names = sorted(more, key=lambda name: -more[name])
    parts = [f"{name} {more[name]:+.1f} s" for name in names if abs(more[name]) >= LEAST_SECONDS]
    text = ", ".join(parts) or "almost equal"
    return f"{gap:.1f} s slower than the first: {text}"


def reasons(task: Task, found: Search, proposal: Proposal) -> Iterator[str]:
    """Yield the reasons for a proposal's layouts and settings."""
    training = proposal.candidate.training
    yield _tensor(task, found, training)
    if training.cp > 1:
        where = _where(task, training.tp * training.cp)
        yield f"cp {training.cp} splits the tokens of a sequence, {where}"
    yield _pipeline(task, proposal)
    if task.model.moe:
        yield _experts(task, training, task.model.moe.num_experts)
    yield _activations(task, proposal)
    yield _offloads(task, proposal.fit)
    yield _rollout(task, proposal)
    yield _reshard(proposal)


def _tensor(task: Task, found: Search, layout: TrainLayout) -> str:
    legal = _listed(sorted({each.tp for each in found.training}))
    model = task.model
    heads = f"{model.num_attention_heads} heads"
    if model.mla is None:
        heads += f" and {model.num_key_value_heads} KV heads"
    text = f"tp {layout.tp} of {legal}, which {heads} on {task.devices} devices allow"
    return f"{text}; its all-reduces stay {_where(task, layout.tp)}" if layout.tp > 1 else text


def _pipeline(task: Task, proposal: Proposal) -> str:
    layout, settings = proposal.candidate.training, proposal.fit.settings
    batches = micro_batches_of(task, layout, settings)
    batch = f"dp {layout.dp}: {batches} micro-batches of {settings.micro_batch_size} per replica"
    if layout.pp == 1:
        return f"{batch}; no pipeline, so no stage waits"
    waits = f"{bubble_share(task, layout, settings):.1%}"
    layers = _listed(sorted({len(chunk) for chunk in layout.chunks(task.model.num_hidden_layers)}))
    return f"{batch}; pp {layout.pp}, stages of {layers} layers, idle for {waits} of the work"


def _experts(task: Task, layout: TrainLayout, experts: int) -> str:
    if layout.ep * layout.etp == 1:
        return f"ep 1: each rank has all {experts} experts of a layer; no tokens are exchanged"
    cut = f", each split over {layout.etp}" if layout.etp > 1 else ""
    where = _where(task, layout.ep * layout.etp)
    held = experts // layout.ep
    return (
        f"ep {layout.ep}: each rank has {held} experts of a layer{cut}; tokens are exchanged "
        f"{where}"
    )


def _activations(task: Task, proposal: Proposal) -> str:
    layout, settings = proposal.candidate.training, proposal.fit.settings
    kept = max(activations_of(task, layout, replace(settings, recomputes=False)).values())
    if not settings.recomputes:
        return f"no recompute: activations take about {memory_text(kept)} and fit"
    again = max(activations_of(task, layout, settings).values())
    less = f"{memory_text(again)} instead of {memory_text(kept)}"
    return f"full recompute: activations take about {less}, for one more forward pass"


def _offloads(task: Task, fit: Fit) -> str:
    names = {"reference": "teacher"} if task.teacher else {}
    leaving = [f"the {names.get(part, part)}" for part in PARTS if part in fit.settings.offloads]
    if not leaving:
        return "only gradients leave the device; the rest fits"
    seconds, host = f"{fit.seconds['copies']:.1f} s", memory_text(fit.host_bytes)
    leave = "leave" if len(leaving) > 1 or "training weights" in fit.settings.offloads else "leaves"
    return f"{_listed(leaving)} {leave} the device: {seconds} of copies per step, {host} on a host"


def _rollout(task: Task, proposal: Proposal) -> str:
    layout, fit = proposal.candidate.rollout, proposal.fit
    of_replica = task.sequences_of(layout)
    waves = -(-of_replica // fit.settings.at_a_time)
    whole = ", experts whole," if layout.ep > 1 else ""
    where = f" {_where(task, layout.tp)}" if layout.tp > 1 else ""
    return (
        f"rollout tp {layout.tp}{where}{whole} has KV cache for {fit.kv_sequences:,} sequences of "
        f"{task.longest:,} tokens: the {of_replica} of a replica in {waves} wave"
        f"{'s' if waves > 1 else ''} of {fit.settings.at_a_time}"
    )


def _reshard(proposal: Proposal) -> str:
    moved = proposal.moved
    if moved is None:
        text = "not planned, because it takes minutes; assumed to be the longest planned one"
    elif moved.received == 0:
        text = "every rank has what it needs; no messages"
    else:
        across = f"{moved.across_nodes / moved.received:.0%} of it across nodes"
        text = f"{memory_text(moved.received)} are sent, {across}"
    return f"reshard: {text}"


def _where(task: Task, span: int) -> str:
    return "inside a node" if span <= task.ranks_per_node else "across nodes"


def _listed(values: Sequence[object]) -> str:
    """Join values with commas, and `and` before the last."""
    *others, last = map(str, values)
    return f"{', '.join(others)} and {last}" if others else last
