"""Joins: bids, auctions, people and a table that does not change."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from examples.nexmark.events import DELAY, Events
from penstock import KeyedContext, KeyedFunction, Stream

SIDE_KEYS = 10_000
SIDE_TABLE = pa.table({"key": range(SIDE_KEYS), "value": [f"value {key}" for key in range(SIDE_KEYS)]})


def q3(events: Events) -> Stream:
    """People of three states who sell in category 10, with their auctions."""
    auctions = events.auctions("id", "seller", "category").filter(pc.field("category") == 10)
    people = events.people("id", "name", "city", "state").filter(pc.field("state").isin(["OR", "ID", "CA"]))
    sellers = people.rename({"id": "seller"})
    joined = auctions.key_by("seller").join(sellers.key_by("seller"), state_ttl=None)
    return joined.select("name", "city", "state", "id")


def _offers(events: Events) -> Stream:
    """Bids that came while their auction was open, with the auction."""
    bids = events.bids("auction", "bidder", "price", "date_time").with_watermark("date_time", DELAY)
    auctions = (
        events.auctions("id", "date_time", "expires", "seller", "category")
        .with_watermark("date_time", DELAY)
        .rename({"id": "auction", "date_time": "began"})
    )
    joined = bids.key_by("auction").join(auctions.key_by("auction"), state_ttl=None)
    at = pc.field("date_time")
    return joined.filter((at >= pc.field("began")) & (at <= pc.field("expires")))


def q4(events: Events) -> Stream:
    """Of each category: the mean of the highest prices of its auctions."""
    # A bid that is beaten is deleted from the changelog of the highest ones, and so taken out of the mean.
    return q9(events).key_by("category").aggregate(mean=("mean", "price"))


class Closing(KeyedFunction):
    """The highest price of an auction, which is the key, when it has expired."""

    def open(self, context: KeyedContext) -> None:
        self.best = context.value("best", "price bigint, seller bigint")

    def process(self, key: tuple[object, ...], rows: pa.RecordBatch, context: KeyedContext) -> None:
        price = pc.max(rows["price"]).as_py()
        held = self.best.get()
        if held is None or held[0] < price:
            self.best.update((price, rows["seller"][0].as_py()))
        context.set_timer(rows["expires"].cast(pa.int64())[0].as_py())

    def on_timer(self, key: tuple[object, ...], at: int, context: KeyedContext) -> Iterator[pa.RecordBatch]:
        price, seller = self.best.get() or (None, None)
        self.best.clear()
        columns = {"auction": [key[0]], "seller": [seller], "price": [price], "expires": [at]}
        yield pa.record_batch({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def q6(events: Events) -> Stream:
    """Of each seller: the mean price of the last ten auctions that were sold."""
    schema = "auction bigint, seller bigint, price bigint, expires bigint"
    sold = _offers(events).key_by("auction").process(Closing(), time_mode="event", schema=schema)
    # The last ten by the time at which they have expired.
    return sold.key_by("seller").over(rows=10, on="expires").aggregate(mean=("mean", "price"))


def q9(events: Events) -> Stream:
    """The winning bid of each auction."""
    return _offers(events).key_by("auction").top(1, by="price")


def q13(events: Events) -> Stream:
    """Bids with a value of a table that does not change."""

    def key(batch: pa.RecordBatch) -> pa.Array:
        return pa.array(batch["auction"].to_numpy() % SIDE_KEYS)

    bids = events.bids("auction", "bidder", "price", "date_time").with_column("key", key)
    return bids.join_table(SIDE_TABLE, on="key").drop("key")


def q20(events: Events) -> Stream:
    """Bids for auctions of category 10, with the auction."""
    bids = events.bids("auction", "bidder", "price", "channel", "url", "date_time", "extra")
    auctions = events.auctions().filter(pc.field("category") == 10)
    names = {"id": "auction", "date_time": "began", "extra": "auction_extra"}
    return bids.key_by("auction").join(auctions.rename(names).key_by("auction"), state_ttl=None)


def q23(events: Events) -> Stream:
    """Bids with the person who bids, and all auctions that this person has opened."""
    bids = events.bids("auction", "bidder", "price")
    people = events.people("id", "name", "state").rename({"id": "bidder"})
    auctions = events.auctions("id", "seller", "item_name").rename({"id": "own_auction", "seller": "bidder"})
    known = bids.key_by("bidder").join(people.key_by("bidder"), state_ttl=None)
    return known.key_by("bidder").join(auctions.key_by("bidder"), state_ttl=None)
