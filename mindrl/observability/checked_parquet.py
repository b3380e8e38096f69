"""Parquet files that hold their own checksum, so that a flipped bit is never read as data."""

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

_NAME = b"mindrl.checksum"
_BLANK = b"0" * 32
"""Stands for the checksum while it is computed: XXH3 of 128 bits, in hexadecimal digits."""
_VALUE = len(_NAME) + 2
"""Bytes from the name to the value in the file's footer: the field of the value and its length."""
_UNCHECKED_KEYS = frozenset({b"ARROW:schema", b"mindrl.scores"})
"""Metadata of the files that earlier versions wrote, which have no checksum."""


def checked_parquet(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file, with their checksum in the metadata."""
    output = pa.BufferOutputStream()
    with pq.ParquetWriter(output, table.schema) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_NAME: _BLANK})
    content = bytes(output.getvalue())
    start = content.rindex(_NAME) + _VALUE
    checksum = xxhash.xxh3_128_hexdigest(content).encode("ascii")
    return content[:start] + checksum + content[start + len(_BLANK) :]


def read_checked_parquet(content: bytes) -> pa.Table:
    """Return the table in the bytes of a Parquet file.

    Raises:
        ValueError: The bytes differ from what was written, or they are no Parquet file.
        OSError: Part of the file is missing.
    """
    if (start := content.rfind(_NAME) + _VALUE) >= _VALUE:
        stop = start + len(_BLANK)
        found = xxhash.xxh3_128_hexdigest(content[:start] + _BLANK + content[stop:])
        if found.encode("ascii") != content[start:stop]:
            raise ValueError("it is damaged: its checksum is not that of its content")
    file = pq.ParquetFile(pa.BufferReader(content))
    if start < _VALUE and not {*(file.metadata.metadata or ())} <= _UNCHECKED_KEYS:
        # The name of the checksum itself is damaged.
        raise ValueError("it is damaged: its metadata has an unknown key")
    return file.read()
