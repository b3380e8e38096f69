"""Search the samples of runs, a few groups at a time, in the files of the runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindrl.report.run_record import Line
from mindrl.report.run_state import RunState
from mindrl.report.stored_rows import characters_of, searched_texts
from mindrl.report.thumbnails import prompt_key, thumbnails_of

GROUPS = 20
"""Maximum groups per answer; a group is a run's answers to one prompt in one step."""
MOST_CHARACTERS = 2 << 20
"""Maximum characters of the texts in an answer; one group is always complete."""
MOST_LOOKED_AT = 32 << 20
"""Maximum characters of texts that are read for an answer."""


@dataclass(frozen=True, kw_only=True)
class SearchPosition:
    """Position at which a search continues."""

    run: int
    step: int
    group: int


class SampleSearch:
    """Applies the page's filters to samples: newest first; a single prompt from its first sample.

    Raises:
        ValueError: The query has a field of another type.
    """

    def __init__(self, runs: Sequence[RunState], query: Mapping[str, Any]) -> None:
        self.runs = runs
        self.run, self.kind, self.source = (str(query[name]) for name in ("run", "kind", "source"))
        self.ended, self.words = str(query["ended"]), str(query["words"]).lower()
        self.first, self.last = _number(query["from"]), _number(query["to"])
        self.least, self.most = _number(query["least"]), _number(query["most"])
        self.prompt: str | None = query["prompt"]
        self.begin = None if query["at"] is None else SearchPosition(**query["at"])

    def answer(self) -> dict[str, Any]:
        """Return the groups, the number of examined samples, and the position to continue.

        Raises:
            OutputError: A file cannot be read.
        """
        groups: list[list[Line]] = []
        looked, characters, read = 0, 0, 0
        for run, step in self._steps():
            skipped = self._skipped(run, step)
            if read > MOST_LOOKED_AT:
                return self._answer(
                    groups, looked, SearchPosition(run=run, step=step, group=skipped)
                )
            rows = self.runs[run].sample_rows(step, self.kind)
            looked += 0 if skipped else len(rows)
            read += characters_of(rows)
            for at, group in enumerate(self._groups(run, rows)):
                if at < skipped:
                    continue
                if len(groups) == GROUPS or (groups and characters > MOST_CHARACTERS):
                    # A step is counted with the first of its groups.
                    looked -= 0 if at else len(rows)
                    return self._answer(
                        groups, looked, SearchPosition(run=run, step=step, group=at)
                    )
                groups.append(group)
                characters += characters_of(group)
        return self._answer(groups, looked, None)

    def _steps(self) -> Iterator[tuple[int, int]]:
        """Yield the runs and steps that remain to be searched."""
        is_reached, turned = self.begin is None, -1 if self.prompt is None else 1
        for run in range(len(self.runs))[::turned]:
            if self.run not in ("", self.runs[run].name):
                continue
            for step in self.runs[run].samples.steps[::turned]:
                is_reached |= self.begin is not None and (run, step) == (
                    self.begin.run,
                    self.begin.step,
                )
                if is_reached and _is_between(step, self.first, self.last):
                    yield run, step

    def _skipped(self, run: int, step: int) -> int:
        begin = self.begin
        return begin.group if begin and (run, step) == (begin.run, begin.step) else 0

    def _groups(self, run: int, rows: Sequence[Line]) -> list[list[Line]]:
        groups: dict[tuple[str, str], list[Line]] = {}
        for row in filter(self._fits, rows):
            named = {**row, "run": self.runs[run].name}
            groups.setdefault((row["kind"], prompt_key(row)), []).append(named)
        found = [*groups.values()]
        return found[::-1] if self.prompt is None else found

    def _answer(
        self, groups: list[list[Line]], looked: int, place: SearchPosition | None
    ) -> dict[str, Any]:
        thumbnails: dict[str, str] = {}
        for run in self.runs:
            own = (row for rows in groups for row in rows if row["run"] == run.name)
            thumbnails |= thumbnails_of(run.folder, own)
        return {
            "groups": groups,
            "looked": looked,
            "next": None if place is None else vars(place),
            "thumbnails": thumbnails,
        }

    def _fits(self, row: Line) -> bool:
        return (
            self.source in ("", row.get("data_source"))
            and _is_between(row["reward"], self.least, self.most)
            and self.ended in ("", "ended" if row["finished"] else "cut off")
            and any(self.words in text.lower() for text in searched_texts(row))
            and self.prompt in (None, prompt_key(row))
        )


def _number(text: object) -> float | None:
    return None if text == "" else float(str(text))


def _is_between(value: float | None, low: float | None, high: float | None) -> bool:
    if value is None:
        return low is None and high is None
    return (low is None or value >= low) and (high is None or value <= high)
