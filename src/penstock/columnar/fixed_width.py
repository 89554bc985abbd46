"""Columns whose values are numbers of up to 64 bits, as numpy sees them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def _stored_dtype(kind: pa.DataType) -> np.dtype[Any]:
    letter = "f" if pa.types.is_floating(kind) else "u" if pa.types.is_unsigned_integer(kind) else "i"
    return np.dtype(f"{letter}{kind.bit_width // 8}")


_INTEGERS: Final = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_FLOATS: Final = [pa.float16(), pa.float32(), pa.float64()]
_TIMES: Final = [pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("us"), pa.duration("us")]
# Older versions of Arrow have no decimals of less than 128 bits.
_SMALL_DECIMALS: Final = [getattr(pa, name)(1) for name in ("decimal32", "decimal64") if hasattr(pa, name)]
FIXED_WIDTH: Final = {kind.id: _stored_dtype(kind) for kind in [*_INTEGERS, *_FLOATS, *_TIMES, *_SMALL_DECIMALS]}
"""By the id of an Arrow type, how its values lie in memory, if they are numbers of up to 64 bits."""


def null_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def fixed_width_values(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """The values buffer as a read-only numpy view. Trap: what stands at a null is arbitrary."""
    return buffer_values(array, 1, dtype, len(array))


def buffer_values(array: pa.Array, number: int, dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
    """Buffer `number` of the array as `count` values from its offset on; zeros where Arrow has left the buffer out."""
    buffer, wide = array.buffers()[number], np.dtype(dtype)
    if len(array) == 0 or buffer is None:
        return np.zeros(count, dtype=wide)
    return np.frombuffer(buffer, dtype=wide, count=count, offset=array.offset * wide.itemsize)
