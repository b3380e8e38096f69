"""Files of the memory timeline: data, and a chart of stacked regions over the moments.

Moments are equally wide: a move takes milliseconds and a phase minutes, but both matter equally.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, cycle, groupby, islice
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mindrl.observability.output_files import JsonLinesFile, output_errors
from mindrl.observability.timeline import MeasuredSnapshot, Timelines

COLOURS = {
    "actor_weights": "#1f5a96",
    "actor_gradients": "#5b9bd5",
    "actor_optimizer": "#a9cdee",
    "critic_weights": "#b3541e",
    "critic_gradients": "#ee8f4a",
    "critic_optimizer": "#f8c9a0",
    "reference_weights": "#7a5ba6",
    "reward_weights": "#b0447f",
    "teacher_weights": "#c9a227",
    "rollout_weights": "#2e7d4f",
    "kv_cache": "#8fcf9f",
    "staging": "#4d4d4d",
}
"""Colours of regions, from the bottom to the top: one hue for each role."""
_OTHER_COLOURS = ("#c9b458", "#7f7f7f", "#17a2a2", "#bcbd22")
_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_INCHES_A_MOMENT, _LEAST_INCHES, _PANEL_INCHES = 0.3, 6.0, 2.4
_LABELS_INCHES, _LEGEND_INCHES = 1.5, 2.6
_NAME_INCHES = 0.55
_HEADROOM = 1.08
_MOST_PANELS = 8
"""Maximum number of workers drawn; the data has all."""


def write_timeline(folder: Path, workers: Timelines, *, capacity_bytes: int | None) -> None:
    """Append to `memory.jsonl`, and write `memory.png`.

    The capacity of a device is drawn as a line unless it is None. The picture shows the first
    workers in one panel each, all with the same phases; it needs no display.

    Raises:
        OutputError: A file cannot be written.
    """
    data = JsonLinesFile(folder / "memory.jsonl")
    for worker, moments in workers.items():
        records = enumerate(map(vars, moments))
        data.append(*({"worker": worker, "index": index, **each} for index, each in records))
    data.close()
    _draw(folder / "memory.png", workers, capacity_bytes)


def _draw(path: Path, workers: Timelines, capacity_bytes: int | None) -> None:
    workers = dict(islice(workers.items(), _MOST_PANELS))
    longest = max(workers.values(), key=len)
    width = max(_LEAST_INCHES, len(longest) * _INCHES_A_MOMENT) + _LEGEND_INCHES
    height = len(workers) * _PANEL_INCHES + _LABELS_INCHES
    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    panels = figure.subplots(len(workers), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    everything = list(chain.from_iterable(workers.values()))
    largest = max(capacity_bytes or 0, *(moment.total_bytes for moment in everything))
    size, unit = next((each for each in _UNITS if largest >= each[0]), _UNITS[-1])
    regions = _regions(everything)
    for panel, (worker, moments) in zip(panels, workers.items(), strict=True):
        _draw_worker(panel, moments, regions, size)
        if capacity_bytes is not None:
            line = {"color": "#c00000", "linewidth": 1.2, "linestyle": "--"}
            panel.axhline(capacity_bytes / size, label="capacity", **line)
        panel.set_ylabel(f"{worker}\n{unit}", fontsize=9)
    for panel, moments in zip(panels, workers.values(), strict=True):
        _draw_phases(panel, moments, named=panel is panels[0])
    _name_moments(panels[-1], longest)
    # In the order of the stack, from top to bottom.
    handles, labels = (each[::-1] for each in panels[0].get_legend_handles_labels())
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
    figure.suptitle("device memory at each moment", fontsize=11, x=0.02, ha="left")
    with output_errors(path):
        figure.savefig(path, format="png")


def _draw_worker(
    panel: Axes, moments: Sequence[MeasuredSnapshot], regions: Mapping[str, str], size: int
) -> None:
    places = range(len(moments))
    floor = [0.0] * len(moments)
    for region, colour in regions.items():
        heights = [moment.region_bytes.get(region, 0) / size for moment in moments]
        label = region.replace("_", " ")
        panel.bar(places, heights, width=1.0, bottom=floor, color=colour, label=label)
        floor = [low + high for low, high in zip(floor, heights, strict=True)]
    predicted = [moment.predicted_bytes for moment in moments]
    allocated = [moment.allocated_bytes for moment in moments]
    for marked, kind, length, label in (
        (predicted, "k_", 9, "predicted"),
        (allocated, "kx", 4, "allocator's peak"),
    ):
        known = [(at, nbytes / size) for at, nbytes in enumerate(marked) if nbytes is not None]
        if known:
            panel.plot(*zip(*known, strict=True), kind, markersize=length, label=label)


def _draw_phases(panel: Axes, moments: Sequence[MeasuredSnapshot], *, named: bool) -> None:
    """Mark the start of each phase and, above the first panel, name them."""
    inches = max(_INCHES_A_MOMENT, _LEAST_INCHES / len(moments))
    panel.set_xlim(-0.5, len(moments) - 0.5)
    panel.set_ylim(0, panel.dataLim.y1 * _HEADROOM)
    panel.tick_params(labelsize=8)
    start = 0
    for index, (phase, run) in enumerate(groupby(moments, key=lambda moment: moment.phase)):
        stop = start + len(list(run))
        if index % 2:
            panel.axvspan(start - 0.5, stop - 0.5, color="#000000", alpha=0.05, zorder=0)
        if start:
            panel.axvline(start - 0.5, color="#999999", linewidth=0.6)
        if named:
            is_narrow = (stop - start) * inches < _NAME_INCHES
            panel.text(
                (start + stop - 1) / 2,
                1.02,
                phase.replace("_", " " if is_narrow else "\n"),
                transform=panel.get_xaxis_transform(),
                rotation=90 if is_narrow else 0,
                ha="center",
                va="bottom",
                fontsize=8,
            )
        start = stop


def _name_moments(panel: Axes, moments: Sequence[MeasuredSnapshot]) -> None:
    """Label the moments below the last panel; phases, which take most of the time, in bold."""
    labels = [
        moment.label.replace("bring ", "+ ").replace("release ", "- ").replace("_", " ")
        for moment in moments
    ]
    panel.set_xticks(range(len(moments)), labels, rotation=90, fontsize=7)
    for text, moment in zip(panel.get_xticklabels(), moments, strict=True):
        if moment.label == moment.phase:
            text.set_fontweight("bold")


def _regions(moments: Sequence[MeasuredSnapshot]) -> dict[str, str]:
    """Return the regions with bytes at any moment, and their colours."""
    sizes = chain.from_iterable(moment.region_bytes.items() for moment in moments)
    found = dict.fromkeys(region for region, size in sizes if size)
    known = {region: colour for region, colour in COLOURS.items() if region in found}
    others = [region for region in found if region not in COLOURS]
    return known | dict(zip(others, cycle(_OTHER_COLOURS), strict=False))
