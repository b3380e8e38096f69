"""Data that a page shows of a run, updated as its folder grows."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from mindrl.observability.line_tail import LineTail
from mindrl.observability.output_files import step_record
from mindrl.report.advice import Adviser
from mindrl.report.config_text import flat
from mindrl.report.curves import Curves
from mindrl.report.planned import PlannedNumbers
from mindrl.report.run_record import Line, check_run_folder, line_record, read_complete, trace_names
from mindrl.report.sample_index import SampleIndex
from mindrl.report.stored_rows import Pieces
from mindrl.report.token_texts import token_texts

MOST_MOMENTS = 4000
"""Maximum moments of the memory timeline, over all workers and steps."""


class RunState:
    """Holds the data that a page shows of a run except its samples; reads what is new on request.

    Raises:
        OutputError: The folder is not a run's.
    """

    def __init__(self, folder: Path) -> None:
        check_run_folder(folder)
        self.folder = folder.resolve()
        self.name = "/".join(self.folder.parts[-2:])
        self.generation = 0
        """Number of times that files were replaced and read again."""
        self._begin({})

    def _begin(self, plan: Line) -> None:
        self.position = 0
        """Increases with each update; changed data has the position of its update."""
        self.config: Line = {}
        self.samples = SampleIndex(self.folder)
        self.curves, self.adviser = Curves(), Adviser()
        self.plan, self.planned = plan, PlannedNumbers(plan)
        self.last_step = 0
        self._files = {
            name: _AtomicFile(self.folder / path, load)
            for name, path, load in (
                ("config", ".hydra/config.yaml", yaml.safe_load),
                ("overrides", ".hydra/overrides.yaml", yaml.safe_load),
                ("summary", "summary.json", json.loads),
                ("plan", "plan.json", json.loads),
            )
        }
        self._metrics, self._faults, self._memory = (
            LineTail(self.folder / f"{name}.jsonl") for name in ("metrics", "faults", "memory")
        )
        self._fault_rows: list[Line] = []
        self._moments: deque[tuple[int, Line]] = deque(maxlen=MOST_MOMENTS)
        self._parts: dict[str, tuple[int, Any]] = {}
        self.__dict__.pop("pieces", None)

    @cached_property
    def pieces(self) -> Pieces | None:
        """Returns the text of each token; None without a tokenizer on this machine."""
        return token_texts(self.folder, self.config)

    def update(self) -> None:
        """Read what is new in the folder; everything if a file was replaced.

        Raises:
            OutputError: A file cannot be read.
        """
        plan = self._files["plan"].read() or {}
        if plan.get("predicted") != self.plan.get("predicted") or self._is_restarted():
            self.generation += 1
            self._begin(plan)
        self.plan = plan
        self.position += 1
        self.config = self._files["config"].read() or {}
        for row in _records(self._metrics):
            self.last_step = max(self.last_step, row["step"])
            self.curves.add(row, self.position)
            self.planned.add(row)
            self.adviser.observe(row)
        self._fault_rows.extend(_records(self._faults))
        self._moments.extend((self.position, row) for row in _records(self._memory, line_record))
        self.samples.update()
        for name, value in self._found():
            if name not in self._parts or self._parts[name][1] != value:
                self._parts[name] = self.position, value

    def since(self, position: int) -> dict[str, Any]:
        """Return what has changed above a position, by the names that the page uses."""
        changed = {name: value for name, (at, value) in self._parts.items() if at > position}
        if curves := {name: asdict(curve) for name, curve in self.curves.since(position)}:
            changed["curves"] = curves
        if moments := [row for at, row in self._moments if at > position]:
            changed["memory"] = {"kept": len(self._moments), "rows": moments}
        return changed

    def sample_rows(self, step: int, kind: str = "") -> list[Line]:
        """Read the samples of a step, or those of one kind.

        Raises:
            OutputError: A file cannot be read.
        """
        stored = self.samples.stored_rows(step, self.pieces, kind)
        return [*self.samples.line_rows(step, kind), *stored]

    def _is_restarted(self) -> bool:
        tails = self._metrics, self._faults, self._memory
        return any(tail.is_restarted() for tail in tails) or self.samples.is_restarted()

    def _found(self) -> Iterator[tuple[str, Any]]:
        summary, config = self._files["summary"].read(), self.config
        yield "name", self.name
        yield "folder", str(self.folder)
        yield "status", summary["status"] if summary else "no recorded end"
        yield "step", self.last_step
        yield "steps", config.get("megatron_training", {}).get("train_iters")
        yield "summary", summary
        yield "overrides", tuple(self._files["overrides"].read() or ())
        yield "config", dict(flat(config))
        yield "numbers", self.plan.get("numbers", {})
        yield "planned", [asdict(each) for each in self.planned.found()]
        yield "advice", [asdict(each) for each in self.adviser.given.values()]
        yield "faults", [*self._fault_rows]
        yield "traces", trace_names(self.folder)
        yield "samples_total", self.samples.total
        yield "sample_kinds", self.samples.kinds
        yield "sample_sources", [*self.samples.sources]
        yield "has_tokens", bool(self.samples.stored.counts) and self.pieces is not None


class _AtomicFile:
    """A small file that is written atomically, and read again if it has changed."""

    def __init__(self, path: Path, load: Callable[[str], Any]) -> None:
        self.path, self.load = path, load
        self.seen: tuple[int, int, int] | None = None
        self.value: Any = None

    def read(self) -> Any:
        """Return its content; None if it is missing or incomplete."""
        try:
            found = self.path.stat()
        except OSError:
            self.seen = self.value = None
            return None
        now = found.st_ino, found.st_size, found.st_mtime_ns
        if now != self.seen:
            self.seen, self.value = now, read_complete(self.path, self.load)
        return self.value


def _records(tail: LineTail, read: Callable[[bytes], Line | None] = step_record) -> Iterator[Line]:
    """Yield the new records of a file, as `read` returns them; damaged lines are left out."""
    return (record for _, line in tail.lines() if (record := read(line)) is not None)
