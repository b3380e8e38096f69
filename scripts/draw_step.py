"""Draw the stages of a step over its time, from the timeline that a run keeps of it.

    python scripts/draw_step.py outputs/RUN/trace/step-2.json step.png

The first row has what the driver waits for, and one row for each worker the phases of its device,
with the moves of memory between them.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mindrl.observability.timeline_chart import COLOURS

_REGIONS = {
    "rollout": "rollout_weights",
    "ref_log_prob": "reference_weights",
    "reference": "reference_weights",
    "teacher_log_prob": "teacher_weights",
    "teacher": "teacher_weights",
    "values": "critic_weights",
    "critic_forward": "critic_weights",
    "update_critic": "critic_gradients",
    "critic_train": "critic_gradients",
    "update": "actor_weights",
    "train": "actor_weights",
}
"""Region whose colour in `memory.png` a stage of the driver, or a phase in it, gets."""
_OTHER = "reward_weights"
_MOVES = "staging"
_DRIVER = "driver"
_LEAST_SHARE = 0.03
"""Share of the step from which a bar has its name in it."""


class Bar(NamedTuple):
    """Something that took time, in seconds since the step began."""

    row: str
    name: str
    begin: float
    seconds: float


def main() -> int:
    """Read the timeline, and write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("timeline", type=Path, help="trace/step-N.json of a run")
    parser.add_argument("picture", type=Path, help="PNG file to write")
    options = parser.parse_args()
    events = json.loads(options.timeline.read_text(encoding="utf-8"))["traceEvents"]
    bars = [*_bars(events)]
    if not any(bar.row == _DRIVER for bar in bars):
        print(f"error: {options.timeline} has no stages", file=sys.stderr)
        return 1
    _draw(bars).savefig(options.picture, format="png")
    return 0


def _bars(events: Iterable[Mapping[str, Any]]) -> Iterable[Bar]:
    """Yield the driver's stages, and the phases of each worker."""
    events = [*events]
    named = [each for each in events if each["ph"] == "M"]
    processes = {e["pid"]: e["args"]["name"] for e in named if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in named if e["name"] == "thread_name"}
    for event in events:
        if event["ph"] != "X":
            continue
        process, thread = processes[event["pid"]], threads[event["pid"], event["tid"]]
        is_stage = process == _DRIVER and event["name"] != "step" and " " not in event["name"]
        if is_stage or thread == "phase":
            yield Bar(process, event["name"], event["ts"] / 1e6, event["dur"] / 1e6)


def _draw(bars: list[Bar]) -> Figure:
    rows = [*dict.fromkeys(bar.row for bar in bars)]
    # The last phase of a worker lasts until the next step.
    whole = max(bar.begin + bar.seconds for bar in bars if bar.row == _DRIVER)
    figure = Figure(figsize=(12, 1 + 0.7 * len(rows)), layout="constrained", dpi=120)
    axes = figure.subplots()
    for bar in bars:
        _draw_bar(axes, bar, rows.index(bar.row), whole)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlim(0, whole)
    axes.set_xlabel("seconds since the step began; dark grey: memory moves")
    return figure


def _draw_bar(axes: Axes, bar: Bar, row: int, whole: float) -> None:
    region = _MOVES if bar.name.startswith("swap") else _REGIONS.get(bar.name, _OTHER)
    seconds = min(bar.seconds, whole - bar.begin)
    axes.barh(row, seconds, left=bar.begin, height=0.8, color=COLOURS[region], edgecolor="white")
    if seconds > _LEAST_SHARE * whole:
        text = {"color": "white", "fontsize": 8, "ha": "center", "va": "center"}
        axes.text(bar.begin + seconds / 2, row, bar.name.replace("_", "\n"), **text)


if __name__ == "__main__":
    sys.exit(main())
