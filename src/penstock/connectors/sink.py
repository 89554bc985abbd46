"""The contract of a sink: writers that stage output, and a committer that publishes it.

Exactly once needs two phases. Writers, one per subtask, stage what they are given and hand over
*committables* with every checkpoint. When the checkpoint is durable, the driver, and only the driver,
commits them; after a crash it commits them again. So a committable must say all that is needed to
publish it from another process, and publishing it twice must do no harm (I4).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa

from penstock.connectors.source import shown_identity
from penstock.ids import CheckpointId, Generation

Prepared: TypeAlias = Callable[[], Sequence[bytes]]
"""Runs in a background thread; makes the staged output durable and returns its committables."""


def nothing_prepared() -> Sequence[bytes]:
    """What `SinkWriter.prepare` returns if there is nothing to hand over: known by its identity, and not called.

    Example:

        class Nowhere(SinkWriter):
            def write(self, batch):
                pass

            def prepare(self):
                return nothing_prepared

        assert Nowhere().prepare() is nothing_prepared
    """
    return ()


class SinkWriter(ABC):
    """Stages the output of one subtask.

    Example:

        class Appended(Sink):
            # A file for each subtask, at least once.

            def writer(self, subtask, generation):
                return AppendedWriter(open(f"part-{subtask}", "ab"))

        class AppendedWriter(SinkWriter):
            def __init__(self, file):
                self.file, self.waiting = file, []

            def write(self, batch):
                self.waiting += [b"%d " % amount for amount in batch["amount"].to_pylist()]

            @property
            def wants_input(self):
                return len(self.waiting) < 10_000

            def prepare(self):
                self.file.writelines(self.waiting)
                self.waiting = []
                return nothing_prepared

            def close(self):
                self.file.close()

        orders.sink(Appended())
        run(pipeline)
        assert Path("part-0").read_text() == "10 20 30 "
    """

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Stage records. Must not publish them."""

    @property
    def wants_input(self) -> bool:
        """False while it has as much in hand as it can take: its input waits in the channels then, where a barrier can
        overtake it. It is asked after each `write`, and every few milliseconds until it is True again."""
        return True

    @abstractmethod
    def prepare(self) -> Prepared:
        """Cut: what was written so far belongs to this checkpoint, what follows to a later one.

        Returns at once; flushing and syncing belong into the returned function. The trap: that function
        runs while `write` goes on, so it must own what it works on. If there is nothing to hand over, return
        `nothing_prepared`: then nobody has to wait for a thread.
        """

    def close(self) -> None:
        """Called once, also after a failure. What was never handed over is lost, and is replayed."""


class Committer(ABC):
    """Publishes committables, in the driver.

    Within one driver there is one call at a time, in ascending order of checkpoints, and a call that is under way when
    the pipeline restarts is waited for. A call that never returns ends the pipeline with an error: give clients of
    remote services a timeout.

    The trap is two drivers on one checkpoint directory: one that was cut off from the world and does not know yet that
    another has taken over. A `commit` that the older one had begun may take effect late: beside or after those of the
    newer one, which has committed the same checkpoint again and later ones too. No lock in this process can prevent
    that. A sink is safe if its effect does not depend on the order of calls (files with unique names, an upsert
    by a key that the committable holds), or if the service itself decides: one transaction that publishes only if no
    checkpoint with this id or a higher one was published before, and that writes down this id. To look first and to
    publish then, in two steps, is not safe.

    Example:

        class Renamed(Committer):
            # Files that a writer has staged below `_staging`; their names are the committables.

            def commit(self, checkpoint, committables):
                for name in committables:
                    staged = Path("_staging") / name.decode()
                    if staged.exists():  # else it was published before the last crash
                        staged.rename(name.decode())

            def discard_uncommitted(self, generation):
                for staged in Path("_staging").glob("*"):
                    staged.unlink()

        Path("_staging").mkdir()
        Path("_staging/orders").touch()
        committer = Renamed()
        committer.commit(1, [b"orders"])
        committer.commit(1, [b"orders"])  # again, after a crash
        committer.discard_uncommitted(2)
        assert Path("orders").exists()
        orders.sink(output)
    """

    @abstractmethod
    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        """Publish. Called again with the same arguments after a crash or an error; then it changes nothing."""

    def discard_uncommitted(self, generation: Generation) -> None:
        """Remove what was staged by generations before `generation` and never committed.

        Called at the start of a generation, after everything that a checkpoint names has been committed.
        """


class Sink(ABC):
    """Describes a sink. It is pickled to the workers: open files and connections in the writer.

    Example:

        import json

        class Table(Sink):
            def identity(self):
                return {**super().identity(), "table": "orders"}

            def writer(self, subtask, generation):
                return TableWriter()

            def committer(self):
                return TableCommitter()

        class TableWriter(SinkWriter):
            def __init__(self):
                self.rows = []

            def write(self, batch):
                self.rows += batch.to_pylist()

            def prepare(self):
                rows, self.rows = self.rows, []
                return lambda: [json.dumps(rows).encode()]

        class TableCommitter(Committer):
            def commit(self, checkpoint, committables):
                table[checkpoint] = [row for each in committables for row in json.loads(each)]

        table = {}
        orders.sink(Table())
        run(pipeline)
        assert sum(len(rows) for rows in table.values()) == 3
    """

    requires_alignment: bool = False
    """True for a sink that publishes from its own input instead of handing over committables."""

    is_upsert: bool = False
    """Whether a record takes the place of the row with the same key. Then its input may be a changelog with one change
    for each key (`to_upsert`), and not one with deletes and inserts, of which the insert may arrive first."""

    outlives_driver: bool = True
    """False for a sink whose output ends with the driver: then no other driver can publish it in the wrong place."""

    def identity(self) -> Mapping[str, str]:
        """Settings, by name, that committables depend on. Called when the pipeline is described.

        A checkpoint with output that is not published yet is refused if one of them has changed: the new committer
        would not find the output. A sink without a name gets one that is made of them. As in `Source.identity`, no
        passwords.
        """
        return {"sink": type(self).__name__}

    def __repr__(self) -> str:
        return shown_identity(self.identity())

    @abstractmethod
    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        """The writer for one subtask of one generation. Two generations may overlap for a moment: name
        what is staged after both numbers, so that they never touch the same thing."""

    def committer(self) -> Committer | None:
        """The committer, or None for a sink that has nothing to publish (at least once)."""
        return None
