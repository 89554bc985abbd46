"""Defects of lookups: duplicates that come through, and versions of another time."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_SEEN = "state/index/seen_keys.py"
_DUPLICATES = "operators/keyed/drop_duplicates.py"
_VERSIONS = "state/index/versions.py"
_AS_OF = "operators/keyed/join_as_of.py"
_TABLE = "operators/join_table.py"


def _once(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(
        name, OWN, file, old, new, why, seeds=0, tests=("tests/unit/operators/keyed/test_drop_duplicates.py",)
    )


def _as_of(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    tests = ("tests/unit/state/test_versions.py", "tests/unit/operators/keyed/test_join_as_of.py")
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


def _table(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=("tests/unit/operators/test_join_table.py",))


MUTANTS = (
    _once(
        "A key that the new index does not know is not looked up in the old one",
        _SEEN,
        "self._until[slots[rows[found]]] = until[theirs[found]]",
        "pass",
        "While the index is renewed, duplicates come through.",
    ),
    _once(
        "Restored keys are not remembered",
        _DUPLICATES,
        ").remember(keys, until)",
        ")",
        "After a failure every key comes out once more.",
    ),
    _once(
        "A batch of keys is forgotten with the first of them",
        _DUPLICATES,
        "return int(entry.column(UNTIL).to_numpy().max())",
        "return int(entry.column(UNTIL).to_numpy().min())",
        "Duplicates of the others come through after a restore.",
    ),
    _once(
        "A record whose key may be forgotten is taken for a new one",
        _DUPLICATES,
        "return np.flatnonzero(ends_of(times, self._within) > self._now)",
        "return np.arange(len(times))",
        "A late duplicate comes through, uncounted.",
    ),
    _as_of(
        "A row is joined when the watermark has reached its time",
        _AS_OF,
        "int(_INT64.max)) - 1",
        "int(_INT64.max))",
        "A version of just this time may still come.",
    ),
    _as_of(
        "Of equal times the version that came first stays current",
        _VERSIONS,
        "(times >= self._times[slots])",
        "(times > self._times[slots])",
        "The last arrived counts, wherever the batches end.",
    ),
    _as_of(
        "A late version hides a newer one",
        _VERSIONS,
        "rows = rows[~sees[rows] | (staged.times[places[rows]] >= current[rows])]",
        "pass",
        "Rows get a version that was replaced long ago.",
    ),
    _as_of(
        "Rows that were emitted stay in the state until the last slice",
        _AS_OF,
        "self._rows_state.put([first.slice(end), *rows, *self._rows.batches])",
        "self._rows_state.put([first.slice(end if end >= first.num_rows else 0), *rows, *self._rows.batches])",
        "A checkpoint between two slices emits them again (I1).",
    ),
    _as_of(
        "The watermark is not held while rows are emitted",
        _AS_OF,
        "        self._work_off()\n        return True",
        "        self._work_off()\n        return None",
        "Downstream, the rows that it completes are late.",
    ),
    _as_of(
        "A chunk that is written again keeps the versions that were replaced",
        _VERSIONS,
        "mine = np.flatnonzero(self._where[chunk.slots] == _references(number, chunk.rows.num_rows))",
        "mine = np.arange(chunk.rows.num_rows)",
        "Keys go back to old versions, and state grows.",
    ),
    _table(
        "A table that could not be read again empties the join",
        _TABLE,
        "        else:\n            self._failed.add(1)",
        "        else:\n            self._table = LookupTable(self._table.rows.schema.empty_table(), self.key)"
        "\n            self._failed.add(1)",
        "One failed read loses every match.",
    ),
    _table(
        "Null keys of the stream match null keys of the table",
        _TABLE,
        "slots = self._index.find(keys)",
        "slots = self._index.find(keys, nulls_match=True)",
        "In SQL null equals nothing.",
    ),
)
