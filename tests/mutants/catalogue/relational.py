"""Defects of `on_error`, side outputs, top-N, `over` and changelogs. Their own tests must notice these."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_ON_ERROR = ("tests/unit/operators/test_on_error.py",)
_SIDES = ("tests/unit/operators/test_user_side_outputs.py",)
_TOP = ("tests/unit/operators/keyed/test_top.py",)
_OVER = ("tests/unit/operators/keyed/test_over.py",)
_FILTERED = ("tests/unit/operators/keyed/test_filtered.py",)
_CHANGES = ("tests/unit/operators/keyed/test_changelog.py",)


def _mutant(name: str, file: str, old: str, new: str, why: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


MUTANTS = (
    _mutant(
        "A failed call of a keyed function leaves its changes behind",
        "operators/keyed/process.py",
        "                undo()\n",
        "                pass\n",
        "I1: a record is in the state and in the dead letters.",
        _ON_ERROR,
    ),
    _mutant(
        "A map in state is changed in its place while it is held",
        "state/rows/states.py",
        "            cell.epoch = _HELD\n",
        "            pass\n",
        "What a failed call has changed in a map remains.",
        _ON_ERROR,
    ),
    _mutant(
        "Elements that a failed call has appended come back",
        "state/rows/states.py",
        "            held = _Elements(self._epoch, held.items[: held.count], held.count)\n",
        "            pass\n",
        "The next element lies behind those of the failed call.",
        _ON_ERROR,
    ),
    _mutant(
        "One bad row takes its batch with it",
        "operators/failures.py",
        "        if rows == 1:\n            failed(first, error)\n            return\n",
        "        for row in range(first, first + rows):\n            failed(row, error)\n        return\n",
        "Good records are among the dead letters.",
        _ON_ERROR,
    ),
    _mutant(
        "An outage empties a stream",
        "operators/failures.py",
        "    return not is_outside(error)\n",
        "    return True\n",
        "Every record is dropped while a service is down.",
        _ON_ERROR,
    ),
    _mutant(
        "A failed call has emitted to its side outputs",
        "operators/keyed/process.py",
        "                self.side_outputs.discard(held)\n",
        "",
        "I1: records of a call that never happened are downstream.",
        _SIDES,
    ),
    _mutant(
        "Of equal values the later one is first",
        "operators/keyed/top.py",
        "    order = np.lexsort((order_numbers(values, descending), keys))\n",
        "    order = np.lexsort((-np.arange(len(keys)), order_numbers(values, descending), keys))\n",
        "Ties go by arrival: a ranking changes though nothing is larger.",
        _TOP,
    ),
    _mutant(
        "The largest of whole numbers wraps around",
        "columnar/ranking.py",
        "    return ~numbers if descending else numbers\n",
        "    return -numbers if descending else numbers\n",
        "The smallest number of 64 bits is the largest, and unsigned ones are in no order.",
        ("tests/unit/columnar/test_ranking.py",),
    ),
    _mutant(
        "A row that left the first ones is not deleted",
        "operators/keyed/top.py",
        "            changes = changelog_of(self._rows(held[~stays], batch), entering)\n",
        "            changes = changelog_of(self._rows(held[held_ranks > self.count], batch), entering)\n",
        "The changelog leaves more rows than there are.",
        _TOP,
    ),
    _mutant(
        "A checkpoint holds rows that were dropped",
        "state/rows/keyed_rows.py",
        "            filter_rows(batch, pa.array(self._is_alive[start:end]))\n"
        "            for batch, start, end in zip(self._batches, starts, ends, strict=False)\n",
        "            batch for batch in self._batches\n",
        "I1: after a restore rows are among the first that are not.",
        _TOP,
    ),
    _mutant(
        "A snapshot sees rows that are dropped later",
        "state/rows/keyed_rows.py",
        "self._is_alive[: self._rows].copy()",
        "self._is_alive[: self._rows]",
        "I1: the checkpoint is not that of its moment.",
        _TOP,
    ),
    _mutant(
        "A window is ranked again by keys that a rescale has brought",
        "operators/windows/window_top.py",
        "        if watermark < MAX_WATERMARK:\n            self._clock.advance(watermark)\n",
        "",
        "Late records open windows again that were emitted.",
        _TOP,
    ),
    _mutant(
        "Records that are emitted stay for frames that cannot reach them",
        "operators/over/by_time.py",
        "        self._before.drop_before(first_tick_at(self._before.ticks, watermark - self.frame.range_ms))\n",
        "",
        "State grows without end.",
        _OVER,
    ),
    _mutant(
        "A frame has the records of one row too few",
        "operators/over/frames.py",
        "        stays = from_end < self._rows - 1\n",
        "        stays = from_end < self._rows - 2\n",
        "The first record of a full frame is missing.",
        _OVER,
    ),
    _mutant(
        "Rows of one time are torn apart between two portions",
        "operators/over/waiting.py",
        '            end = int(np.searchsorted(waiting.times, waiting.times[end - 1], side="right"))\n',
        "",
        "A frame lacks the rows of its own time.",
        _OVER,
    ),
    _mutant(
        "Rows of a portion that was not emitted yet are not in the state",
        "operators/over/waiting.py",
        "            self._put(([] if waiting is None else [waiting]) + self._held[1:])\n",
        "            self._put(self._held[1:])\n",
        "I1: a checkpoint between two portions loses records.",
        _OVER,
    ),
    _mutant(
        "The watermark passes the rows that it lets go",
        "operators/over/by_time.py",
        "                self.context.work_off(self._emission(emit))\n        return True\n",
        "                self.context.work_off(self._emission(emit))\n        return None\n",
        "Windows behind the frames take their rows as late.",
        _OVER,
    ),
    _mutant(
        "Rows of equal values change their places",
        "state/rows/keyed_rows.py",
        "                order = np.argsort(found)\n",
        "                order = np.argsort(-found)\n",
        "The record that came first leaves the first ones, and frames have others than the last rows.",
        (*_TOP, *_OVER),
    ),
    _mutant(
        "A sum of a frame is not checked for its size",
        "columnar/frames.py",
        "        _sum_max(values, first, end) >= 2**62\n",
        "        _sum_max(values, first, end) >= 2**99\n",
        "A sum that exceeds 64 bits wraps around.",
        _OVER,
    ),
    _mutant(
        "Frames are reduced in the order of their beginnings, and stay in it",
        "columnar/frames.py",
        "    back[order] = made\n",
        "    back[:] = made\n",
        "A record has the aggregate of another one.",
        _OVER,
    ),
    _mutant(
        "A condition that is null holds",
        "operators/masked_columns.py",
        "array.fill_null(False)",
        "array.fill_null(True)",
        "Records count for which nobody knows whether they should.",
        _FILTERED,
    ),
    _mutant(
        "Long conditions that look alike are one",
        "model/filtered.py",
        '    if "..." in shown:\n',
        '    if "...." in shown:\n',
        "Two filtered aggregates have the result of one of them.",
        _FILTERED,
    ),
    _mutant(
        "A condition filters the first column alone",
        "api/arguments.py",
        "    by = names[1] if plain.by is not None else None\n",
        "    by = plain.by\n",
        "The row of arg_max is one that does not count.",
        _FILTERED,
    ),
    _mutant(
        "A deleted record counts once more",
        "operators/keyed/retract.py",
        "pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))",
        "pa.scalar(1, pa.int64()), pa.scalar(1, pa.int64()))",
        "Aggregates behind a changelog only grow.",
        _CHANGES,
    ),
    _mutant(
        "A row that was there is inserted again",
        "operators/keyed/retract.py",
        "np.where(is_insert[first], INSERT, UPDATE)",
        "np.where(is_insert[first], INSERT, INSERT)",
        "A table by key refuses the second insert.",
        _CHANGES,
    ),
    _mutant(
        "Splits that run ahead do not wait",
        "worker/sources/source_stage.py",
        "near = [name for name in every if clocks.reached(name) <= slowest + self.max_drift_ms]",
        "near = every",
        "A replay holds all that the fastest split has.",
        ("tests/unit/worker/sources/test_source_stage.py",),
    ),
)
