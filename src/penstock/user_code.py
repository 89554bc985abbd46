"""Errors of the user's own code: which line it was, and whether another attempt may succeed."""

from __future__ import annotations

import contextlib
import operator
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from penstock.errors import DataError, PenstockError, PipelineError, UserCodeError

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
_INSTALLED = tuple({os.path.join(sysconfig.get_path(name), "") for name in ("purelib", "platlib")})
_OF_DATA = {"pyarrow", "pandas", "numpy"}
"""Installed libraries that compute, and know of no world outside."""
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


def _is_of_a_client(error: BaseException) -> bool:
    """Whether the class belongs to an installed library: clients of services and databases have theirs for outages."""
    module = type(error).__module__
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return file.startswith(_INSTALLED) and module.partition(".")[0] not in _OF_DATA


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
        note_row(error, number, len(rows), rows[number])
        raise


def note_row(error: Exception, number: int, rows: int, row: object) -> None:
    """Note with an exception for which row of a batch it was raised."""
    note_record(error, f"row {number} of {rows} in its batch, {shortened(repr(row))}")


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


def user_code_error(what: str, error: BaseException, added_at: str = "") -> UserCodeError:
    """The error of a function that `what` has called; to be raised from `error`.

    `added_at` is the line that describes the operator: the user's own, if no line of a function has raised.
    """
    line = _own_line(error) or _added(added_at) or raised_at(error)
    at = [each for each in (line, *getattr(error, "__notes__", ())) if each]
    told = f"{what} raised {type(error).__name__}: {reason_of(error)}"
    made = UserCodeError(told + (f" ({'; '.join(at)})" if at else ""))
    made.traceback = "".join(traceback.format_exception(error))
    made.may_pass = is_outside(error)
    # Neither the row nor the subtask: batches are cut and dealt out differently each time. Nor the message, which may
    # hold the key or a value of the record; but the message of a client may tell of the world outside.
    kind = type(error).__qualname__ if not _is_of_a_client(error) else f"{type(error).__qualname__}: {error}"
    made.signature = f"{_SUBTASK.sub('', what)} raised {kind} ({line})"
    return made


def place(error: PenstockError, named: str, subtask: str, added_at: str) -> None:
    """Complete the message of an error that values of the user provoke: operator, subtask, record, the user's line.

    `named` is the operator, such as "operator 'totals'". The line is that of the function whose value does not fit;
    where no function was called, `added_at`, which describes the operator. Only the first call counts: the operator
    nearest to the error knows most.
    """
    if error.is_placed or not isinstance(error, DataError | PipelineError):
        return
    text, own = str(error), _own_line(error)
    error.is_placed, error.traceback = True, "".join(traceback.format_exception(error))
    if isinstance(error, DataError):
        error.signature = text
    at = [own, error.record] if own else [_added(added_at)]
    if named not in text:
        text = f"{named}, {subtask}: {text}"
    elif f"{named}, subtask " not in text:
        at = [subtask, *at]
    error.args = (text + (f" ({'; '.join(filter(None, at))})" if any(at) else ""),)


def note_record(error: Exception, record: str) -> None:
    """An error in a function: for which record it was called. An error of another operator is left as it is."""
    if isinstance(error, PenstockError):
        error.record = error.record or ("" if error.is_placed else record)
    else:
        error.add_note(record)


@contextlib.contextmanager
def noting_batch(batch: pa.RecordBatch) -> Iterator[None]:
    """Around a call of a function of batches, whose error does not tell the row."""
    try:
        yield
    except Exception as error:
        note_batch(error, batch)
        raise


def note_batch(error: Exception, batch: pa.RecordBatch) -> None:
    """An error in a function of batches: which one it was called with."""
    with contextlib.suppress(Exception):
        first = shortened(repr(batch.slice(0, 1).to_pylist()[0]))
        note_record(error, f"a batch of {batch.num_rows} rows, the first {first}")


def _own_line(error: BaseException) -> str:
    """As `raised_at`; empty if no line of the user's own was on the way."""
    found = _innermost(error)
    return raised_at(error) if found is not None and strangeness(found.filename) == 0 else ""


def _added(at: str) -> str:
    return f"added at {at}" if at else ""
