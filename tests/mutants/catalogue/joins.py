"""Defects of joins."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_BOUNDS = "model/joins.py"
_OPERATOR = "operators/join/operator.py"
_RUN = "state/joins/run.py"
_SIDE = "state/joins/side.py"
_WATERMARKS = ("tests/unit/operators/join/test_join_watermarks.py",)
_KINDS = ("tests/unit/model/test_join_bounds.py",)
_PIPELINES = ("tests/unit/operators/join/test_join_pipelines.py",)
_STATE = ("tests/unit/state/test_join_sides.py",)


def _mutant(name: str, file: str, old: str, new: str, why: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


MUTANTS = (
    _mutant(
        "A row of an interval join is forgotten one moment early",
        _BOUNDS,
        "return now_ms - self.upper_ms if side == LEFT else now_ms + self.lower_ms",
        "return now_ms - self.upper_ms + 1 if side == LEFT else now_ms + self.lower_ms",
        "A partner at the watermark itself finds nobody.",
        _KINDS,
    ),
    _mutant(
        "A join passes its watermark on at once",
        _BOUNDS,
        "return watermark_ms - max(0, self.upper_ms, -self.lower_ms)",
        "return watermark_ms",
        "Joined rows are late for a window behind the join.",
        _WATERMARKS,
    ),
    _mutant(
        "Times near the limit of int64 wrap around",
        _BOUNDS,
        "return np.where(times > _MAX - by, _MAX, times + np.int64(by))",
        "return times + np.int64(by)",
        "The last row that may match is before the first one.",
        _KINDS,
    ),
    _mutant(
        "Keys with equal hashes are taken for equal",
        "operators/join/keys.py",
        "return len(kinds) == 1 and fits_word(kinds[0])",
        "return True",
        "Two keys that collide are joined.",
        ("tests/unit/operators/join/test_join_keys.py",),
    ),
    _mutant(
        "Late rows of the right side are in the stream of the left side",
        _OPERATOR,
        "            side = SIDES[portion.side]\n",
        "            side = SIDES[0]\n",
        "Records of other columns come out of a side output.",
        _PIPELINES,
    ),
    _mutant(
        "A null key equals a null key",
        _OPERATOR,
        "barred = either(is_late, portion.is_without_key)",
        "barred = is_late",
        "Rows without a key meet.",
        _PIPELINES,
    ),
    _mutant(
        "A row is kept as one without a partner, though it had one",
        _OPERATOR,
        "matched = has_partner[kept] if self._is_outer[portion.side] else None",
        "matched = has_partner[kept] & False if self._is_outer[portion.side] else None",
        "It comes out of an outer join twice: beside its partner, and alone.",
        _PIPELINES,
    ),
    _mutant(
        "A changelog does not take back the row without a partner",
        _OPERATOR,
        "if spec.is_changelog:\n                    yield",
        "if False:\n                    yield",
        "The row is there beside its partner, and beside nulls.",
        _PIPELINES,
    ),
    _mutant(
        "The watermark does not wait for rows that wait for columns",
        _OPERATOR,
        "if self._held is None or self._is_expiring or self._results.has_waiting:",
        "if self._held is None or self._is_expiring:",
        "The rows are late when they come.",
        _WATERMARKS,
    ),
    _mutant(
        "A subtask without a record of one side does not know its columns",
        "exchange/router.py",
        "if self._shows_schema:",
        "if False:",
        "Its rows without a partner have other columns than those of other subtasks.",
        _PIPELINES,
    ),
    _mutant(
        "The columns of a side without rows are lost with a restart",
        _SIDE,
        "pieces = self._schema_piece()",
        "pieces: list[KeyedPiece] = []",
        "Rows without a partner have other columns after it.",
        _STATE,
    ),
    _mutant(
        "A snapshot shares the marks of rows that have had a partner",
        _RUN,
        "self.matched, self._is_shared = self.matched.copy(), False",
        "self._is_shared = False",
        "I1: a checkpoint holds a mark without the pair that made it.",
        _STATE,
    ),
    _mutant(
        "A checkpoint holds rows that were handed over as being without a partner",
        _RUN,
        "is_kept[self.by_time[: self.emitted]] = False",
        "pass",
        "I1: after a restart they come again.",
        _STATE,
    ),
    _mutant(
        "A merge is put in place while rows are handed over",
        _SIDE,
        "if self._is_expiring:\n            self._ready.append",
        "if False:\n            self._ready.append",
        "Rows that were handed over come back, or others are lost.",
        _STATE,
    ),
    _mutant(
        "The marks of a merge are those of its beginning",
        _SIDE,
        "marks = [run.matched for run in runs if run.matched is not None]\n            whole",
        "marks = [run.matched & False for run in runs if run.matched is not None]\n            whole",
        "A row whose partner came meanwhile comes out alone too.",
        _STATE,
    ),
)
