"""Defects of names: state that goes to another operator."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_NAMES = "api/names.py"
_FORMER = "protocol/former_names.py"
_OF_NAMES = ("tests/unit/api/test_names.py",)
_OF_CHECKPOINTS = ("tests/unit/runtime/test_unnamed_operators.py",)


def _mutant(name: str, file: str, old: str, new: str, why: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


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
        "            keys.add(link.key)\n",
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
)
