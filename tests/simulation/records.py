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
    numbers: Numbers = batch.column(0).to_numpy() ^ (_HEADER << _SHIFT)
    # Without its header a number has nothing left in the upper bits, the sign among them.
    if np.bitwise_or.reduce(numbers) >> _SHIFT:
        raise AssertionError(f"corrupted records: {numbers[numbers >> _SHIFT != 0][:5]}")
    return numbers
