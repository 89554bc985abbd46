"""Defects of the surface: durations and sizes of another meaning, columns lost in silence, state that is read twice."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_UNITS = "model/units.py"
_COLUMNS = "operators/columns.py"
_OF_UNITS = ("tests/unit/model/test_units.py",)
_OF_COLUMNS = ("tests/unit/operators/test_columns.py",)
_OF_CHECKPOINTS = ("tests/unit/test_checkpoints.py",)


def _mutant(name: str, file: str, old: str, new: str, why: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


MUTANTS = (
    _mutant(
        "A bare number is one of milliseconds",
        _UNITS,
        "return None if seconds is None else seconds * 1000",
        "return seconds",
        "A timeout of 10 would be over after ten milliseconds.",
        _OF_UNITS,
    ),
    _mutant(
        "A short duration is rounded to none",
        _UNITS,
        "return max(round(ms), 1) if ms else 0",
        "return round(ms)",
        "Zero has a meaning of its own: it switches the adjustment of channels off.",
        _OF_UNITS,
    ),
    _mutant(
        "Fractions of a millisecond are rounded in windows",
        _UNITS,
        " or (exactly and ms != int(ms))",
        "",
        "Windows would drift away from the times that their user named.",
        _OF_UNITS,
    ),
    _mutant(
        "A drop of every column is let through",
        _COLUMNS,
        "        if not kept:\n",
        "        if False:\n",
        "A batch without columns has no rows: every record would be lost in silence.",
        _OF_COLUMNS,
    ),
    _mutant(
        "A rename may make two columns of one name",
        _COLUMNS,
        "        if twice:\n",
        "        if False:\n",
        "The error would come later, from another operator, or never.",
        _OF_COLUMNS,
    ),
    _mutant(
        "A renamed column of event time is forgotten",
        "api/column_stream.py",
        "stream._timed(names.get(timed, timed))",
        "stream._timed(timed)",
        "A window behind it would look for a column that is no longer there.",
        _OF_COLUMNS,
    ),
    _mutant(
        "Broadcast state is read from every subtask",
        "checkpoints.py",
        "if segment.kind is not StateKind.BROADCAST or subtask == first[name]",
        "if subtask >= first[name]",
        "Every record of it would be there as often as there are subtasks.",
        _OF_CHECKPOINTS,
    ),
    _mutant(
        "The state of one key is that of all keys",
        "checkpoints.py",
        "        table = table.filter(mask)\n",
        "",
        "The state of another key would be taken for that of the one asked for.",
        _OF_CHECKPOINTS,
    ),
)
