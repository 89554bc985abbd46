"""Running totals by key: every update is emitted, and the last one of a key counts."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from examples.nexmark.events import Events
from penstock import Stream

_PRICE = pc.field("price")
RANKS = {
    "rank1": _PRICE < 10_000,
    "rank2": (_PRICE >= 10_000) & (_PRICE < 1_000_000),
    "rank3": _PRICE >= 1_000_000,
}
"""Bids by their price. An aggregate leaves nulls out: a column that is null elsewhere counts the bids of one rank."""


def _only_where(chosen: pc.Expression, column: str) -> pc.Expression:
    return pc.if_else(chosen, pc.field(column), pc.scalar(pa.scalar(None, pa.int64())))


def _ranked(bids: Stream, *columns: str) -> Stream:
    """The bids with their day, and for each rank and column one more column, as `rank1_price`."""
    for column in columns:
        for rank, chosen in RANKS.items():
            bids = bids.with_column(f"{rank}_{column}", _only_where(chosen, column))
    return bids.with_column("day", pc.field("date_time").cast(pa.date32()))


_BIDS = {"total_bids": "count", **{f"{rank}_bids": ("count", f"{rank}_price") for rank in RANKS}}
_DISTINCT = {
    f"{rank}_{column}s": ("count_distinct", column if rank == "total" else f"{rank}_{column}")
    for column in ("bidder", "auction")
    for rank in ("total", *RANKS)
}


def q15(events: Events) -> Stream:
    """Of each day: the bids, their bidders and their auctions, in all and by rank of price."""
    bids = events.bids("auction", "bidder", "price", "date_time")
    return _ranked(bids, "price", "bidder", "auction").key_by("day").aggregate(**_BIDS, **_DISTINCT)


def q16(events: Events) -> Stream:
    """The same by channel and day, with the minute of the last bid."""
    bids = events.bids("auction", "bidder", "price", "channel", "date_time")
    by_channel = _ranked(bids, "price", "bidder", "auction").key_by("channel", "day")
    totals = by_channel.aggregate(last=("max", "date_time"), **_BIDS, **_DISTINCT)
    return totals.with_column("minute", pc.strftime(pc.field("last"), format="%H:%M")).drop("last")


def q17(events: Events) -> Stream:
    """Of each auction and day: the bids in all and by rank, and their least, greatest, mean and total price."""
    bids = events.bids("auction", "price", "date_time")
    by_auction = _ranked(bids, "price").key_by("auction", "day")
    return by_auction.aggregate(
        **_BIDS, least=("min", "price"), greatest=("max", "price"), mean=("mean", "price"), total=("sum", "price")
    )
