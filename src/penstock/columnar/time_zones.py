"""Times with and without a zone among rows of Python values: Arrow would make one column of both, without a word."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

import pyarrow as pa

from penstock.errors import DataError
from penstock.user_code import shortened


class TimeZones:
    """Holds every column of timestamps to times that all have a zone, or all have none: those of the first row."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.found: dict[str, bool] = {}
        """By column, whether its times have a zone."""

    def check(self, schema: pa.Schema, columns: Sequence[Sequence[object]], rows: Sequence[object]) -> None:
        """Raise `DataError` for the first row that does not fit. `columns` are those of the schema, in its order."""
        for field, column in zip(schema, columns, strict=True):
            if pa.types.is_timestamp(field.type):
                self._check_column(field.name, column, rows)

    def _check_column(self, name: str, column: Sequence[object], rows: Sequence[object]) -> None:
        zones = [value.tzinfo is not None for value in column if isinstance(value, datetime.datetime)]
        if not zones:
            return
        expected = self.found.setdefault(name, zones[0])
        if zones.count(expected) == len(zones):
            return
        number = next(
            number
            for number, value in enumerate(column)
            if isinstance(value, datetime.datetime) and (value.tzinfo is not None) != expected
        )
        here, before = ("no time zone", "one") if expected else ("a time zone", "none")
        raise DataError(
            f"{self._where}: the time '{name}' has {here} in row {number} of {len(rows)} in its batch, and had "
            f"{before} in earlier rows: {shortened(repr(rows[number]))}. Give every time a zone, such as "
            f"value.replace(tzinfo=datetime.timezone.utc)"
        )

    def agree(self, found: Mapping[str, bool]) -> None:
        """Raise `DataError` if rows elsewhere were found to have zones where those here have none, or the other way."""
        for name, has_zone in found.items():
            if self.found.setdefault(name, has_zone) != has_zone:
                raise DataError(
                    f"{self._where}: the time '{name}' has a zone in some rows and none in others. Give all of "
                    f"them one, such as value.replace(tzinfo=datetime.timezone.utc)"
                )
