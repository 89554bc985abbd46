"""`penstock new`: a small project that runs, passes its test and passes mypy --strict, to start from."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.failures import reported
from penstock.cli.templates import FILES
from penstock.errors import OptionError

_HINT = "DIR"
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def new(
    directory: Annotated[
        str,
        typer.Argument(
            metavar="DIR",
            help="Directory to make; its name is that of the project. Example: page_views",
            show_default=False,
        ),
    ],
) -> None:
    """Write a small project: a pipeline, a test of it with a crash, a README and a pyproject.toml.

    Nothing is overwritten: the directory must not exist, or be empty.

    Example: penstock new page_views
    """
    home = Path(directory).expanduser().absolute()
    module = module_of(home.name)
    with reported():
        _require_free(home, directory)
        names = write_project(home, home.name, module)
        typer.echo(f"{directory} has {', '.join(names)}. Go on with:")
        typer.echo(f"  cd {directory}")
        typer.echo("  pip install -e '.[dev]'        # pytest and mypy")
        typer.echo("  python -m pytest               # without Spark, with a crash in the middle")
        typer.echo(f"  penstock run {module}.py:pipeline --master 'local[2]'")


def module_of(name: str) -> str:
    """The module of a project. Raises `typer.BadParameter` for a name that cannot be imported, or is taken."""
    module = name.replace("-", "_")
    if not _NAME.fullmatch(name) or keyword.iskeyword(module):
        raise typer.BadParameter(
            f"{name!r} cannot be the name of a project: write lower-case letters, digits, - and _, beginning with a "
            f"letter, such as page_views",
            param_hint=_HINT,
        )
    if module in sys.stdlib_module_names or _is_installed(module):
        raise typer.BadParameter(
            f"a module {module!r} is installed in this Python already, and would be imported instead "
            "of the project's: choose another name",
            param_hint=_HINT,
        )
    return module


def _is_installed(module: str) -> bool:
    found = importlib.util.find_spec(module)
    # A directory of that name, as the one to be made, is a namespace package without any file.
    return found is not None and found.origin is not None


def _require_free(home: Path, shown: str) -> None:
    try:
        is_taken = any(os.scandir(home))
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise OptionError(f"{shown} is a file: choose another name") from None
    if is_taken:
        raise OptionError(f"{shown} is not empty, and nothing is overwritten: choose another name, or remove it")


def write_project(home: Path, project: str, module: str) -> list[str]:
    """Write the files, and return their names."""
    home.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in FILES.items():
        file = home / name.replace("MODULE", module)
        content = text.replace("MODULE", module).replace("PROJECT", project).replace("VERSION", __version__)
        # Never over a file that has appeared meanwhile.
        with file.open("x", encoding="utf-8") as opened:
            opened.write(content)
        written.append(file.name)
    return written
