"""Records: what a rollout job has drawn, a file for each part of a step."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindrl.errors import SpoolError
from mindrl.spool.files import forget_building, remove, sealed, unsealed, write_new

_NAME = re.compile(r"step-(\d{8})\.part-(\d{4})")


@dataclass(frozen=True, order=True)
class Place:
    """Where a record belongs."""

    step: int
    part: int
    """Of its step, from 0."""

    def __str__(self) -> str:
        """Name its file."""
        return f"step-{self.step:08}.part-{self.part:04}"


@dataclass(frozen=True, kw_only=True)
class Record:
    """A part of a step."""

    place: Place
    weights: str
    """Which weights have drawn it: the name of their folder."""
    ids: tuple[tuple[int, int], ...]
    """The responses in it: the number of each prompt, and of its sample."""
    content: bytes
    gap: Mapping[str, float] = field(default_factory=dict)
    """The log-prob gap of the rollout job's engines behind the load of these weights, as metrics;
    empty where it was not measured."""


@dataclass(frozen=True)
class Records:
    """The folder of these files."""

    root: Path

    @property
    def damaged(self) -> Path:
        """Where those lie that must not be trained on."""
        return self.root.with_name("damaged")

    def put(self, record: Record) -> bool:
        """Write a record; says False, and changes nothing, where its place has one.

        Raises:
            OSError: It cannot be written; then nothing of it is there.
        """
        known = {
            "weights": record.weights,
            "ids": record.ids,
            "place": str(record.place),
            "gap": dict(record.gap),
        }
        line = json.dumps(known).encode("ascii") + b"\n"
        return write_new(self.root / str(record.place), sealed(line + record.content))

    def read(self, place: Place) -> Record:
        """Read a record.

        Raises:
            SpoolError: It is damaged, or another place's.
            OSError: It is not there, or cannot be read.
        """
        path = self.root / str(place)
        line, _, content = unsealed(path).partition(b"\n")
        known: Mapping[str, Any] = json.loads(line)
        if known["place"] != str(place):
            raise SpoolError(f"{path} is the record of {known['place']}")
        ids = tuple((uid, sample) for uid, sample in known["ids"])
        return Record(
            place=place,
            weights=known["weights"],
            ids=ids,
            content=content,
            gap=known.get("gap", {}),
        )

    def set_aside(self, place: Place) -> Path:
        """Put a record where nobody trains on it, so that it is drawn again; returns where."""
        self.damaged.mkdir(exist_ok=True)
        count = len([*self.damaged.glob(f"{place}*")])
        aside = self.damaged / f"{place}.{count}"
        (self.root / str(place)).rename(aside)
        return aside

    def places(self) -> list[Place]:
        """Return the places that have a record, in order."""
        found = (_NAME.fullmatch(path.name) for path in self.root.iterdir())
        return sorted(Place(int(each[1]), int(each[2])) for each in found if each)

    def nbytes(self) -> int:
        """Count the bytes of all records that are there."""
        total = 0
        for place in self.places():
            try:
                total += (self.root / str(place)).stat().st_size
            except FileNotFoundError:
                continue
        return total

    def forget(self, step: int) -> None:
        """Remove the records up to a step, which a checkpoint holds, and what was never whole."""
        forget_building(self.root)
        for place in self.places():
            if place.step <= step:
                remove(self.root / str(place))
