"""Which files a path stands for, and whether one of them has changed since it was read."""

from __future__ import annotations

import glob
import itertools
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence

from penstock.connectors.files.filesystem import Place, Stamp, place_of
from penstock.errors import DataError

_log = logging.getLogger("penstock")

_UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".crdownload", ".swp", "~", "._COPYING_", ".inprogress")
"""Ends of names that programs give to files which they are still writing."""
_CLOCKS_DIFFER_S = 60


class Changes:
    """What is known in this process of files that change: those that are waited for, and those that were read."""

    def __init__(self) -> None:
        self.read: dict[str, Stamp] = {}
        self._seen: dict[str, tuple[Stamp, float]] = {}
        """The last stamp of each file that is not stable yet, and since when it has that."""
        self._said: set[str] = set()

    def check(self, stamps: Mapping[str, Stamp], path: str) -> None:
        """Raise `DataError` if a file is not what was read. One that is gone has been read, and nobody needs it."""
        for name, before in list(self.read.items()):
            now = stamps.get(name)
            if now is not None and now != before:
                raise DataError(changed(name, path, before, now))

    def stable(self, names: Sequence[str], stamps: Mapping[str, Stamp], stable_for_s: float) -> list[str]:
        """Those of `names` that have not changed for a while."""
        now, wall_ns = time.monotonic(), time.time_ns()
        found = []
        for name in names:
            stamp = stamps[name]
            known, since = self._seen.get(name, (stamp, now))
            since = since if known == stamp else now
            self._seen[name] = stamp, since
            # The clock of the file system may be another one: only a time that is well past counts by itself.
            is_old = bool(stamp.modified_ns) and wall_ns - stamp.modified_ns > 1e9 * (stable_for_s + _CLOCKS_DIFFER_S)
            if now - since >= stable_for_s or is_old or name in self.read:
                found.append(name)
        return found

    def say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s", text)


def changed(name: str, path: str, before: Stamp, now: Stamp) -> str:
    """What to say of a file that is not what was read."""
    sizes = f"it had {before.size} bytes and has {now.size}"
    if before.size == now.size:
        sizes = "it was written again"
    return (
        f"the file '{name}' of {path} has changed since it was read: {sizes}. "
        f"The new content would never be read, so writers must rename complete files into place: write to a name that "
        f"begins with '.', then rename. To read the new content of this file, give it another name and put the old "
        f"file back; on_change='ignore' leaves the new content unread"
    )


def is_hidden(name: str) -> bool:
    """Whether a file, or a directory above it, is not meant to be read: staged, temporary or somebody's own."""
    *directories, base = name.split("/")
    if base.startswith((".", "_")) or base.endswith(_UNFINISHED):
        return True
    return any(part.startswith((".", "_")) and "=" not in part for part in directories)


def elsewhere(place: Place, pattern: re.Pattern[str]) -> str:
    """The files that a path does not stand for although they lie there, and a pattern that finds those below."""
    others = sorted(name for name in place.files() if not pattern.fullmatch(name) and not is_hidden(name))
    if not others:
        return ""
    below = next((name for name in others if "/" in name), None)
    hint = f": for subdirectories use a pattern such as '*/*{os.path.splitext(below)[1]}'" if below else ""
    return f"; {len(others)} other file{'s' * (len(others) > 1)}, such as '{others[0]}', did not match{hint}"


def absolute(path: str | os.PathLike[str]) -> str:
    """A relative path would be another directory in another process."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def fixed_part(path: str) -> str:
    """The path up to the first part that is a pattern: names of files are relative to it."""
    return "/".join(itertools.takewhile(lambda part: not glob.has_magic(part), path.split("/"))) or "/"


def directory_and_pattern(path: str) -> tuple[Place, re.Pattern[str]]:
    """The directory in which all files lie, and what their names must look like."""
    if not glob.has_magic(path):
        place = place_of(path)
        if place.is_file():
            directory, _, name = path.rstrip("/").rpartition("/")
            return place_of(directory or "/" if path.startswith("/") else directory or "."), re.compile(re.escape(name))
        return place, re.compile(r"(?:[^/=]+=[^/]*/)*[^/]+")
    parts = path.split("/")
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    translated = "/".join(_translated(part) for part in parts[fixed:])
    return place_of("/".join(parts[:fixed]) or ("/" if path.startswith("/") else ".")), re.compile(translated)


def _translated(part: str) -> str:
    if part == "**":
        return r"(?:[^/]+/)*[^/]+|[^/]+"
    return "".join({"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char)) for char in part)
