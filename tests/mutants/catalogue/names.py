"""Defects met in silence: state of another operator, updates without order, rows and times that do not fit."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_NAMES = "graph/names.py"
_FORMER = "protocol/manifest/former_names.py"
_OF_NAMES = ("tests/unit/graph/test_names.py",)
_OF_CHECKPOINTS = ("tests/unit/driver/test_unnamed_operators.py",)


def _mutant(name: str, file: str, old: str, new: str, why: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


_AGGREGATE = "operators/keyed/aggregate.py"
_REDUCE = "operators/keyed/reduce.py"
_OF_UPDATES = ("tests/unit/operators/keyed/test_updates.py",)

MUTANTS = (
    _mutant(
        "Two operators that nothing tells apart are numbered",
        _NAMES,
        "if len(group) > 1 and self._must_differ(node):",
        "if False:",
        "An operator that is put in front gets the state of the other.",
        _OF_NAMES,
    ),
    _mutant(
        "The key is no part of an identity",
        _NAMES,
        "            keys.add(edge.key)\n",
        "            keys.add(())\n",
        "State of one key would be found by another.",
        _OF_NAMES,
    ),
    _mutant(
        "Names of 0.1.0 count in a pipeline that has changed",
        _FORMER,
        "if not former or not _is_same(manifest.shape, shape, current):",
        "if not former:",
        "A number may be that of another operator now.",
        _OF_CHECKPOINTS,
    ),
    _mutant(
        "Records in flight keep the names of 0.1.0",
        _FORMER,
        "            channels=tuple(replace(each, edge=self.edge(each.edge)) for each in report.channels),\n",
        "",
        "I1: records in flight on an edge that is not there are lost, or refused.",
        _OF_CHECKPOINTS,
    ),
    # --- updates ---
    _mutant(
        "The sequence of reduce counts updates instead of records",
        _REDUCE,
        "self.sequence: before + len(rows)}",
        "self.sequence: before + 1}",
        "After a failure the same row would come with another number.",
        _OF_UPDATES,
    ),
    _mutant(
        "Final values are emitted for every batch too",
        _AGGREGATE,
        "            if self._pending is None:\n                emit(self._state.update(batch))\n",
        "            if True:\n                emit(self._state.update(batch))\n",
        "A final value comes once.",
        _OF_UPDATES,
    ),
    _mutant(
        "Of the rows of a key the oldest is the current one",
        "connectors/files/latest.py",
        '.aggregate([(_PLACE, "max")])',
        '.aggregate([(_PLACE, "min")]).rename_columns([*names, f"{_PLACE}_max"])',
        "The current table would be an old one.",
        _OF_UPDATES,
    ),
    # --- rows ---
    _mutant(
        "A declared field that a row does not have is null",
        "operators/formats.py",
        "if self.guard.is_declared and len(row) < len(known):",
        "if False:",
        "A field that was misspelt is lost without a word.",
        ("tests/unit/operators/test_bad_rows.py",),
    ),
    _mutant(
        "Times with and without a zone are one column",
        "columnar/time_zones.py",
        "if zones.count(expected) == len(zones):",
        "if True:",
        "Times of another zone are hours off.",
        ("tests/unit/operators/test_bad_rows.py",),
    ),
    # --- times ---
    _mutant(
        "A time beyond max_ahead moves event time on",
        "operators/event_time.py",
        "        return times[~is_ahead]\n",
        "        return times\n",
        "All that comes after it would be late.",
        ("tests/unit/operators/test_event_time.py",),
    ),
    _mutant(
        "A first time that is odd is never told",
        "operators/event_time.py",
        "            if ahead or (self._rows_ahead and self._warned_at_ms is None):\n",
        "            if ahead:\n",
        "All that comes after it is late, and nobody says why.",
        ("tests/unit/operators/test_event_time.py",),
    ),
)
