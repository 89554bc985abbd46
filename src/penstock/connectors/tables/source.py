"""A table as a source, whatever its format: all workers begin with one version, and deal its files out to splits."""

from __future__ import annotations

import datetime
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from penstock.connectors.source import Source, SplitReader
from penstock.connectors.tables.arguments import check_splits, number_of_split
from penstock.connectors.tables.reader import TableLog, TableReader
from penstock.errors import PipelineError


class TableSource(Source):
    """Reads one version of a table, and then what later ones bring."""

    in_order = True

    def __init__(self, splits: int) -> None:
        self.split_count = check_splits(type(self).__name__, splits)
        self._log: TableLog | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_log": None}

    def on_start(self) -> None:
        # All workers must begin with one version, whatever is committed while they start: it travels with the source.
        self.start()

    def splits(self) -> Sequence[str]:
        return [f"{number}/{self.split_count}" for number in range(self.split_count)]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        number = number_of_split(self, split, self.split_count)
        first = self.first_version()
        if self._log is None:
            self._log = self.opened_log()
        return TableReader(self._log, number, first, offset)

    @abstractmethod
    def start(self) -> object:
        """Look at the table, once, and fix where to begin. Raises `PipelineError` or `StorageError`."""

    @abstractmethod
    def first_version(self) -> int:
        """The version to begin with."""

    @abstractmethod
    def opened_log(self) -> TableLog:
        """The versions of the table, for all splits of this process."""


def check_time(source: str, as_of: datetime.datetime | None) -> None:
    """Raise `PipelineError` for a time that means another one elsewhere."""
    if as_of is not None and getattr(as_of, "tzinfo", None) is None:
        raise PipelineError(f"{source}: as_of is {as_of!r}: it must be a datetime with a time zone")
