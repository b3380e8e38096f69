"""All numbers and samples of runs as tables."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mindrl.observability.output_files import output_errors, replace_file
from mindrl.report.run_record import read_run, step_lines
from mindrl.report.sample_index import sample_files


def write_tables(folder: Path, runs: Sequence[Path]) -> list[Path]:
    """Write `metrics.csv` and `samples.parquet`; return their paths.

    Raises:
        OutputError: A folder is not a run's, or a file cannot be read or written.
    """
    # Both tables name a run by the same path.
    runs = [run.resolve() for run in runs]
    numbers, samples = folder / "metrics.csv", folder / "samples.parquet"
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("run", "step", "name", "value"))
    for run in map(read_run, runs):
        for row in run.metrics:
            pairs = ((name, value) for name, value in row.items() if name != "step")
            writer.writerows((run.folder, row["step"], name, value) for name, value in pairs)
    replace_file(numbers, text.getvalue().encode())
    content = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([*_samples(runs)], schema=_SCHEMA), content)
    replace_file(samples, memoryview(content.getvalue()))
    return [numbers, samples]


_SCHEMA = pa.schema(
    {
        "run": pa.string(),
        "kind": pa.string(),
        "step": pa.int64(),
        "prompt": pa.string(),
        "response": pa.string(),
        "reference": pa.string(),
        "reward": pa.float64(),
        "parts": pa.string(),
        "finished": pa.bool_(),
        "response_tokens": pa.int64(),
        "data_source": pa.string(),
    }
)


def _samples(runs: Sequence[Path]) -> Iterator[dict[str, object]]:
    for run in runs:
        for kind, path in sample_files(run).items():
            for row in step_lines(path):
                yield {**row, "run": str(run), "kind": kind, "parts": json.dumps(row["parts"])}
