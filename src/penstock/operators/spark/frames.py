"""Many small DataFrames at the cost of few calls into pandas: cut out of one frame, and joined to one.

A call of pandas costs some ten microseconds for one row and for thousands. A processor gets a frame and returns one for
each key, so these two are most of what the engine itself spends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


def cut_frame(whole: pd.DataFrame, start: int, end: int, index: type[pd.RangeIndex]) -> pd.DataFrame:
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
