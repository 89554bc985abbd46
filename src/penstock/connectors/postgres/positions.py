"""The position of a reader of PostgreSQL: a place in the log, and the snapshots of which rows were read before it.

A snapshot is read in the order of the key. One that is interrupted cannot be opened again: the rows behind its last key
come from another one. So a position lists snapshots, each with the last key that was read of it. A change in the log
belongs to the snapshot in whose range its key lies, and is left out if that snapshot has seen its transaction. That is
exact, whatever commits meanwhile: a snapshot says which transactions it sees, and the log names that of each change.

`wal` is the end of the log when a snapshot was taken: all transactions that it sees have committed in front of it. Once
the log was read as far, the snapshot is forgotten.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import IncompatibleCheckpoint

_ERA = 1 << 32


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rows that were read of the table in one transaction."""

    sees: str
    """`pg_current_snapshot()`: the first transaction that runs, the first to come, those that run between."""
    wal: int
    to: tuple[str, ...] | None = None
    """The last key that was read of it, as texts; None for all that are left."""

    def has_seen(self, transactions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether its rows hold the changes of each transaction. The log has the lower half of its number."""
        first, following, running = self.sees.split(":")
        coming = int(following)
        numbers = transactions + coming // _ERA * _ERA
        # The half that was left out is that of the nearest number.
        numbers[numbers > coming + _ERA // 2] -= _ERA
        numbers[numbers < coming - _ERA // 2] += _ERA
        listed = np.array([int(number) for number in running.split(",") if number], np.int64)
        return (numbers < int(first)) | ((numbers < coming) & ~np.isin(numbers, listed))


@dataclass(frozen=True, slots=True)
class Position:
    """Behind everything that a reader has returned."""

    system: str
    """The identifier of the server: places of another one mean nothing."""
    lsn: int
    """The log was read up to here, in whole transactions."""
    commit: int = 0
    """Where the transaction commits of which `changes` were read too; 0 for none."""
    changes: int = 0
    snapshots: tuple[Snapshot, ...] = ()
    is_complete: bool = True
    """Whether all rows of the table were read. If not, those behind the last key of the last snapshot are left."""

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decoded(offset: bytes) -> Position | None:
        """None for a reader that had not begun. Raises `IncompatibleCheckpoint`."""
        fields: dict[str, Any] = json.loads(offset)
        if not fields:
            return None
        try:
            snapshots = tuple(
                Snapshot(one["sees"], one["wal"], None if one["to"] is None else tuple(one["to"]))
                for one in fields.pop("snapshots")
            )
            return Position(**fields, snapshots=snapshots)
        except (KeyError, TypeError) as error:
            raise IncompatibleCheckpoint(f"{offset!r} is not a position of a PostgresSource: {error!r}") from error

    def pruned(self) -> Position:
        """Without snapshots whose transactions all lie in front of it."""
        left = tuple(one for one in self.snapshots if one.wal > self.lsn)
        # Ranges are told apart by those that are left: none may be taken out of the middle.
        return self if left or not self.snapshots or not self.is_complete else replace(self, snapshots=())


def is_new(
    snapshots: tuple[Snapshot, ...], transactions: npt.NDArray[np.int64], keys: list[pa.Array], kinds: list[pa.DataType]
) -> npt.NDArray[np.bool_]:
    """Whether each change happened after the snapshot in whose range its key lies."""
    found = np.ones(len(transactions), np.bool_)
    is_open = np.ones(len(transactions), np.bool_)
    for snapshot in snapshots:
        inside = is_open if snapshot.to is None else is_open & _at_most(keys, snapshot.to, kinds)
        found[inside & snapshot.has_seen(transactions)] = False
        is_open = is_open & ~inside
    return found


def _at_most(keys: list[pa.Array], bound: tuple[str, ...], kinds: list[pa.DataType]) -> npt.NDArray[np.bool_]:
    """Whether each key is at most `bound`, the first column first."""
    below = np.zeros(len(keys[0]), np.bool_)
    equal = np.ones(len(keys[0]), np.bool_)
    for column, text, kind in zip(keys, bound, kinds, strict=True):
        value = pa.array([text]).cast(kind)[0]
        below |= equal & pc.less(column, value).to_numpy(zero_copy_only=False)
        equal &= pc.equal(column, value).to_numpy(zero_copy_only=False)
    return below | equal
