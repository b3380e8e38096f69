"""Copy a data file with an added column: the fraction of a model's answers that are correct."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mindrl.data.rows import read_rows
from mindrl.errors import ConfigError
from mindrl.observability.output_files import json_line, replace_file

_FORMS = (".jsonl", ".parquet")


def check_new_file(data: str, output: str) -> None:
    """Refuse an output file that exists or differs in format from the data.

    Rows are identified by their index in one file, so `data` must be one file.

    Raises:
        ConfigError: Names the requirement.
    """
    suffix = Path(data).suffix.lower()
    if suffix not in _FORMS:
        raise ConfigError(f"--data {data} must be one file that ends in {' or '.join(_FORMS)}")
    if Path(output).suffix.lower() != suffix:
        raise ConfigError(f"--output {output} must end in {suffix}, as --data {data} does")
    if Path(output).exists():
        raise ConfigError(f"--output {output}: file exists already")


def write_pass_rates(data: str, output: str, column: str, rates: Mapping[int, float]) -> None:
    """Write a data file with a column of pass rates, atomically.

    Args:
        data: A `.jsonl` or `.parquet` file.
        output: The new file, of the same format.
        column: Replaced if it exists.
        rates: By row index, from 0; rows without a rate are left out.

    Raises:
        DataError: The file cannot be read.
        OutputError: The new file cannot be written.
    """
    if Path(data).suffix.lower() == ".parquet":
        content = _parquet(data, column, rates)
    else:
        rows = enumerate(read_rows(data))
        lines = (
            json_line({**row.values, column: rates[place]}) for place, row in rows if place in rates
        )
        content = memoryview("".join(lines).encode())
    replace_file(Path(output), content)


def _parquet(data: str, column: str, rates: Mapping[int, float]) -> memoryview:
    table = pq.ParquetFile(data).read().take(sorted(rates))
    if column in table.column_names:
        table = table.drop_columns(column)
    found = pa.array([rates[place] for place in sorted(rates)], pa.float64())
    content = pa.BufferOutputStream()
    pq.write_table(table.append_column(column, found), content)
    return memoryview(content.getvalue())
