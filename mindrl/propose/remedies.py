"""What would help where no layout fits: the nearest miss, more devices, another key."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from mindrl.errors import ConfigError
from mindrl.observability.units import GIB, memory_text
from mindrl.platform.device_models import DEVICE_MODELS
from mindrl.propose.candidates import MOST_DEVICES, Task
from mindrl.propose.search import Proposal, Search, Tell, search

_ENDLESS = 1 << 60


def remedies(task: Task, found: Search, tell: Tell) -> Iterator[str]:
    """Say by how much nothing fits, and what would change that; one line each."""
    name = f"{task.load} on {task.devices} x {task.device.name}"
    if found.nearest is None:
        yield f"{name}: no layout passes the rules of a run"
        return
    candidate, miss = found.nearest
    where = "the host of a node" if miss.of == "host" else f"a device in {miss.moment}"
    training, rollout = candidate.texts
    yield (
        f"{name}: nothing fits; the nearest is {training} -> {rollout}, which needs "
        f"{memory_text(miss.need_bytes)} of {where}, where it may take "
        f"{memory_text(miss.there_bytes)}"
    )
    yield from _more_devices(task, tell)
    for option, changed in _changes(task):
        if _fitting(changed, tell):
            yield f"it fits with {option}"
    if enough := _fitting(replace(task, host_bytes=_ENDLESS), tell):
        yield f"it fits with --host-memory-gib {ceil(enough.fit.host_bytes / GIB)}"


def _more_devices(task: Task, tell: Tell) -> Iterator[str]:
    devices = task.devices * 2
    while devices <= MOST_DEVICES:
        more = replace(task, devices=devices)
        if devices % more.ranks_per_node == 0 and (found := _fitting(more, tell)):
            yield f"it fits with --devices {devices}: {' -> '.join(found.candidate.texts)}"
            return
        devices *= 2
    yield f"doubling the devices does not help, up to {MOST_DEVICES}"


def _changes(task: Task) -> Iterator[tuple[str, Task]]:
    """Return changes of one option each."""
    half = task.response_tokens // 2
    if half:
        yield f"--response-tokens {half}", replace(task, response_tokens=half)
    if task.has_critic:
        yield "--algorithm grpo", replace(task, algorithm="grpo")
    for model in DEVICE_MODELS.values():
        if model.memory_mib > task.device.memory_mib and model.kind == task.device.kind:
            yield f"--device {model.name}", replace(task, device=model)


def _fitting(task: Task, tell: Tell) -> Proposal | None:
    """Return what fits, without a plan of the reshard."""
    try:
        found = search(task, 1, tell, most_pieces=0)
    except ConfigError:
        return None
    return found.proposals[0] if found.proposals else None
