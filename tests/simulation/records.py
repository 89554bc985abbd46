"""Records that convict: numbers with a fixed header, so that corruption is seen where it happens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_HEADER = 0x5A7E
_SHIFT = 40

Numbers = npt.NDArray[np.int64]


def batch_of(numbers: Numbers) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers | (_HEADER << _SHIFT))], names=["v"])


def numbers_of(batch: pa.RecordBatch) -> Numbers:
    """The numbers in a batch, after looking at every header."""
    values: Numbers = batch.column("v").to_numpy()
    if not ((values >> _SHIFT) == _HEADER).all():
        raise AssertionError(f"corrupted records: {values[(values >> _SHIFT) != _HEADER][:5]}")
    return values & ((1 << _SHIFT) - 1)
