"""Defects of `on_error`, side outputs, top-N, `over` and changelogs. Their own tests must notice these."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_ON_ERROR = ("tests/unit/operators/test_on_error.py",)


def _mutant(name: str, file: str, old: str, new: str, why: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


MUTANTS = (
    _mutant(
        "A failed call of a keyed function leaves its changes behind",
        "operators/keyed/process.py",
        "                undo()\n                raise\n",
        "                raise\n",
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
)
