"""From `module:pipeline` to a pipeline: the user's code is imported here, so whatever it raises is raised here.

The module must be importable by its name in the workers too, because functions travel by reference to their module.
So a file is imported under its own name, from its own directory, and never under a name made up for it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from penstock.errors import PenstockError
from penstock.pipeline import Pipeline

_HINT = "TARGET"
_SIMILARITY_MIN = 0.7


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pipeline, and where its code was found."""

    pipeline: Pipeline
    directories: tuple[str, ...]
    """What the workers need on their path."""
    file: str | None
    """The file of the module, if it is a single one outside of any package."""


def load(target: str) -> Loaded:
    """The pipeline that `target` names. Raises `typer.BadParameter` where it names none.

    What the user's own code raises is a `PenstockError` with the traceback of that code.
    """
    where, colon, attribute = target.rpartition(":")
    if not colon or not where or not attribute:
        raise _wrong(f"{target!r} does not say which pipeline: write module:pipeline, or path/to/file.py:pipeline")
    directories = [os.getcwd()]
    if where.endswith(".py") or os.sep in where:
        file = Path(where).expanduser().resolve()
        directories.insert(0, str(file.parent))
        _put_on_path(directories)
        module = _import_file(where, file)
    else:
        _put_on_path(directories)
        module = _import(where)
    found = _attribute(module, attribute)
    single = getattr(module, "__file__", None) if "." not in module.__name__ else None
    return Loaded(_pipeline(found, target), tuple(directories), None if _is_package(module) else single)


def _wrong(text: str) -> typer.BadParameter:
    return typer.BadParameter(text, param_hint=_HINT)


def _put_on_path(directories: list[str]) -> None:
    sys.path[:0] = [directory for directory in directories if directory not in sys.path]


def _is_package(module: ModuleType) -> bool:
    return hasattr(module, "__path__")


def _import_file(where: str, file: Path) -> ModuleType:
    if not file.is_file():
        raise _wrong(f"there is no file {where}")
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise _wrong(f"{where} cannot be imported as a module: its name must be an identifier and end with .py")
    module = _import(file.stem)
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != file:
        raise _wrong(
            f"{where} has the name of another module, {file.stem} in {found or 'Python itself'}, which would be "
            f"imported in its place: rename the file"
        )
    return module


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _wrong(
                f"there is no module {name!r}, neither in {os.getcwd()} nor among the installed packages. "
                f"For a file write its path: path/to/file.py:pipeline"
            ) from error
        raise _raised(
            f"module {name!r} cannot be imported: it needs {error.name!r}, which is not there", error
        ) from error
    except Exception as error:
        raise _raised(f"module {name!r} raised an error while it was imported", error) from error


def _raised(what: str, error: BaseException) -> PenstockError:
    """The user's error, with the traceback of the user's code and none of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if frame.filename != __file__ and not frame.filename.startswith("<frozen")]
    theirs = [frame for frame in theirs if not frame.filename.startswith(os.path.dirname(importlib.__file__))]
    lines = [*traceback.format_list(theirs), *traceback.format_exception_only(error)]
    return PenstockError(f"{what}\n{''.join(lines).rstrip()}")


def _attribute(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        pass
    pipelines = [found for found, value in vars(module).items() if isinstance(value, Pipeline)]
    near = difflib.get_close_matches(name, [*pipelines, *_functions(module)], 1, _SIMILARITY_MIN)
    hint = f": did you mean {near[0]}?" if near else f": its pipelines are {', '.join(pipelines) or 'none'}"
    raise _wrong(f"module {module.__name__!r} has no {name!r}{hint}")


def _functions(module: ModuleType) -> list[str]:
    """Functions that the module itself defines: what it imports is nobody's pipeline."""
    return [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]


def _pipeline(found: Any, target: str) -> Pipeline:
    if isinstance(found, Pipeline):
        return found
    if not callable(found):
        raise _wrong(f"{target} is not a Pipeline but {_kind(found)}{_forgotten(found)}")
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):
        raise _wrong(f"{target} is a function that needs arguments: it must return a Pipeline without any") from None
    try:
        made = found()
    except Exception as error:
        if isinstance(error, PenstockError):
            raise
        raise _raised(f"{target} raised an error", error) from error
    if not isinstance(made, Pipeline):
        raise _wrong(f"{target}() did not return a Pipeline but {_kind(made)}{_forgotten(made)}")
    return made


def _kind(value: Any) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"


def _forgotten(value: Any) -> str:
    return ": a stream becomes a pipeline with .sink(…)" if hasattr(value, "pipeline") else ""
