"""Running totals by key: every update is emitted, and the last one of a key counts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from examples.nexmark.events import Events
from penstock import Stream, filtered

_PRICE = pc.field("price")
RANKS = {
    "rank1": _PRICE < 10_000,
    "rank2": (_PRICE >= 10_000) & (_PRICE < 1_000_000),
    "rank3": _PRICE >= 1_000_000,
}
"""Bids by their price."""

_BIDS = {"total_bids": "count", **{f"{rank}_bids": filtered("count", where=chosen) for rank, chosen in RANKS.items()}}
_DISTINCT = {
    f"{rank}_{column}s": filtered("count_distinct", column, where=chosen)
    for column in ("bidder", "auction")
    for rank, chosen in RANKS.items()
} | {"total_bidders": ("count_distinct", "bidder"), "total_auctions": ("count_distinct", "auction")}
_DAY = pc.field("date_time").cast(pa.date32())


def q15(events: Events) -> Stream:
    """Of each day: the bids, their bidders and their auctions, in all and by rank of price."""
    bids = events.bids("auction", "bidder", "price", "date_time")
    return bids.with_column("day", _DAY).key_by("day").aggregate(**_BIDS, **_DISTINCT)


def q16(events: Events) -> Stream:
    """The same by channel and day, with the minute of the last bid."""
    bids = events.bids("auction", "bidder", "price", "channel", "date_time")
    by_channel = bids.with_column("day", _DAY).key_by("channel", "day")
    totals = by_channel.aggregate(last=("max", "date_time"), **_BIDS, **_DISTINCT)
    return totals.with_column("minute", pc.strftime(pc.field("last"), format="%H:%M")).drop("last")


def q17(events: Events) -> Stream:
    """Of each auction and day: the bids in all and by rank, and their least, greatest, mean and total price."""
    bids = events.bids("auction", "price", "date_time")
    by_auction = bids.with_column("day", _DAY).key_by("auction", "day")
    return by_auction.aggregate(
        **_BIDS, least=("min", "price"), greatest=("max", "price"), mean=("mean", "price"), total=("sum", "price")
    )
