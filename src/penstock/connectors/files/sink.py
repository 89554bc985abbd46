"""What sinks that write files have in common: exactly-once output by staging and renaming.

A writer stages files in `<directory>/_staging`. A checkpoint closes and syncs them and hands over their names; when it
is durable, the driver renames them into the directory. Readers see a file complete or not at all, and Spark, like
others, passes over names that begin with an underscore. A log of commits says which files are a whole checkpoint
(`commit_log.py`). Final names are never used twice: a generation, a subtask, a
count, and a random part, so that a pipeline that starts anew writes beside its old output and never over it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.columnar.schemas.schema_diff import differences
from penstock.connectors.files.commit_log import CommitLog, CommittedFile
from penstock.connectors.files.filesystem import Place, address_of, place_of
from penstock.connectors.files.latest import LatestWriter, check_upsert
from penstock.connectors.files.partitioning import Partitioner, partition_fields
from penstock.connectors.sink import Committer, Prepared, Sink, SinkWriter
from penstock.errors import DataError, OptionError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.model.units import Size, size_bytes

STAGING = "_staging"
ROLL_SIZE = "256 MiB"
OPEN_PARTITIONS_MAX = 256
"""Each has an open file, and rows that wait to be encoded."""
_STAGED = re.compile(r"_staging/g(\d+)-\d+-\d+-[0-9a-f]+\.[a-z0-9.]+")
_FINAL = re.compile(r"(?:[^/=]+=[^/]+/)*part-g\d+-\d+-\d+-[0-9a-f]+\.[a-z0-9.]+")


def require_codec(sink: str, compression: str, known: Sequence[str]) -> None:
    """Raises `OptionError` for a compression that a sink does not have."""
    if compression not in known:
        raise OptionError(f"{sink}: compression must be one of {', '.join(known)}, not {compression!r}")


class Encoder(ABC):
    """Encodes the batches of one file."""

    def __init__(self, file: Any, schema: pa.Schema) -> None:
        self.file = file
        self.schema = schema

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """Write what is still held, and the end of the file. The file itself is closed by others."""

    def discard(self) -> None:
        """Nobody wants the file any more."""


class FileSink(Sink):
    """Base of the sinks that write files. `roll_size`: a file that has become this large is followed by another one;
    every checkpoint ends the files it finds open, so that its interval bounds them too.

    `upsert` and `by` are for updates: of all rows of a checkpoint that agree in the columns `upsert`, each subtask
    writes the one that is highest in the column `by`. Older checkpoints have older rows, which stay: `read_latest`
    finds the current ones.

    `partition_by` divides the rows among directories such as `country=NL/at_hour=2026-01-01-05`: names of columns,
    which are in the path and not in the files then, and `year(at)`, `month(at)`, `day(at)` or `hour(at)` of a time, in
    UTC. Each subtask writes one file or more for each directory and checkpoint: put `key_by` with the columns of the
    path in front if that makes too many.

    The trap: one pipeline for one directory. A pipeline that starts removes what older generations have staged there
    and never committed, and cannot tell whether it was its own.
    """

    suffix: str

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        roll_size: Size = ROLL_SIZE,
        partition_by: str | Sequence[str] = (),
        upsert: str | Sequence[str] | None = None,
        by: str | None = None,
    ) -> None:
        self.partition_fields = partition_fields(type(self).__name__, partition_by)
        self.upsert, self.by = check_upsert(type(self).__name__, upsert, by), by
        self.directory = os.fspath(directory)
        if "://" not in self.directory:
            # A relative path would be another directory in another process.
            self.directory = os.path.abspath(os.path.expanduser(self.directory))
        self.roll_bytes = size_bytes(f"{type(self).__name__}: roll_size", roll_size)
        place_of(self.directory)

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), "directory": address_of(self.directory)}

    @abstractmethod
    def encoder(self, file: Any, schema: pa.Schema) -> Encoder: ...

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        writer = FileWriter(self, subtask, generation)
        return writer if self.by is None else LatestWriter(writer, self.upsert, self.by)

    def committer(self) -> Committer:
        return FileCommitter(place_of(self.directory), self.directory)


class _Part:
    """One file in the making."""

    def __init__(self, sink: FileSink, place: Place, directory: str, name: str, schema: pa.Schema) -> None:
        self._place = place
        self._sink = sink
        self.staged = f"{STAGING}/{name}.{sink.suffix}"
        self.final = f"{directory}part-{name}.{sink.suffix}"
        self.schema = schema
        self._file = place.create(self.staged)
        self._encoder = sink.encoder(self._file, schema)
        self._rows = 0
        self._error: Exception | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        self._encoder.write(batch)
        self._rows += batch.num_rows

    @property
    def is_full(self) -> bool:
        return bool(self._file.tell() >= self._sink.roll_bytes)

    def finish(self) -> bytes:
        """Make it durable, in the background, and return its committable."""
        if self._error is not None:
            # Half a file was closed: closing it again would pass it off as a whole one.
            raise self._error
        try:
            self._encoder.finish()
            self._place.close_durably(self._file)
            size = self._place.size(self.staged)
        except Exception as error:
            self._error = StorageError(f"{self._sink.directory}/{self.staged} cannot be written: {error}")
            raise self._error from error
        return json.dumps({"staged": self.staged, "final": self.final, "bytes": size, "rows": self._rows}).encode()

    def discard(self) -> None:
        self._encoder.discard()
        self._file.close()
        self._place.remove(self.staged)


class FileWriter(SinkWriter):
    """Writes the files of one subtask."""

    def __init__(self, sink: FileSink, subtask: int, generation: Generation) -> None:
        self._sink = sink
        self._prefix = f"g{generation}-{subtask}"
        self._token = secrets.token_hex(4)
        self._place = place_of(sink.directory)
        self._count = 0
        self._open: dict[str, _Part] = {}
        """By their directories; that of the sink itself is the empty string."""
        self._partitioner = Partitioner(sink.partition_fields, sink.directory) if sink.partition_fields else None
        self._full: list[_Part] = []
        self._schema: pa.Schema | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self._schema is None:
            self._schema = batch.schema.remove_metadata()
        elif not batch.schema.equals(self._schema):
            said = differences(self._schema, batch.schema)
            if said:
                raise DataError(
                    f"the schema of the output in {self._sink.directory} changed from one batch to the next: "
                    f"{said}. Cast to one type in front of the sink"
                )
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        if self._partitioner is None:
            self._write("", batch)
            return
        for directory, rows in self._partitioner.divided(batch):
            self._write(directory, rows)

    def _write(self, directory: str, rows: pa.RecordBatch) -> None:
        part = self._open.get(directory)
        if part is None:
            self._require_room()
            self._count += 1
            name = f"{self._prefix}-{self._count}-{self._token}"
            part = self._open[directory] = _Part(self._sink, self._place, directory, name, rows.schema)
        part.write(rows)
        if part.is_full:
            self._full.append(self._open.pop(directory))

    def _require_room(self) -> None:
        if len(self._open) >= OPEN_PARTITIONS_MAX:
            raise DataError(
                f"the rows of one checkpoint go to more than {OPEN_PARTITIONS_MAX} partitions of "
                f"{self._sink.directory}, each a file of one subtask: partition by columns with fewer values, or put "
                f"key_by in front of the sink"
            )

    def prepare(self) -> Prepared:
        parts = [*self._full, *self._open.values()]
        self._full, self._open = [], {}
        finished: dict[int, bytes] = {}

        def finish() -> Sequence[bytes]:
            for number, part in enumerate(parts):
                if number not in finished:
                    finished[number] = part.finish()
            return [finished[number] for number in range(len(parts))]

        return finish

    def close(self) -> None:
        """What was handed over stays: a checkpoint may name it."""
        for part in [*self._full, *self._open.values()]:
            part.discard()
        self._full, self._open = [], {}


class FileCommitter(Committer):
    """Renames staged files into their directory, and writes down the commit."""

    def __init__(self, place: Place, directory: str) -> None:
        self._place = place
        self._directory = directory
        self._log = CommitLog(place, directory)

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        published = [self._publish(checkpoint, json.loads(payload)) for payload in committables]
        if published:
            # Last: a reader of the log takes the files of an entry for whole.
            self._log.add(checkpoint, published, self._published())

    def _published(self) -> Iterator[str]:
        yield from (name for name in self._place.files() if _FINAL.fullmatch(name))

    def _publish(self, checkpoint: CheckpointId, committable: dict[str, Any]) -> CommittedFile:
        staged, final, size = committable["staged"], committable["final"], committable["bytes"]
        if not _STAGED.fullmatch(staged) or not _FINAL.fullmatch(final):
            raise StorageError(
                f"checkpoint {checkpoint} is to publish '{staged}' as '{final}', which "
                "are no names of this sink: its manifest was edited or damaged"
            )
        if self._place.size(final) == size:
            # Published before the last crash. A move that is a copy may have left the staged file behind.
            self._place.remove(staged)
        elif self._place.size(staged) == size:
            self._place.publish(staged, final)
        else:
            raise StorageError(
                f"checkpoint {checkpoint} is to publish {self._directory}/{staged}, but neither it "
                f"nor {final} is there with {size} bytes: the file was removed or changed. Put it "
                "back, or start from another checkpoint with restore=…"
            )
        return CommittedFile(final, size, committable["rows"])

    def discard_uncommitted(self, generation: Generation) -> None:
        for name in self._place.files(STAGING):
            match = _STAGED.fullmatch(name)
            if match is not None and int(match[1]) < generation:
                self._place.remove(name)
        self._log.discard_unfinished()
