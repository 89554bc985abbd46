"""The last, and the highest, of each key."""

from __future__ import annotations

from examples.nexmark.events import Events
from penstock import Stream


def q18(events: Events) -> Stream:
    """The last bid of each bidder on each auction."""
    bids = events.bids("auction", "bidder", "price", "channel", "url", "date_time", "extra")
    return bids.key_by("bidder", "auction").top(1, by="date_time")


def q19(events: Events) -> Stream:
    """The ten highest bids of each auction."""
    bids = events.bids("auction", "bidder", "price", "channel", "url", "date_time", "extra")
    return bids.key_by("auction").top(10, by="price")
