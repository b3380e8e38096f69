"""Fields to read from a row besides prompt and answer."""

import math
from collections.abc import Mapping, Sequence
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

    def chosen(self, path: str, rows: Sequence[Row]) -> dict[int, Row]:
        """Return the rows with a pass rate within the bounds, by row index.

        Raises:
            DataError: No row is left, or a row has no pass rate.
        """
        column, (low, high) = self.pass_rate_column, self.pass_rates
        if column is None:
            return dict(enumerate(rows))
        rates = [_number(row, column, "data_config.pass_rate_column") for row in rows]
        chosen = {at: rows[at] for at, rate in enumerate(rates) if low <= rate <= high}
        if not chosen:
            raise DataError(
                f"data file {path}: data_config.pass_rate_low={low:g} and "
                f"data_config.pass_rate_high={high:g} keep none of {len(rows)} rows; "
                f"{column!r} ranges from {min(rates):g} to {max(rates):g}"
            )
        return chosen

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
