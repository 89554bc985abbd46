"""Arguments that the table sinks share, checked when the sink is described."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from penstock.connectors.files.latest import columns_of
from penstock.errors import IncompatibleCheckpoint, PipelineError


def check_mode(sink: str, mode: str, key: str | Sequence[str] | None, by: str | None) -> tuple[str, ...]:
    """The columns of the key, none for `append`. Raises `PipelineError`."""
    if mode not in ("append", "upsert"):
        raise PipelineError(f"{sink}: mode is {mode!r}: it must be 'append' or 'upsert'")
    if mode == "append":
        if key is not None or by is not None:
            raise PipelineError(f"{sink}: key and by belong to mode='upsert'; with mode='append' every row is added")
        return ()
    names = columns_of(key) if key else ()
    if not names or not all(names):
        raise PipelineError(f"{sink}: mode='upsert' needs key='id', or a list of columns, and not {key!r}")
    return names


def required(package: str, extra: str, user: str) -> Any:
    """Import an optional package. Raises `PipelineError` with the way to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise PipelineError(
            f"{user} needs the package {package.partition('.')[0]}, here and on the workers: "
            f"pip install 'penstock[{extra}]' ({error})"
        ) from error


def check_splits(source: str, splits: int) -> int:
    """The number of splits. Raises `PipelineError`."""
    if splits < 1:
        raise PipelineError(f"{source}: splits is {splits}: it must be at least 1")
    return splits


def number_of_split(source: object, split: str, count: int) -> int:
    """The number of a split that is named "3/8". Raises `IncompatibleCheckpoint` if there are others now."""
    number, _, known = split.partition("/")
    if int(known) != count:
        raise IncompatibleCheckpoint(f"{source!r}: the checkpoint has {known} splits: set splits={known} again")
    return int(number)
