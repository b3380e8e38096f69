"""The figures of a memory plan as tables for a terminal."""

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from mindrl.memory.regions import Region
from mindrl.observability.units import memory_text, unit_of
from mindrl.preflight.memory_figures import MemoryFigures


def print_memory(figures: MemoryFigures, console: Console) -> None:
    """Print what lies on the fullest device phase by phase, and what follows from it."""
    size, unit = unit_of(figures.peak_bytes)
    console.print(f"on the device of rank {figures.peak_rank}, in {unit}\n", highlight=False)
    console.print(_moments(figures, size))
    console.print()
    console.print(_facts(figures, size, unit))
    if figures.advice:
        console.print("\nwhat one key would make of the peak")
        console.print(_advice(figures, size, unit))
    console.print(
        "\nActivations are estimated, for micro-batches of the longest sequences; all else is "
        "exact in a run whose optimizer has made its first step.",
        highlight=False,
    )


def _moments(figures: MemoryFigures, size: int) -> Table:
    """Lay the moments out side by side, the regions one below the other."""
    table = Table(box=None, header_style="", pad_edge=False)
    table.add_column(no_wrap=True)
    for moment in figures.moments:
        table.add_column(moment.label.replace("_", "\n"), justify="right", no_wrap=True)
    held = {name for moment in figures.moments for name in moment.region_bytes}
    for region in Region:
        if region.value in held:
            sizes = (moment.region_bytes.get(region.value) for moment in figures.moments)
            table.add_row(region.value.replace("_", " "), *(_cell(each, size) for each in sizes))
    totals = (moment.total_bytes for moment in figures.moments)
    table.add_row("total", *(_cell(each, size) for each in totals), style="bold")
    estimates = (moment.activations_estimate_bytes for moment in figures.moments)
    table.add_row("activations, estimated", *(_cell(each, size) for each in estimates))
    return table


def _cell(nbytes: int | None, size: int) -> str:
    return "" if nbytes is None else f"{nbytes / size:,.2f}"


def _facts(figures: MemoryFigures, size: int, unit: str) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in _fact_rows(figures, size, unit):
        table.add_row(name, text)
    return table


def _fact_rows(figures: MemoryFigures, size: int, unit: str) -> Iterator[tuple[str, str]]:
    def spell(nbytes: int) -> str:
        return f"{nbytes / size:,.2f} {unit}"

    yield "peak", f"{spell(figures.peak_bytes)}, in {figures.peak_moment.replace('_', ' ')}"
    ratio = figures.peak_bytes / figures.need_bytes
    yield (
        "largest need of a phase",
        f"{spell(figures.need_bytes)}; the peak is {ratio:.2f} times it",
    )
    if figures.capacity_bytes is None:
        yield "device", "capacity not known: say --device-memory-gib N"
    else:
        verdict = "fits" if figures.fits else "DOES NOT FIT"
        yield "device", f"{spell(figures.capacity_bytes)}: {verdict}{_tight(figures)}"
    yield "KV cache", _kv_cache(figures, spell(figures.kv_cache_bytes or 0))
    yield "host, of one worker", spell(figures.host_bytes)
    yield (
        "copied to the host, a step",
        _copied(spell(figures.copied_to_host_bytes), figures.copied_to_host),
    )
    yield (
        "copied to the device, a step",
        _copied(spell(figures.copied_to_device_bytes), figures.copied_to_device),
    )


def _tight(figures: MemoryFigures) -> str:
    """Warn where activations may not fit any more."""
    estimates = (moment.activations_estimate_bytes or 0 for moment in figures.moments)
    most = max(
        moment.total_bytes + estimate
        for moment, estimate in zip(figures.moments, estimates, strict=True)
    )
    if not figures.fits or figures.capacity_bytes is None or most <= figures.capacity_bytes:
        return ""
    return f", but with the estimated activations it takes {memory_text(most)}"


def _kv_cache(figures: MemoryFigures, spelled: str) -> str:
    if figures.kv_cache_bytes is None:
        return "what is left of the device; not counted above"
    return f"{spelled}, room for {figures.kv_cache_tokens:,} tokens"


def _copied(spelled: str, regions: list[str]) -> str:
    names = ", ".join(name.replace("_", " ") for name in regions)
    return f"{spelled}: {names}" if names else "nothing"


def _advice(figures: MemoryFigures, size: int, unit: str) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for advice in figures.advice:
        less = f"{advice.saved_bytes / size:,.2f} {unit} less"
        table.add_row(advice.setting, f"{advice.peak_bytes / size:,.2f} {unit}", less)
    return table
