"""Defects of aggregates that emit by a trigger."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_TESTS = ("tests/unit/operators/keyed/test_updates.py",)


def _mutant(name: str, old: str, new: str, why: str) -> Mutant:
    return Mutant(name, OWN, "operators/keyed/pending.py", old, new, why, seeds=0, tests=_TESTS)


MUTANTS = (
    _mutant(
        "Keys behind the first portion of the clock are dropped",
        "            self._due.put([batches[0].slice(_EMITTED_ROWS), *batches[1:]])\n",
        "            self._due.put(list(batches[1:]))\n",
        "The keys behind the first portion are never emitted.",
    ),
    _mutant(
        "Two rounds emit the same keys",
        "        if not self._is_emitting:\n",
        "        if True:\n",
        "A slow output gets keys again and again.",
    ),
    _mutant(
        "Keys that were due at a checkpoint are forgotten",
        "        if self._due is not None:\n            self._emit_due(emit)\n            self._wait(emit)\n",
        "        if self._due is not None:\n            self._due.put([])\n            self._wait(emit)\n",
        "I1: their records are in the state, and their values are emitted by nobody.",
    ),
    _mutant(
        "A key that was emitted by its records goes on counting",
        "            self._since.fold(full.set_column(len(self._key), _SINCE, pc.negate(full.column(_SINCE))))\n",
        "",
        "It is emitted with every batch from then on.",
    ),
    _mutant(
        "A key that was emitted by its records is emitted at the end again",
        "        if self._trigger.rows is not None:\n            taken = take_rows",
        "        if self._trigger.rows is None:\n            taken = take_rows",
        "A result comes twice.",
    ),
)
