"""The memory plan as JSON and tables: `mindrl plan memory ...`. Needs no torch."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Column

from mindrl.errors import DeviceMemoryError, ModelError
from mindrl.memory.plan import MemoryPlan
from mindrl.memory.schedule import RECEIVING, SENDING, MoveKind, Phase, Region
from mindrl.observability.terminal import print_rows, say
from mindrl.observability.timeline import MemorySnapshot
from mindrl.observability.units import memory_text, unit_of
from mindrl.platform.garbage import planning
from mindrl.preflight.activation_estimates import activation_estimates
from mindrl.preflight.memory_plan import (
    Advice,
    advice_on,
    memory_plan,
    plan_without_kv_cache,
)
from mindrl.preflight.rollout_memory import rollout_memory_plan
from mindrl.preflight.run_shardings import RunShardings
from mindrl.programs.arguments import Program
from mindrl.programs.exits import FAILED, report
from mindrl.programs.plan_options import add_run_options, answer, chosen_shardings, device_bytes

_EXAMPLE = """\
example:
  mindrl plan memory --config-name grpo_qwen25_7b

Only config.json of each model folder is read. If the folder is missing, the sizes shipped in
configs/models are used, with a note. The exit code is 1 if the run does not fit, 2 if the
configuration is invalid.
"""
_SIDES = {"training": "training devices", "rollout": "rollout devices of a replica"}


@dataclass(frozen=True, kw_only=True)
class PlannedSnapshot(MemorySnapshot):
    """Memory on the fullest device during a phase or the reshard."""

    activations_estimate_bytes: int | None
    """In addition to the regions; None without an estimate."""


@planning()
def _memory(options: argparse.Namespace) -> int:
    asked = chosen_shardings(options)
    config, models = asked.plan.config, asked.ordered
    capacity_bytes = device_bytes(config, options)
    refusal = []
    try:
        plan = memory_plan(models, capacity_bytes)
    except DeviceMemoryError as error:
        plan = plan_without_kv_cache(models, capacity_bytes)
        refusal = [str(error)]
    advice, sides = advice_on(plan, models), [plan]
    if config.starts_engines:
        try:
            sides.append(rollout_memory_plan(models, capacity_bytes))
        except DeviceMemoryError as error:
            refusal.append(str(error))
    figures = _figures(plan, models, advice)
    if len(sides) > 1:
        # Figures of one replica, whose ranks count from 0.
        figures["rollout"] = _figures(sides[1], models, ())
    answer(options, config, figures, lambda: _print(sides, models, advice))
    for side in sides:
        if capacity_bytes is not None and not side.fits:
            needed, there = memory_text(side.needed_bytes), memory_text(capacity_bytes)
            at = spaced(side.peak_instant.label)
            graphs = f" with {memory_text(side.graphs)} for graphs" if side.graphs else ""
            refusal.append(f"{at} needs {needed}{graphs}, but the device has {there}")
    return report(refusal, FAILED) if refusal else 0


def peak_moments(plan: MemoryPlan, models: RunShardings) -> list[PlannedSnapshot]:
    """Return the turning points of the memory on the fullest device: its maxima and minima."""
    estimates = {
        phase: plan.working_bytes(phase, each)
        for phase, each in activation_estimates(models.plan).items()
    }
    return [
        PlannedSnapshot(
            label=at.label,
            phase=at.phase,
            region_bytes=at.region_bytes,
            activations_estimate_bytes=(
                estimates.get(Phase(at.phase)) if at.label == at.phase else None
            ),
        )
        for at in plan.of_rank(plan.peak_rank)
        if at.label in (at.phase, MoveKind.RESHARD.value, RECEIVING, SENDING)
    ]


def kv_cache_tokens(plan: MemoryPlan, models: RunShardings) -> int | None:
    """Return the KV cache capacity in tokens; None if the device's free memory decides it."""
    nbytes, sizes = plan.kv_cache_bytes, models.plan.cache_sizes
    if nbytes is None or not sizes.states:
        return None if nbytes is None else nbytes // sizes.per_token
    # In sequences of the longest length, each with its states.
    longest = models.plan.config.generate_config.max_model_len
    return nbytes // sizes.of_sequence(longest) * longest


def spaced(name: str) -> str:
    """Return the name of a region or a moment with blanks, for display."""
    return name.replace("_", " ")


def _figures(plan: MemoryPlan, models: RunShardings, advice: Sequence[Advice]) -> dict[str, Any]:
    """Return the complete answer; all sizes in bytes."""
    out, back = plan.course.copied_out, plan.course.copied_back
    out_bytes, back_bytes = plan.copied_bytes
    return {
        "ranks": plan.world_size,
        "capacity_bytes": plan.capacity_bytes,
        # Without activations.
        "fits": None if plan.capacity_bytes is None else plan.fits,
        "peak_bytes": plan.peak_bytes,
        "peak_rank": plan.peak_rank,
        "peak_moment": plan.peak_instant.label,
        # Maximum over the phases and the reshard, on that rank.
        "need_bytes": plan.need_bytes(plan.peak_rank),
        "moments": [*map(asdict, peak_moments(plan, models))],
        "peak_bytes_of_ranks": plan.totals.max(axis=0).tolist(),
        "kv_cache_bytes": plan.kv_cache_bytes,
        "kv_cache_tokens": kv_cache_tokens(plan, models),
        # The worker that stores, or copies in one step, most.
        "host_bytes": int(plan.host_bytes.max()),
        "host_route_bytes": 0 if plan.routes is None else int(plan.routes.max()),
        # The most of each device during rollout, and of each worker; in neither value above.
        "picture_bytes": plan.pictures.engine,
        "host_picture_bytes": plan.pictures.host,
        # An estimate, on each device at all times; not in the peak.
        "graph_bytes": plan.graphs,
        "copied_to_host": [region.value for region in out],
        "copied_to_host_bytes": int(out_bytes.max()),
        "copied_to_device": [region.value for region in back],
        "copied_to_device_bytes": int(back_bytes.max()),
        "advice": [*map(asdict, advice)],
    }


def _print(sides: Sequence[MemoryPlan], models: RunShardings, advice: Sequence[Advice]) -> None:
    """Print the tables of all devices; with separate rollout devices, training comes first."""
    for plan in sides:
        if models.plan.config.is_apart:
            begin = "" if plan.side == "training" else "\n"
            say(f"{begin}{_SIDES[plan.side]}")
        _print_side(plan, models, advice if plan is sides[0] else ())
    generate = models.plan.config.generate_config
    if generate.is_served:
        servers = generate.servers_file or ", ".join(generate.servers)
        say(f"\nmemory of {servers}: set where they are started")
    say(
        "\nActivations are estimated for micro-batches of the longest sequences, graphs by layers.",
        "All other values are exact after the first step of the optimizer.",
    )


def _print_side(plan: MemoryPlan, models: RunShardings, advice: Sequence[Advice]) -> None:
    """Print the memory of the fullest device by phase, and the conclusions."""
    moments = peak_moments(plan, models)
    size, unit = unit_of(plan.peak_bytes)
    roles = f" ({', '.join(plan.places[plan.peak_rank])})" if plan.places else ""
    say(f"on the device of rank {plan.peak_rank}{roles}, in {unit}\n")
    titles = ["", *(spaced(moment.label).replace(" ", "\n") for moment in moments)]
    justified = [Column(each, justify="right" if each else "left", no_wrap=True) for each in titles]
    print_rows(_moment_rows(moments, size), *justified)
    say("")
    tight = _tight(plan, moments)
    print_rows(_facts(plan, tight, kv_cache_tokens(plan, models)), Column(no_wrap=True))
    if advice:
        say("\nkeys that lower the peak")
        numbers = (Column(justify="right", no_wrap=True) for _ in range(2))
        print_rows(_advice_rows(advice, size, unit), Column(no_wrap=True), *numbers)


def _moment_rows(moments: Sequence[PlannedSnapshot], size: int) -> Iterator[list[str]]:
    """Yield the rows of the table: one row per region, one column per moment."""
    held = {name for moment in moments for name in moment.region_bytes}
    for name in (region.value for region in Region if region.value in held):
        yield [spaced(name), *(_cell(each.region_bytes.get(name), size) for each in moments)]
    totals = ("total", *(_cell(each.total_bytes, size) for each in moments))
    yield [f"[bold]{text}[/]" for text in totals]
    estimates = (_cell(each.activations_estimate_bytes, size) for each in moments)
    yield ["activations, estimated", *estimates]


def _cell(nbytes: int | None, size: int) -> str:
    return "" if nbytes is None else f"{nbytes / size:,.2f}"


def _advice_rows(advice: Sequence[Advice], size: int, unit: str) -> Iterator[tuple[str, ...]]:
    for each in advice:
        peak, saved = _cell(each.peak_bytes, size), _cell(each.saved_bytes, size)
        yield each.setting, f"{peak} {unit}", f"{saved} {unit} less"


def _facts(plan: MemoryPlan, tight: str, tokens: int | None) -> Iterator[tuple[str, str]]:
    size, unit = unit_of(plan.peak_bytes)

    def spell(nbytes: int) -> str:
        return f"{_cell(nbytes, size)} {unit}"

    yield "peak", f"{spell(plan.peak_bytes)}, in {spaced(plan.peak_instant.label)}"
    need = plan.need_bytes(plan.peak_rank)
    ratio = f"the peak is {plan.peak_bytes / need:.2f} times it"
    yield "largest need of a phase", f"{spell(need)}; {ratio}"
    if plan.capacity_bytes is None:
        yield "device", "unknown capacity: set --device-memory-gib N"
    else:
        verdict = f"fits{tight}" if plan.fits else "DOES NOT FIT"
        yield "device", f"{spell(plan.capacity_bytes)}: {verdict}"
    cache = "the remaining device memory; not counted above"
    if plan.kv_cache_bytes is not None:
        cache = f"{spell(plan.kv_cache_bytes)} for {tokens:,} tokens"
    if plan.side != "training":
        yield "KV cache", cache
    kept = {
        "features of pictures in the engine": plan.pictures.engine,
        "pictures on the host, per worker": plan.pictures.host,
        "graphs, estimated": plan.graphs,
    }
    yield from ((name, f"at most {spell(nbytes)}") for name, nbytes in kept.items() if nbytes)
    if plan.side == "rollout":
        return
    yield "host, per worker", spell(int(plan.host_bytes.max()))
    if plan.routes is not None:
        yield "routes on the host, at most", spell(int(plan.routes.max()))
    out_bytes, back_bytes = plan.copied_bytes
    copies = {
        "host": (plan.course.copied_out, out_bytes),
        "device": (plan.course.copied_back, back_bytes),
    }
    for place, (regions, nbytes) in copies.items():
        names = spaced(", ".join(region.value for region in regions))
        copied = f"{spell(int(nbytes.max()))}: {names}" if regions else "nothing"
        yield f"copied to the {place} per step", copied


def _tight(plan: MemoryPlan, moments: Sequence[PlannedSnapshot]) -> str:
    """Return a warning if the estimated activations may exceed the device; else an empty text."""
    most = max(each.total_bytes + (each.activations_estimate_bytes or 0) for each in moments)
    most += plan.graphs
    if plan.capacity_bytes is None or most <= plan.capacity_bytes:
        return ""
    return f", but needs {memory_text(most)} with the estimated activations"


PROGRAM = Program(
    about="Predict the memory of a run's steps from its configuration: each phase, the peak, and "
    "the keys that would lower it.",
    examples=_EXAMPLE,
    add_options=add_run_options,
    run=_memory,
    bad_input=(ModelError,),
)
