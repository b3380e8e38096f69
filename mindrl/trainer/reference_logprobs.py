"""Log-probs of answers under a reference that never changes, computed once and kept in a file.

Shapes: B sequences, T positions, N answers of the file.
"""

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from mindrl.batch.sequences import Sequences
from mindrl.checkpoint.fixed_models import fingerprint
from mindrl.config.run import RunConfig
from mindrl.errors import DataError
from mindrl.observability.output_files import output_errors, replace_file

_KEY = "preference_config.reference_file"
_DELETE = "delete it to compute the log-probs again, or name another file"
_SAVE_SECONDS = 60.0
"""Seconds between two writes of the file: a kill loses no more work, and one batch."""


class ReferenceLogprobs:
    """Sums of the log-probs of answers, by the tokens of their sequences."""

    def __init__(self, config: RunConfig, path: Path, read: Callable[[Sequences], Tensor]) -> None:
        """Read the file, if there is one; `read` computes the sums of a batch, float64 [B].

        Raises:
            DataError: The file is damaged, or has log-probs of another model or precision.
            OutputError: Its folder cannot be created.
        """
        self.path, self.read = path, read
        model = fingerprint(Path(config.model_path("ref")))
        self.model = f"{model} in {'bf16' if config.megatron_training.bf16 else 'float32'}"
        self.sums: dict[bytes, float] = {}
        self.stored = 0
        """Number of sums in the file."""
        with output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._load()

    def complete(
        self, batches: Iterable[Sequences], check_interrupt: Callable[[], None] = lambda: None
    ) -> int:
        """Compute the sums that are missing, and write the file; return their number.

        `check_interrupt` is called before each batch, and may raise. The file is also written
        meanwhile, and if an error ends the work; the next call computes only what it lacks.
        """
        before, saved_at = len(self.sums), monotonic()
        try:
            for batch in batches:
                check_interrupt()
                digests = digests_of(batch)
                if all(digest in self.sums for digest in digests):
                    continue
                for digest, found in zip(digests, self.read(batch).tolist(), strict=True):
                    self.sums.setdefault(digest, found)
                if monotonic() - saved_at >= _SAVE_SECONDS:
                    self._save()
                    saved_at = monotonic()
        finally:
            self._save()
        return len(self.sums) - before

    def of(self, batch: Sequences) -> Tensor:
        """Return the sums of a batch, float64 [B]; computed if the file lacks one of them."""
        found = [self.sums.get(digest) for digest in digests_of(batch)]
        if any(each is None for each in found):
            return self.read(batch)
        return torch.tensor(found, dtype=torch.float64)

    def _save(self) -> None:
        """Write the file, if it lacks sums."""
        if len(self.sums) == self.stored:
            return
        digests_NX = np.frombuffer(b"".join(self.sums), dtype=np.uint8).reshape(-1, 16)
        sums_N = np.array([*self.sums.values()], dtype=np.float64)
        file = io.BytesIO()
        np.savez(file, model=np.array(self.model), digests=digests_NX, sums=sums_N)
        replace_file(self.path, file.getvalue())
        self.stored = len(self.sums)

    def _load(self) -> None:
        try:
            with np.load(self.path, allow_pickle=False) as file:
                stored: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
            model, digests_NX, sums_N = (stored[name] for name in ("model", "digests", "sums"))
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise DataError(
                f"{_KEY}={self.path} is not a whole file of log-probs; {_DELETE}"
            ) from error
        if (theirs := str(model)) != self.model:
            raise DataError(
                f"{_KEY}={self.path} has log-probs of the model {theirs}; this run's reference is "
                f"{self.model}: {_DELETE}"
            )
        digests = (row.tobytes() for row in digests_NX)
        self.sums = dict(zip(digests, sums_N.tolist(), strict=True))
        self.stored = len(self.sums)


def digests_of(batch: Sequences) -> list[bytes]:
    """Return XXH3 of the tokens, the places of the answer and the pictures of each sequence."""
    found = []
    columns = (batch.tokens_BT, batch.response_mask_BT, batch.lengths_B.tolist(), batch.images())
    for tokens_T, mask_T, length, images in zip(*columns, strict=True):
        answer = mask_T[:length].numpy().tobytes()
        pictures = b"".join(number.to_bytes(8, "little") for number, _ in images)
        parts = tokens_T[:length].numpy().tobytes() + answer + pictures
        found.append(xxhash.xxh3_128(parts).digest())
    return found
