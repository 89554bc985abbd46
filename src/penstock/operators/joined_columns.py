"""The columns of a join: all of the left side, and those of the right side that are not its key."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.errors import DataError


class JoinedColumns:
    """Which columns of the right side come out, and by which names. `suffix` tells equal names apart."""

    def __init__(self, operator: str, left: pa.Schema, right: pa.Schema, key: Sequence[str], suffix: str) -> None:
        self.taken = [name for name in right.names if name not in key]
        self.names = [*left.names, *(f"{name}{suffix}" if name in left.names else name for name in self.taken)]
        self.types = [right.field(name).type for name in self.taken]
        if len(set(self.names)) < len(self.names):
            raise DataError(
                f"operator '{operator}': two columns of the result have one name: {', '.join(self.names)}. Rename one "
                f"of them before the join, or choose another suffix"
            )

    def batch(self, left: pa.RecordBatch, right: Sequence[pa.Array]) -> pa.RecordBatch:
        """A batch of the left side, and the columns `taken` beside it."""
        return pa.RecordBatch.from_arrays([*left.columns, *right], names=self.names)
