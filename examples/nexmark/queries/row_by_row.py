"""Questions that each bid answers by itself: expressions and functions of columns, no state."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from examples.nexmark.events import Events
from penstock import Stream

EURO = pc.field("price").cast(pa.decimal128(19, 0)) * pc.scalar(Decimal("0.908"))
"""The price of a bid in another currency, exactly."""

CHANNEL_IDS = {"search": "0", "social": "1", "letter": "2", "radio": "3"}


def q0(events: Events) -> Stream:
    """All bids as they are: the cost of the engine itself."""
    return events.bids()


def q1(events: Events) -> Stream:
    """All bids, with their prices in another currency."""
    return events.bids("auction", "bidder", "price", "date_time", "extra").with_column("price", EURO)


def q2(events: Events) -> Stream:
    """The bids on every 123rd auction."""

    def is_chosen(batch: pa.RecordBatch) -> pa.Array:
        return pa.array(batch["auction"].to_numpy() % 123 == 0)

    return events.bids("auction", "price").filter(is_chosen)


def q10(events: Events) -> Stream:
    """All bids with their day and minute, for files that are read by them."""
    bids = events.bids("auction", "bidder", "price", "date_time", "extra")
    return bids.with_column("day", pc.field("date_time").cast(pa.date32())).with_column("minute", _minute)


def _minute(batch: pa.RecordBatch) -> pa.Array:
    """The minute as a text, which is made once for each minute and not for each row."""
    minutes = pc.floor_temporal(batch["date_time"], unit="minute").dictionary_encode()
    return pc.strftime(minutes.dictionary, "%H:%M").take(minutes.indices)


def q14(events: Events) -> Stream:
    """The bids in a range of prices, with the time of day and the number of times that `extra` has the letter c."""
    hour = pc.hour(pc.field("date_time"))
    by_day = (hour >= 8) & (hour <= 18)
    by_night = (hour <= 6) | (hour >= 20)
    time_of_day = pc.if_else(by_day, "day", pc.if_else(by_night, "night", "other"))
    return (
        events.bids("auction", "bidder", "price", "date_time", "extra")
        .with_column("price", EURO)
        .filter((pc.field("price") > Decimal(1_000_000)) & (pc.field("price") < Decimal(50_000_000)))
        .with_column("time_of_day", time_of_day)
        .with_column("c_count", pc.count_substring(pc.field("extra"), pattern="c"))
    )


def q21(events: Events) -> Stream:
    """The id of each bid's channel: well known, or from the URL. Bids that have neither are left out."""
    bids = events.bids("auction", "bidder", "price", "channel", "url")
    return bids.with_column("channel_id", _channel_id).filter(pc.field("channel_id").is_valid()).drop("url")


def _channel_id(batch: pa.RecordBatch) -> pa.Array:
    known = pc.index_in(batch["channel"], pa.array([*CHANNEL_IDS]))
    from_url = pc.struct_field(pc.extract_regex(batch["url"], r"[?&]channel_id=(?P<id>[^&]*)"), "id")
    return pc.coalesce(pa.array([*CHANNEL_IDS.values()]).take(known), from_url)


def q22(events: Events) -> Stream:
    """The three folders in the URL of each bid."""
    parts = pc.split_pattern(pc.field("url"), pattern="/")
    folders = {f"folder_{number}": pc.list_element(parts, 2 + number) for number in (1, 2, 3)}
    return events.bids("auction", "bidder", "price", "channel", "url").select(
        "auction", "bidder", "price", "channel", **folders
    )
