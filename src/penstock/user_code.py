"""Errors of the user's own code: which line it was, and whether another attempt may succeed."""

from __future__ import annotations

import operator
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from typing import Any

from penstock.errors import UserCodeError

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = tuple({os.path.join(path, "") for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))})
_SHOWN = 200
_SUBTASK = re.compile(r", subtask \d+ of \d+")
_NO_COLUMN = re.compile(r"No match for FieldRef\.Name\((.*?)\) in (.*)")
_COMPILED = (".pyx", ".pxi", ".pxd")
"""Sources of compiled libraries, such as pyarrow, whose frames name them without a directory."""
_TYPED = ("<ipython-input", "<stdin>", "<python-input", "<console>", "<string>", "<doctest")
"""Beginnings of the names under which Python knows lines that were typed: in a notebook, at a prompt, with `-c`."""
_CELL = re.compile(
    r'(?:File ")?(?P<file><ipython-input-[^>]+>|[^\s"(]*ipykernel_\d+[/\\]\d+\.py)(?:", line |:)(?P<line>\d+)'
)
"""A line of a cell, in a traceback or in a message."""
_OUTSIDE = (OSError, EOFError, MemoryError)
"""Exceptions whose cause is not the program: connections, files, memory."""


def strangeness(filename: str) -> int:
    """0 for a file of the user's, 1 for one of a library, 2 for one of Penstock."""
    if filename.startswith(_OURS):
        return 2
    if filename.startswith(_TYPED):
        return 0
    return 1 if filename.startswith(("<", *_LIBRARIES)) or filename.endswith(_COMPILED) else 0


def raised_at(error: BaseException) -> str:
    """Where an exception was raised, as `file:line in function`: the innermost line of user code, or else of any."""
    found = _innermost(error)
    return "" if found is None else with_cells(f"{found.filename}:{found.lineno} in {found.name}")


def with_cells(text: str) -> str:
    """A message or traceback with the cells of this notebook in place of the files that stand for them.

    IPython compiles each cell under the name of a file that does not exist. Only the process of the notebook knows its
    cells, so the driver calls this for the errors of workers.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return text

    def cell(found: re.Match[str]) -> str:
        named = shell.compile.format_code_name(found["file"])
        return found[0] if named is None else f"{' '.join(named)}, line {found['line']}"

    return _CELL.sub(cell, text)


def place_of(error: BaseException) -> tuple[str | None, int | None]:
    """The file and the number of the line that `raised_at` names."""
    found = _innermost(error)
    return (None, None) if found is None else (found.filename, found.lineno)


def is_outside(error: BaseException) -> bool:
    """Whether the cause is not the program or its records: connections, files, memory."""
    return isinstance(error, _OUTSIDE)


def _innermost(error: BaseException) -> traceback.FrameSummary | None:
    frames = list(reversed(traceback.extract_tb(error.__traceback__)))
    # The first one of the least strange: the innermost.
    return min(frames, key=lambda frame: strangeness(frame.filename)) if frames else None


def called_with(function: Callable[[Any], Any], rows: list[Any]) -> list[Any]:
    """The result of a function for each row. What it raises carries a note: which row it was."""
    left = iter(rows)
    try:
        return [function(row) for row in left]
    except Exception as error:
        number = len(rows) - operator.length_hint(left) - 1
        add_row_note(error, number, len(rows), rows[number])
        raise


def add_row_note(error: Exception, number: int, rows: int, row: object) -> None:
    """Note with an exception for which row of a batch it was raised."""
    error.add_note(f"row {number} of {rows} in its batch, {shortened(repr(row))}")


def reason_of(error: BaseException) -> str:
    """The message of an exception in one line. Arrow lists a whole schema, one column a line."""
    text = str(error)
    if not type(error).__module__.startswith("pyarrow"):
        return text
    first, *rest = text.splitlines() or [""]
    missing = _NO_COLUMN.match(first)
    if missing is None:
        return first
    names = ", ".join(
        line.partition(":")[0] for line in [missing[2], *rest] if ":" in line and not line.startswith(" ")
    )
    return f"there is no column '{missing[1]}'; the columns are: {names}"


def shortened(text: str) -> str:
    """As much of a row as belongs into a message."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def user_code_error(what: str, error: BaseException) -> UserCodeError:
    """The error of a function that `what` has called; to be raised from `error`."""
    line = raised_at(error)
    at = [each for each in (line, *getattr(error, "__notes__", ())) if each]
    told = f"{what} raised {type(error).__name__}: {reason_of(error)}"
    made = UserCodeError(told + (f" ({'; '.join(at)})" if at else ""))
    made.traceback = "".join(traceback.format_exception(error))
    made.may_pass = is_outside(error)
    # Neither the row nor the subtask: batches are cut and dealt out differently each time.
    made.signature = f"{_SUBTASK.sub('', told)} ({line})"
    return made
