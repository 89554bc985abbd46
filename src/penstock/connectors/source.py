"""The contract of a source: splits that can be read again from a noted position.

A source consists of *splits*, each a sequence of records that can be re-read from any offset it once
reported: a file, a partition of a log, a range of numbers. Splits are the unit of distribution: a
subtask reads the splits that it owns, and after a rescale they are dealt out anew.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from penstock.model.changelog import Changelog


class _EndOfSplit(enum.Enum):
    END = "end of split"


def shown_identity(identity: Mapping[str, str]) -> str:
    """`FileSource(directory='/data/orders', format='parquet')`: only that, because options may hold secrets."""
    name, *settings = identity.items()
    return f"{name[1]}({', '.join(f'{key}={value!r}' for key, value in settings)})"


END_OF_SPLIT: Final = _EndOfSplit.END
"""What `SplitReader.read` returns when nothing will ever follow."""


@dataclass(frozen=True, slots=True)
class Portion:
    """What `SplitReader.read` returns where there is more to say than the records that it has read.

    The counts are totals: they are part of each checkpoint, and are exact over restarts. `job.status` and
    `job.metrics()` have them, and the log warns of skipped input.

    Example:

        class Numbers(Source):
            def splits(self):
                return ["1 2 three 4"]

            def open(self, split, offset):
                return NumbersReader(split.split(), int(offset or 0))

        class NumbersReader(SplitReader):
            def __init__(self, words, position):
                self.words, self.position = words, position

            def read(self, rows_max):
                if self.position == len(self.words):
                    return END_OF_SPLIT
                word = self.words[self.position]
                self.position += 1  # behind the word, whatever becomes of it
                if not word.isdigit():
                    return Portion(rows_skipped=1, example=f"word {self.position}: {word!r} is no number")
                return Portion(pa.record_batch({"n": [int(word)]}))

            def offset(self):
                return str(self.position).encode()

        pipeline = Pipeline("numbers")
        pipeline.source(Numbers()).sink(output)
        result = run(pipeline, crash_after_checkpoints=1)
        assert [row["n"] for row in output.rows()] == [1, 2, 4] and result.rows_skipped == 1
    """

    records: pa.RecordBatch | None = None
    side: Mapping[str, pa.RecordBatch] = field(default_factory=dict)
    """Records of side outputs, by the name of the output: see `Source.side_outputs`."""
    rows_skipped: int = 0
    """Records skipped because they could not be read."""
    files_skipped: int = 0
    """Files that were left out, from where they could not be read."""
    example: str = ""
    """The first skipped record or file: its place, and the reason."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Input of a split that exists and was not returned yet, as far as its reader knows; None for an unknown number.

    Example:

        class Lines(Source):
            def splits(self):
                return ["a b c"]

            def open(self, split, offset):
                return LinesReader(split.split(), int(offset or 0))

        class LinesReader(SplitReader):
            def __init__(self, words, position):
                self.words, self.position = words, position

            def read(self, rows_max):
                if self.position == len(self.words):
                    return END_OF_SPLIT
                self.position += 1
                return pa.record_batch({"word": [self.words[self.position - 1]]})

            def offset(self):
                return str(self.position).encode()

            def backlog(self):
                return Backlog(rows=len(self.words) - self.position)

        pipeline = Pipeline("lines")
        pipeline.source(Lines(), name="lines").sink(output)
        result = run(pipeline)
        assert result.metrics.value("source_backlog_rows", "lines") == 0
    """

    rows: int | None = None
    bytes: int | None = None


class SplitReader(ABC):
    """Reads one split, on the mailbox thread of one worker.

    The trap: `offset` must describe exactly what `read` has returned so far. If it runs ahead, records
    are lost after a failure; if it lags, they come twice.

    Example:

        class Countdown(SplitReader):
            is_bounded = True

            def __init__(self, left):
                self.left = left

            def read(self, rows_max):
                if not self.left:
                    return END_OF_SPLIT
                self.left -= 1
                return pa.record_batch({"left": [self.left]})

            def offset(self):
                return str(self.left).encode()

            def watermark(self):
                return None

            def pause(self):
                pass  # nothing to let go of

            def backlog(self):
                return Backlog(rows=self.left)

            def on_checkpoint_complete(self, offset):
                pass  # nothing to acknowledge

            def close(self):
                pass

        class Countdowns(Source):
            def splits(self):
                return ["3"]

            def open(self, split, offset):
                return Countdown(int(offset or split))

        pipeline = Pipeline("countdown")
        pipeline.source(Countdowns()).sink(output)
        run(pipeline)
        assert [row["left"] for row in output.rows()] == [2, 1, 0]
    """

    @abstractmethod
    def read(self, rows_max: int) -> pa.RecordBatch | Portion | _EndOfSplit | None:
        """Up to about `rows_max` records, None if there are none right now, or `END_OF_SPLIT`.

        A `Portion` has records for side outputs too, or counts records that were left out. `offset` is behind all of
        it.

        Must not block for longer than a few milliseconds: checkpoints wait for it.
        """

    @abstractmethod
    def offset(self) -> bytes:
        """The position right behind the last record returned, as JSON for `Source.open`."""

    def watermark(self) -> int | None:
        """Lower bound on the event time (ms) of all later records of this split; None if unknown.

        Asked for only if the pipeline takes event time from no column of the records.
        """
        return None

    def backlog(self) -> Backlog | None:
        """The unread input of this split, for metrics; None if unknown.

        Called on the mailbox thread about once a second, for each split: return a number that is at hand.
        """
        return None

    is_bounded: bool = False
    """Whether the split has an end that is known: then it never counts as idle."""

    is_caught_up: bool = True
    """False while the split is known, or may be thought, to have records that `read` has not returned yet. Such a split
    does not become idle, however long its records take to come: they would be late."""

    may_leave: bool = True
    """False while it would be a waste to read another split first, because much would have to be read again."""

    def pause(self) -> None:
        """Other splits have their turn: release files and buffers. `read` may be called again at any time."""

    def on_checkpoint_complete(self, offset: bytes) -> None:
        """A checkpoint that holds `offset`, once returned by this reader, is durable: nobody needs what is before it.

        Called on the mailbox thread, in order, though not for every checkpoint: each call covers all before it. A
        crash may come first, so that the next reader is told instead, perhaps of the same offset again. Must neither
        block nor raise. The trap: a savepoint, or an older checkpoint that is restored by hand, still points to
        where it did; a source that throws away what is durable cannot go back there.
        """

    def close(self) -> None:
        """Called once, also after a failure."""


class Source(ABC):
    """Describes a source. It is pickled to the workers: open files and connections in `open`, not here.

    Example:

        class Letters(Source):
            def identity(self):
                return {**super().identity(), "version": "1"}

            def on_start(self):
                pass  # in the driver: look at the input once, for all workers

            def on_restore(self, splits):
                pass  # in the workers: the splits that the checkpoint knows, with their offsets

            def splits(self):
                return ["abc", "xyz"]

            def open(self, split, offset):
                return LettersReader(split, int(offset or 0))

        class LettersReader(SplitReader):
            def __init__(self, letters, position):
                self.letters, self.position = letters, position

            def read(self, rows_max):
                letters = self.letters[self.position : self.position + rows_max]
                self.position += len(letters)
                return pa.record_batch({"letter": list(letters)}) if letters else END_OF_SPLIT

            def offset(self):
                return str(self.position).encode()

        pipeline = Pipeline("letters")
        pipeline.source(Letters()).sink(output)
        run(pipeline, crash_after_checkpoints=1)
        assert sorted(row["letter"] for row in output.rows()) == list("abcxyz")
    """

    splits_may_appear: bool = False
    """Whether `splits` is called again periodically while the pipeline runs."""

    is_endless: bool = False
    """Whether its input never ends, so that operators that wait for the end are refused behind it."""

    changelog: Changelog | None = None
    """The kind of changelog that its records are, by their column `op`: "retracting" or "upserting"; None for none."""

    side_outputs: tuple[str, ...] = ()
    """Names of the outputs that its readers have besides the main one. Each must be read in the pipeline."""

    in_order: bool = False
    """Whether splits are read one after the other, in the order of `splits`, rather than in turns.

    Where event time comes from a column of the records, the split that is furthest behind is read first, in any case.
    """

    def identity(self) -> Mapping[str, str]:
        """Settings, by name, that the meaning of splits and offsets depends on. Called when the pipeline is described.

        A checkpoint that has positions of this source is refused if one of them has changed: another directory whose
        files have the same names would be skipped as far as the old one was read. A source without a name gets one that
        is made of them. The trap: checkpoints are read by
        many, so a password does not belong here; and a class of your own that is renamed keeps its identity only if
        this method keeps it.
        """
        return {"source": type(self).__name__}

    def __repr__(self) -> str:
        return shown_identity(self.identity())

    def on_restore(self, splits: Mapping[str, bytes]) -> None:
        """A checkpoint is restored that has these offsets, by the names of their splits; none for a new pipeline.

        Called in the workers before `open`. A split that is not among them has appeared since: it is to be read from
        its first record.
        """

    def on_start(self) -> None:
        """Called in the driver, once for each start of the pipeline, before the source travels to the workers.

        The place to look at the input, and to fix everything on which all workers must agree. An error ends the start.
        """

    @abstractmethod
    def splits(self) -> Sequence[str]:
        """Names of the splits that exist now. Every worker must get the same answer, in the same order."""

    @abstractmethod
    def open(self, split: str, offset: bytes | None) -> SplitReader:
        """Start to read `split` at `offset`, or from its beginning if None."""
