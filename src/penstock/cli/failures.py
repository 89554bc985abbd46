"""How errors reach a person: the message in full, what to do about it, and a traceback only for those who ask.

What Penstock raises on purpose says what is wrong and how to cure it; where the traceback of our own code would follow
helps nobody. What it did not raise on purpose is shown with its traceback, because then there is nothing else to go by.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.text import Text

from penstock.errors import (
    DataError,
    FencedError,
    JobFailed,
    PenstockError,
    PipelineError,
    ProtocolViolation,
    RestoreError,
    UserCodeError,
)

FAILED = 1
USAGE = 2

_ADVICE: dict[type[Exception], str] = {
    FencedError: "Another driver runs this pipeline now, and this one has left it alone. Nothing is lost.",
    JobFailed: "Fix the cause and run the same command again: it resumes from the last checkpoint.",
    UserCodeError: "Fix the function and run the same command again: it resumes from the last checkpoint.",
    DataError: "Fix the data or the schema and run the same command again: it resumes from the last checkpoint.",
    PipelineError: "Nothing was started.",
    RestoreError: "See what there is with `penstock checkpoints verify DIR`; start from another one with --restore.",
    ProtocolViolation: "This is a defect of Penstock: please report it with the text above.",
}


def advice_for(error: BaseException) -> str | None:
    """What to do about an error, where its message does not say so itself."""
    for kind in type(error).__mro__:
        if kind in _ADVICE:
            return _ADVICE[kind]
    return None


def show(error: BaseException, *, verbose: bool = False) -> None:
    """Print an error on standard error."""
    console = Console(stderr=True, highlight=False)
    # For people lines are broken between words; what a program reads stays as it is.
    console.soft_wrap = not console.is_terminal
    is_ours = isinstance(error, PenstockError)
    if verbose or not is_ours:
        console.print("".join(traceback.format_exception(error)), markup=False, end="")
    text = str(error) if is_ours else f"{type(error).__name__}: {error}"
    console.print(Text.assemble(("error: ", "bold red"), text))
    advice = advice_for(error)
    if advice is not None:
        console.print(advice, markup=False)


@contextlib.contextmanager
def reported(*, verbose: bool = False) -> Iterator[None]:
    """Turn an error into its message and exit code 1."""
    try:
        yield
    except PenstockError as error:
        show(error, verbose=verbose)
        raise SystemExit(FAILED) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise SystemExit(FAILED) from None
    except BrokenPipeError:
        # Whoever read our output has left, as `head` does. Python must not find that out again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(FAILED) from None
