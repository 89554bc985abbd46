"""Questions before something is given up that cannot be brought back."""

from __future__ import annotations

import sys

import typer

from penstock.errors import OptionError


def ask(question: str, *warnings: str) -> None:
    """Ends the command unless the answer is yes. Raises `OptionError` if there is nobody to ask."""
    if not sys.stdin.isatty():
        raise OptionError("the confirmation needs a terminal: pass --yes to go on without it")
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    typer.confirm(question, abort=True)
