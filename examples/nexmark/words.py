"""Word lists and pools of texts: the i-th text of a pool is a function of i alone."""

from __future__ import annotations

FIRST_NAMES = (
    "Ada",
    "Bea",
    "Cem",
    "Dov",
    "Edo",
    "Fay",
    "Gus",
    "Hal",
    "Ida",
    "Jan",
    "Kim",
    "Lou",
    "Mia",
    "Ned",
    "Ola",
    "Pia",
)
LAST_NAMES = (
    "Abel",
    "Brook",
    "Castro",
    "Dunn",
    "Eck",
    "Frost",
    "Garcia",
    "Holm",
    "Ito",
    "Jones",
    "Kovac",
    "Lund",
    "Moss",
)
PLACES = (
    ("Portland", "OR"),
    ("Salem", "OR"),
    ("Boise", "ID"),
    ("Sacramento", "CA"),
    ("Fresno", "CA"),
    ("Reno", "NV"),
    ("Provo", "UT"),
    ("Spokane", "WA"),
    ("Tucson", "AZ"),
    ("Casper", "WY"),
)
KINDS = ("old", "rare", "small", "green", "quiet", "heavy", "round", "signed")
THINGS = ("clock", "lamp", "chair", "map", "camera", "vase", "coin", "violin", "kettle", "atlas", "cabinet", "compass")

HOT_CHANNELS = ("search", "social", "letter", "radio")
"""Half of all bids come from these. The URLs of the others name their channel."""
OTHER_CHANNELS = 10_000
_UNNAMED_EVERY = 10
"""One in ten of the other channels has a URL that does not name it."""

_MASK = (1 << 64) - 1
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def mixed(value: int) -> int:
    """64 bits that look random. The generator has the same function for columns."""
    value &= _MASK
    value ^= value >> 32
    value = value * 0xD6E8FEB86659FD93 & _MASK
    value ^= value >> 29
    value = value * 0x9E3779B97F4A7C15 & _MASK
    return value ^ value >> 32


def letters(pool: int, number: int, length: int) -> str:
    """Letters of the text `number` of a pool: ten of each 64 bits, by division."""
    found: list[str] = []
    while len(found) < length:
        bits = mixed((pool << 48) + (number << 16) + len(found))
        for _ in range(min(10, length - len(found))):
            bits, letter = divmod(bits, 26)
            found.append(_LETTERS[letter])
    return "".join(found)


def fillers(pool: int, shortest: int, longest: int, count: int = 512) -> list[str]:
    """Texts of letters, of every length from `shortest` to `longest`."""
    return [letters(pool, number, shortest + number % (longest - shortest + 1)) for number in range(count)]


def names() -> list[str]:
    return [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]


def email_addresses() -> list[str]:
    return [f"{letters(1, number, 7)}@{letters(2, number, 5)}.example" for number in range(1024)]


def credit_cards() -> list[str]:
    return [
        " ".join(f"{mixed((3 << 48) + 4 * number + part) % 10_000:04}" for part in range(4)) for number in range(1024)
    ]


def items() -> list[str]:
    return [f"{kind} {thing}" for kind in KINDS for thing in THINGS]


def channels() -> list[str]:
    return [*HOT_CHANNELS, *(f"channel-{number}" for number in range(OTHER_CHANNELS))]


def urls() -> list[str]:
    """The URL of each channel, in the order of `channels`."""
    found = []
    for number in range(len(HOT_CHANNELS) + OTHER_CHANNELS):
        folders = "/".join(letters(4 + part, number, 5) for part in range(3))
        other = number - len(HOT_CHANNELS)
        is_named = other >= 0 and other % _UNNAMED_EVERY > 0
        suffix = f"&channel_id={mixed(other) % 1_000_000}" if is_named else ""
        found.append(f"https://auction.example/{folders}/item?page=1{suffix}")
    return found
