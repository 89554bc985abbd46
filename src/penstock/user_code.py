"""Errors of the user's own code: which line it was, and whether another attempt may succeed."""

from __future__ import annotations

import os
import sysconfig
import traceback

from penstock.errors import UserCodeError

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = tuple({os.path.join(path, "") for path in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))})
_COMPILED = (".pyx", ".pxi", ".pxd")
"""Sources of compiled libraries, such as pyarrow, whose frames name them without a directory."""
_OUTSIDE = (OSError, EOFError, MemoryError)
"""Exceptions whose cause is not the program: connections, files, memory."""


def strangeness(filename: str) -> int:
    """0 for a file of the user's, 1 for one of a library, 2 for one of Penstock."""
    if filename.startswith(_OURS):
        return 2
    return 1 if filename.startswith(("<", *_LIBRARIES)) or filename.endswith(_COMPILED) else 0


def raised_at(error: BaseException) -> str:
    """Where an exception was raised, as `file:line in function`: the innermost line of user code, or else of any."""
    lines = [
        (strangeness(summary.filename), f"{summary.filename}:{summary.lineno} in {summary.name}")
        for summary in reversed(traceback.extract_tb(error.__traceback__))
    ]
    # The first one of the least strange: the innermost.
    return min(lines, key=lambda line: line[0])[1] if lines else ""


def user_code_error(what: str, error: BaseException) -> UserCodeError:
    """The error of a function that `what` has called; to be raised from `error`."""
    at = raised_at(error)
    made = UserCodeError(f"{what} raised {type(error).__name__}: {error}" + (f" ({at})" if at else ""))
    made.traceback = "".join(traceback.format_exception(error))
    made.may_pass = isinstance(error, _OUTSIDE)
    return made
