"""Many small DataFrames at the cost of few calls into pandas: cut out of one frame, and joined to one.

A call of pandas costs some ten microseconds for one row and for thousands. A processor gets a frame and returns one for
each key, so these two are most of what the engine itself spends on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import pandas as pd


FrameCut: TypeAlias = "Callable[[pd.DataFrame, int, int, type[pd.RangeIndex]], pd.DataFrame]"

_NUMPY_TYPES: dict[pa.DataType, type[np.generic]] = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float32(): np.float32,
    pa.float64(): np.float64,
    pa.bool_(): np.bool_,
}


def cut_by_position(whole: pd.DataFrame, start: int, end: int, index: type[pd.RangeIndex]) -> pd.DataFrame:
    """Rows of a frame as a frame that counts from 0, without a copy.

    The trap: it is a view. `whole` must be ours alone, and each of its rows be cut out once: then a function may change
    its frame as it likes, and nobody else sees it.
    """
    frame = whole.iloc[start:end]
    frame.index = index(end - start)
    if getattr(frame, "_is_copy", None) is not None:
        # Else pandas warns a function that adds a column to its frame.
        frame._is_copy = None
    return frame


def cut_by_blocks(whole: pd.DataFrame, start: int, end: int, index: type[pd.RangeIndex]) -> pd.DataFrame:
    """The same by parts of pandas that are not public: `iloc` takes several times as long."""
    manager = whole._mgr.get_slice(slice(start, end), axis=1)
    manager.axes[1] = index(end - start)
    frame: pd.DataFrame = type(whole)._from_mgr(manager, manager.axes)
    return frame


@functools.cache
def frame_cut(kind: type[pd.DataFrame], index: type[pd.RangeIndex]) -> FrameCut:
    """The fastest cut that gives the frames of `cut_by_position` in this version of pandas."""
    probe = kind({"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [0.5, 1.5, 2.5], "d": [4, 5, 6]})
    try:
        cut, public = cut_by_blocks(probe, 1, 3, index), cut_by_position(probe, 1, 3, index)
        is_same = cut.equals(public) and cut.index.equals(public.index) and type(cut.index) is type(public.index)
        cut["e"] = cut["a"] + cut["d"]
        is_same = is_same and cut["e"].tolist() == [7, 9] and "e" not in probe.columns
    except Exception:
        # Whatever it is, this version of pandas does not have these parts.
        is_same = False
    return cut_by_blocks if is_same else cut_by_position


def arrow_columns(frames: Sequence[pd.DataFrame], schema: pa.Schema) -> list[pa.Array] | None:
    """The rows of frames as the columns of a schema, if all of them have its types already; else None.

    These are the types that Arrow takes over without a look at single values; a number that is no number is null, as in
    PySpark. Everything else is for PySpark's own conversion.
    """
    wanted = [_NUMPY_TYPES.get(kind) for kind in schema.types]
    names = frames[0].columns.tolist()
    if not wanted or None in wanted or len(names) != len(wanted) or set(names) != set(schema.names):
        return None
    parts = []
    for frame in frames:
        if frame.columns.tolist() != names:
            return None
        parts.append(_column_arrays(frame))
    columns = dict(zip(names, zip(*parts, strict=True), strict=True))
    made = []
    for name, kind, dtype in zip(schema.names, schema.types, wanted, strict=True):
        arrays = columns[name]
        if any(not isinstance(array, np.ndarray) or array.dtype != dtype for array in arrays):
            return None
        # Always a copy: Arrow would refer to the array of a frame, which its function may still change.
        made.append(pa.array(np.concatenate(arrays), kind, from_pandas=True))
    return made


def joined_frames(frames: Sequence[pd.DataFrame]) -> list[pd.DataFrame]:
    """The same rows in one frame, if all have the same columns and types; else the frames as they are."""
    first = frames[0]
    if len(frames) == 1:
        return [first]
    names, columns = first.columns.tolist(), _column_arrays(first)
    kinds = [array.dtype for array in columns]
    parts = [columns]
    for frame in frames[1:]:
        arrays = _column_arrays(frame)
        if frame.columns.tolist() != names or [array.dtype for array in arrays] != kinds:
            return list(frames)
        parts.append(arrays)
    joined = type(first)(dict(enumerate(map(_concatenated, zip(*parts, strict=True)))), copy=False)
    joined.columns = first.columns
    return [joined]


def _column_arrays(frame: pd.DataFrame) -> list[pd.api.extensions.ExtensionArray | np.ndarray]:
    if hasattr(frame, "_iter_column_arrays"):
        # A Series for each column takes five times as long.
        return list(frame._iter_column_arrays())
    return [column.array for _, column in frame.items()]


def _concatenated(
    arrays: Sequence[pd.api.extensions.ExtensionArray | np.ndarray],
) -> pd.api.extensions.ExtensionArray | np.ndarray:
    if isinstance(arrays[0], np.ndarray):
        return np.concatenate(arrays)
    return type(arrays[0])._concat_same_type(arrays)
