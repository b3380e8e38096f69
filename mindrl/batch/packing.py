"""The form in which batches travel between processes: only what their tensors contain.

A padded tensor of a batch is mostly padding, masks are bytes, and many columns are the same for all
tokens of a sequence. Shapes: B sequences, T positions.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ValueT = TypeVar("ValueT")

_Array = NDArray[Any]
_FITTING = np.iinfo(np.int32)
_DTYPES = (torch.bool, torch.int64, torch.float32)


class Compact:
    """A dataclass of tensors that is pickled in packed form; tensors are equal afterwards.

    A negative zero before or after all other values of a sequence becomes zero.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pack each tensor on the host."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        return _restored, (type(self), {name: packed(each) for name, each in columns.items()})


def _restored(kind: Callable[..., ValueT], columns: dict[str, Any]) -> ValueT:
    return kind(
        **{
            name: column.tensor() if isinstance(column, (PackedRows, PackedValues)) else column
            for name, column in columns.items()
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedValues:
    """Values of one dimension, or of any tensor in one; int64 as int32 if they fit."""

    values: _Array
    """Values; bools are packed, eight to a byte."""
    dtype: str
    """NumPy's name of the tensor's dtype."""
    count: int

    def array(self) -> _Array:
        """Return the values in the tensor's dtype."""
        if self.dtype == "bool":
            return np.unpackbits(self.values, count=self.count).view(np.bool_)
        return self.values.astype(self.dtype, copy=False)

    def tensor(self) -> Tensor:
        """Return the tensor, with memory of its own: Ray's is read-only."""
        return torch.from_numpy(np.array(self.array()))


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedRows:
    """A tensor [B, T]: the values of each row from its first to its last non-zero one."""

    columns: int
    first_B: _Array
    """int32; position of the first value."""
    lengths_B: _Array
    """int32; number of values."""
    values: PackedValues
    """Values of all rows, concatenated."""
    repeated: bool
    """Whether `values` has one value for each row, because all of a row are equal."""
    places: int | None = None
    """T of a tensor [B, T, K] that is packed as [B, T * K]."""

    def tensor(self) -> Tensor:
        """Return the tensor."""
        flat, lengths_B = self.values.array(), self.lengths_B
        if self.repeated:
            flat = np.repeat(flat, lengths_B)
        full_BT = np.zeros((len(lengths_B), self.columns), dtype=flat.dtype)
        end = 0
        pairs = zip(self.first_B.tolist(), lengths_B.tolist(), strict=True)
        for row_T, (first, length) in zip(full_BT, pairs, strict=True):
            row_T[first : first + length] = flat[end : end + length]
            end += length
        if self.places is not None:
            return torch.from_numpy(full_BT.reshape(len(lengths_B), self.places, -1))
        return torch.from_numpy(full_BT)


def packed(column: Any) -> Any:
    """Pack a tensor of the host with one to three dimensions; return others unchanged."""
    if not isinstance(column, Tensor) or column.device.type != "cpu" or column.requires_grad:
        return column
    if column.dtype not in _DTYPES or column.dim() not in (1, 2, 3):
        return column
    array: _Array = column.numpy()
    if array.ndim == 3 and array.size:
        return replace(_rows(array.reshape(len(array), -1)), places=array.shape[1])
    return _values(array) if array.ndim == 1 else _rows(array) if array.ndim == 2 else column


def _values(flat: _Array) -> PackedValues:
    kept, dtype = flat, flat.dtype.name
    if dtype == "bool":
        kept = np.packbits(flat)
    elif dtype == "int64" and _fits(flat):
        kept = flat.astype(np.int32)
    return PackedValues(values=np.ascontiguousarray(kept), dtype=dtype, count=len(flat))


def _fits(flat: _Array) -> bool:
    least, most = flat.min(initial=0), flat.max(initial=0)
    return bool(least >= _FITTING.min and most <= _FITTING.max)


def _rows(full_BT: _Array) -> PackedRows:
    count, columns = full_BT.shape
    first_B, lengths_B = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int32)
    for row, values_T in enumerate(full_BT if columns else ()):
        is_there_T = values_T != 0
        first = int(is_there_T.argmax())
        if is_there_T[first]:
            first_B[row] = first
            lengths_B[row] = columns - first - int(is_there_T[::-1].argmax())
    bounds = zip(full_BT, first_B.tolist(), lengths_B.tolist(), strict=True)
    parts = [values_T[first : first + length] for values_T, first, length in bounds]
    repeated = all(_are_equal(part) for part in parts)
    if repeated:
        flat = np.array([part[0] if len(part) else 0 for part in parts], dtype=full_BT.dtype)
    else:
        flat = np.concatenate(parts)
    return PackedRows(
        columns=columns,
        first_B=first_B,
        lengths_B=lengths_B,
        values=_values(flat),
        repeated=repeated,
    )


def _are_equal(part: _Array) -> bool:
    """Return whether all values are equal; most that are not differ at the ends."""
    return not len(part) or bool(part[0] == part[-1] and (part == part[0]).all())
