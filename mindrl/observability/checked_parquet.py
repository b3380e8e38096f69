"""Parquet files that contain their own checksum, so that a flipped bit is never read as data."""

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

_NAME = b"mindrl.checksum"
_BLANK = b"0" * 32
"""Placeholder while the checksum is computed: XXH3 of 128 bits, in hexadecimal digits."""
_VALUE = len(_NAME) + 2
"""Bytes from the name to the value in the file's footer: the value's field and length."""
_UNCHECKED_KEYS = frozenset({b"ARROW:schema", b"mindrl.scores"})
"""Metadata keys of files without a checksum, written by earlier versions."""


def checked_parquet(table: pa.Table) -> bytes:
    """Return a table as the bytes of a Parquet file with a checksum in the metadata."""
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
        ValueError: The bytes do not match their checksum, or they are not a Parquet file.
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
