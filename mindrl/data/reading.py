"""Fields to read from a row besides prompt and answer."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from mindrl.batch.prompts import ChatMessage, PromptRow
from mindrl.config.reward_columns import RewardColumns
from mindrl.data.row_images import KeptImage, RowImages
from mindrl.data.rows import Row, column_of, shown
from mindrl.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Columns of a set in `data_config`; None reads none."""

    first_uid: int = 0
    """Uid of its first row."""
    source: str = ""
    """Source of all its rows, unless a column has it."""
    source_column: str | None = None
    order_column: str | None = None
    pass_rate_column: str | None = None
    pass_rates: tuple[float, float] = (0.0, 1.0)
    """Minimum and maximum of the rows that are kept."""
    rewards: RewardColumns = field(default_factory=RewardColumns)
    images: RowImages | None = None
    """Keeps the pictures of rows, for a model that reads some."""

    def by_form(self, source_column: str | None) -> "Reading":
        """Set the source column of a known row format, unless a source is configured."""
        says = self.source or self.source_column
        return self if says else replace(self, source_column=source_column)

    def source_of(self, row: Row) -> str:
        """Return the `data_source` of a row.

        Raises:
            DataError: Its column has no value.
        """
        if self.source_column is None:
            return self.source
        where, value = column_of(row, self.source_column, "data_config.source_column")
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where} holds {shown(value)}; needed the name of a source, as text")
        return value

    def rank_of(self, row: Row) -> float | None:
        """Return the number that a row is sorted by; None without an order column.

        Raises:
            DataError: Its column has no number.
        """
        if self.order_column is None:
            return None
        return _number(row, self.order_column, "data_config.order_column")

    def row_of(
        self,
        row: Row,
        messages: Sequence[ChatMessage],
        kept: Sequence[KeptImage] = (),
        *,
        is_chat: bool,
    ) -> PromptRow | None:
        """Return the fields of a row that rewards use; None if they use none.

        The bytes of `kept` pictures stay in their files.
        """
        asked = self.rewards
        names = row.values.keys() if asked.names is None else asked.names & row.values.keys()
        if not names and not asked.takes_chat:
            return None
        columns: Mapping[str, Any] = {name: row.values[name] for name in sorted(names)}
        if self.images is not None and kept:
            columns = self.images.in_files(columns, kept)
        return PromptRow(
            columns=columns,
            messages=(*messages,) if asked.takes_chat else (),
            is_chat=is_chat,
        )


@dataclass(kw_only=True)
class ChosenRows:
    """Yields the rows with a pass rate within the bounds, each with its index, while it reads them.

    It keeps no row: the pictures of all rows may not fit into memory.

    Raises:
        DataError: No row is left, or a row has no pass rate or no number to sort it by.
    """

    path: str
    """Paths of the files, for messages."""
    rows: Iterator[Row]
    reading: Reading
    count: int = 0
    """Number of rows so far, with those left out."""
    columns: dict[str, None] = field(default_factory=dict)
    """Columns of all rows so far, in order."""
    places: list[str] = field(default_factory=list)
    """Place of each chosen row, for messages."""
    ranks: dict[int, float | None] = field(default_factory=dict)
    """Number that each chosen row is sorted by, by its index."""

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        column, (low, high) = self.reading.pass_rate_column, self.reading.pass_rates
        least, most = math.inf, -math.inf
        for at, row in enumerate(self.rows):
            self.count += 1
            self.columns |= dict.fromkeys(row.values)
            if column is not None:
                rate = _number(row, column, "data_config.pass_rate_column")
                least, most = min(least, rate), max(most, rate)
                if not low <= rate <= high:
                    continue
            self.places.append(row.place)
            self.ranks[at] = self.reading.rank_of(row)
            yield at, row
        if not self.places:
            raise DataError(
                f"data file {self.path}: data_config.pass_rate_low={low:g} and "
                f"data_config.pass_rate_high={high:g} keep none of {self.count} rows; "
                f"{column!r} ranges from {least:g} to {most:g}"
            )


def _number(row: Row, column: str, field: str) -> float:
    where, value = column_of(row, column, field)
    found = math.nan
    if type(value) in (int, float, str):
        with suppress(ValueError):
            # Values of CSV files are texts.
            found = float(value)
    if not math.isfinite(found):
        raise DataError(f"{where} holds {shown(value)}; needed a number, for {field}")
    return found
