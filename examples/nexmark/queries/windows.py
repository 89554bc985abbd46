"""Windows: of event time, of sessions, and of the clock on the wall."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from examples.nexmark.events import DELAY, Events
from penstock import KeyedContext, KeyedFunction, Stream


class MostBids(KeyedFunction):
    """The rows with the highest count of a window, which is the key: all of them where several have it."""

    def open(self, context: KeyedContext) -> None:
        self.best = context.list("best", "auction bigint, bids bigint")

    def process(self, key: tuple[object, ...], rows: pa.RecordBatch, context: KeyedContext) -> None:
        highest = pc.max(rows["bids"]).as_py()
        held = list(self.best.get())
        if held and held[0][1] > highest:
            return
        found = rows["auction"].filter(pc.equal(rows["bids"], highest)).to_pylist()
        equal = held if held and held[0][1] == highest else []
        self.best.put([*equal, *((auction, highest) for auction in found)])
        # All counts of a window are there when the watermark has passed its end.
        context.set_timer(rows["window_end"].cast(pa.int64())[0].as_py())

    def on_timer(self, key: tuple[object, ...], at: int, context: KeyedContext) -> Iterator[pa.RecordBatch]:
        auctions, bids = zip(*self.best.get(), strict=True)
        self.best.clear()
        yield pa.record_batch({"auction": pa.array(auctions, pa.int64()), "bids": pa.array(bids, pa.int64())})


def q5(events: Events) -> Stream:
    """Every 2 seconds: the auctions with the most bids in the last 10."""
    bids = events.bids("auction", "date_time").with_watermark("date_time", DELAY)
    counts = bids.key_by("auction").window("10 s", every="2 s").count("bids")
    return counts.key_by("window_end").process(MostBids(), time_mode="event", schema="auction bigint, bids bigint")


def q7(events: Events) -> Stream:
    """The bids with the highest price of each 10 seconds."""
    bids = events.bids("auction", "bidder", "price", "date_time", "extra").with_watermark("date_time", DELAY)
    highest = bids.key_by().window("10 s").aggregate(price=("max", "price"), parallelism=1)
    timed = highest.with_watermark("window_end", 0, parallelism=1)
    found = bids.key_by("price").join(timed.key_by("price"), between=("0 s", "10 s"))
    return found.select("auction", "bidder", "price", "date_time", "extra")


def q8(events: Events) -> Stream:
    """People who have opened an auction in the same 10 seconds in which they came."""
    began = pc.floor_temporal(pc.field("date_time"), multiple=10, unit="second")
    people = events.people("id", "name", "date_time").with_watermark("date_time", DELAY)
    auctions = events.auctions("seller", "date_time").with_watermark("date_time", DELAY)
    sellers = auctions.with_column("began", began).drop_duplicates("seller", "began", within="20 s")
    joined = people.key_by("id").join(sellers.rename({"seller": "id"}).key_by("id"), window="10 s")
    return joined.select("id", "name", "began")


def q11(events: Events) -> Stream:
    """The bids of each bidder without a pause of 10 seconds."""
    bids = events.bids("bidder", "date_time").with_watermark("date_time", DELAY)
    return bids.key_by("bidder").session("10 s").count("bids")


def q12(events: Events) -> Stream:
    """The bids of each bidder in 10 seconds of the clock on the wall."""

    def now(batch: pa.RecordBatch) -> pa.Array:
        clock_ms = time.time_ns() // 1_000_000
        return pa.array(np.full(batch.num_rows, clock_ms)).view(pa.timestamp("ms"))

    # A record has the time at which it is read. The delay allows for clocks that are set back a little.
    bids = events.bids("bidder").with_column("now", now).with_watermark("now", "1 s")
    return bids.key_by("bidder").window("10 s").count("bids")
