"""Times with and without a zone among rows of Python values: Arrow would make one column of both, without a word."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import DataError
from penstock.user_code import shortened


class TimeZones:
    """Holds every column of timestamps to times that all have a zone, or all have none: those of the first row."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._has_zone: dict[str, bool] = {}

    def check(self, schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> None:
        """Raise `DataError` for the first row that does not fit."""
        for name in (field.name for field in schema if pa.types.is_timestamp(field.type)):
            for number, row in enumerate(rows):
                value = row.get(name)
                if not isinstance(value, datetime.datetime):
                    continue
                has_zone = value.tzinfo is not None
                if self._has_zone.setdefault(name, has_zone) != has_zone:
                    kinds = ("a zone", "none") if has_zone else ("none", "a zone")
                    raise DataError(
                        f"{self._where}: the time '{name}' has {kinds[0]} in row {number} of {len(rows)} in its batch "
                        f"and {kinds[1]} in rows before: {shortened(repr(row))}. Give all of them one, such as "
                        f"value.replace(tzinfo=datetime.timezone.utc)"
                    )
