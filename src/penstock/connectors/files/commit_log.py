"""The commits of a file sink: which files belong to which checkpoint, and in which order they were published.

A commit renames files one by one, so a listing of the directory may show a part of it. The log says what is whole: when
all files of a checkpoint are in place, one entry is added below `_commits`, under a name that is never used for
anything else. Readers that go by the log see a checkpoint whole or not at all, and it outlives the checkpoint
directory, whose retention knows nothing of readers.

An entry is called `<number>-c<checkpoint>-<digest of the names of its files>.json`. Numbers begin with 1 and have no
gaps. Checkpoint ids would not do as numbers: a pipeline that starts anew beside its old output begins with 1 again.
The rest of the name makes a repeated commit harmless: it is found in the listing, and of two entries that say the
same the first one counts.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from penstock.connectors.files.filesystem import Place
from penstock.errors import StorageError
from penstock.ids import CheckpointId

COMMITS = "_commits"
_UNFINISHED = ".unfinished-"
_ENTRY = re.compile(rf"{COMMITS}/(\d{{12}})-(c(\d+)-[0-9a-f]{{16}})\.json")

BEFORE_THE_LOG = CheckpointId(0)
"""Stands for the checkpoints of all files that were there before the directory had a log."""


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A file, by its name below the directory."""

    name: str
    bytes: int
    rows: int
    """-1 if it was published before the directory had a log."""


@dataclass(frozen=True, slots=True)
class Commit:
    """An entry of the log, as far as its name tells."""

    number: int
    checkpoint: CheckpointId
    mark: str
    name: str


def commits_of(place: Place, directory: str) -> list[Commit]:
    """All commits, in order. Entries at the beginning may have been removed with their files; a gap is an error."""
    entries = []
    for name in sorted(place.files(COMMITS)):
        match = _ENTRY.fullmatch(name)
        if match is not None:
            entries.append(Commit(int(match[1]), CheckpointId(int(match[3])), match[2], name))
    for before, after in itertools.pairwise(entries):
        if after.number > before.number + 1:
            raise StorageError(
                f"{directory}/{COMMITS} has no commit between {before.number} and {after.number}: it "
                "was removed. Put it back, or remove all entries in front of it, and the files that "
                "they name"
            )
    first: dict[str, Commit] = {}
    for entry in entries:
        first.setdefault(entry.mark, entry)
    return list(first.values())


def files_of(place: Place, commit: Commit, directory: str) -> list[CommittedFile]:
    """The files that became visible with a commit."""
    try:
        with place.open(commit.name) as file:
            content = json.loads(file.read())
        return [CommittedFile(each["name"], each["bytes"], each["rows"]) for each in content["files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{directory}/{commit.name} cannot be read: {error}") from error


class CommitLog:
    """Adds the commits of one pipeline. One call at a time, in the order of their checkpoints."""

    def __init__(self, place: Place, directory: str) -> None:
        self._place = place
        self._directory = directory
        self._newest: Commit | None = None

    def add(self, checkpoint: CheckpointId, files: Sequence[CommittedFile], older: Iterable[str]) -> None:
        """Write down that all `files` are in place, unless that was said before. `older` has the names of all files in
        the directory, and is looked at if there is no log yet."""
        mark = _mark(checkpoint, files)
        # Within one driver checkpoints ascend. Where they do not, another one may have said it.
        if self._newest is None or checkpoint <= self._newest.checkpoint:
            known = commits_of(self._place, self._directory)
            self._newest = known[-1] if known else self._first(files, older)
            if any(commit.mark == mark for commit in known):
                return
        self._newest = self._written(self._newest.number + 1 if self._newest is not None else 1, checkpoint, files)

    def discard_unfinished(self) -> None:
        """Remove entries that a crash has left half written."""
        for name in self._place.files(COMMITS):
            if name.startswith(f"{COMMITS}/{_UNFINISHED}"):
                self._place.remove(name)

    def _first(self, files: Sequence[CommittedFile], older: Iterable[str]) -> Commit | None:
        ours = {file.name for file in files}
        sizes = {name: self._place.size(name) for name in older if name not in ours}
        before = [CommittedFile(name, size, -1) for name, size in sorted(sizes.items()) if size is not None]
        return self._written(1, BEFORE_THE_LOG, before) if before else None

    def _written(self, number: int, checkpoint: CheckpointId, files: Sequence[CommittedFile]) -> Commit:
        mark = _mark(checkpoint, files)
        name = f"{COMMITS}/{number:012d}-{mark}.json"
        content = {"checkpoint": checkpoint, "files": [asdict(file) for file in files]}
        # A name for this call alone: a driver that was cut off may be writing the same entry.
        unfinished = f"{COMMITS}/{_UNFINISHED}{number:012d}-{secrets.token_hex(4)}"
        file = self._place.create(unfinished)
        file.write(json.dumps(content).encode())
        self._place.close_durably(file)
        self._place.publish(unfinished, name)
        return Commit(number, checkpoint, mark, name)


def _mark(checkpoint: CheckpointId, files: Sequence[CommittedFile]) -> str:
    names = "\n".join(sorted(file.name for file in files))
    return f"c{checkpoint}-{hashlib.sha256(names.encode()).hexdigest()[:16]}"
