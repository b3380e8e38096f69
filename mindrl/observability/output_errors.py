"""One wording for every file that cannot be written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mindrl.errors import OutputError


@contextmanager
def output_errors(path: Path, need: str = "") -> Iterator[None]:
    """Turn an OSError of the body into an OutputError that names the path and the need.

    Raises:
        OutputError: if the body raised an OSError.
    """
    try:
        yield
    except OSError as error:
        message = f"{path} cannot be written: {error.strerror or error}"
        raise OutputError(f"{message}; {need}" if need else message) from error
