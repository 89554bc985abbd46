"""A function with state of a user who has her project checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import pyarrow as pa

from penstock import KeyedContext, KeyedFunction, ListState, MapState, ValueState


class Count(KeyedFunction):
    def open(self, context: KeyedContext) -> None:
        self.count = context.value("count", "n bigint")
        self.seen = context.map("seen", "page string", "n bigint", ttl="1 day")
        self.last = context.list("last", "page string")

    def process(self, key: tuple[Any, ...], rows: pa.RecordBatch, context: KeyedContext) -> Iterator[pa.RecordBatch]:
        assert_type(self.count, ValueState)
        assert_type(self.seen, MapState)
        assert_type(self.last, ListState)
        assert_type(self.count.get(), tuple[Any, ...] | None)
        assert_type(self.seen.contains_key(("page",)), bool)
        assert_type(context.watermark, int | None)
        (n,) = self.count.get() or (0,)
        self.count.update((n + rows.num_rows,))
        yield pa.record_batch({"user": [key[0]], "n": [n + rows.num_rows]})
