"""`penstock.testing.check_sink`: sinks that keep the contract pass, and each way to break it has its own sentence."""

from __future__ import annotations

import importlib
import json
import secrets
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock import CallableSink, Committer, JsonLinesSink, ParquetSink, Sink, SinkWriter
from penstock.testing import ContractBroken, check_sink

# The package passes the function on under the name of its module.
check_sink_module: Any = importlib.import_module("penstock.testing.check_sink")


class Table:
    """A table that survives the driver, with the staging area beside it."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.staged: dict[str, list[dict[str, Any]]] = {}
        self.published: set[str] = set()
        self.newest = 0


TABLES: dict[str, Table] = {}


class GoodSink(Sink):
    """Stages rows under a random name, and publishes each name once."""

    def __init__(self, name: str) -> None:
        self.name = name

    def identity(self) -> dict[str, str]:
        return {"sink": type(self).__name__, "name": self.name}

    def writer(self, subtask: int, generation: int) -> SinkWriter:
        return GoodWriter(self.name, subtask, generation)

    def committer(self) -> Committer | None:
        return GoodCommitter(self.name)


class GoodWriter(SinkWriter):
    def __init__(self, name: str, subtask: int, generation: int) -> None:
        self.table = TABLES.setdefault(name, Table())
        self.prefix = f"{generation}:{subtask}:{secrets.token_hex(4)}"
        self.rows: list[dict[str, Any]] = []
        self.count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def prepare(self) -> Any:
        rows, self.rows = self.rows, []
        if not rows:
            return list
        self.count += 1
        part = f"{self.prefix}:{self.count}"

        def stage() -> list[bytes]:
            self.table.staged[part] = rows
            return [json.dumps(part).encode()]

        return stage


class GoodCommitter(Committer):
    def __init__(self, name: str) -> None:
        self.table = TABLES.setdefault(name, Table())

    def commit(self, checkpoint: int, committables: Any) -> None:
        for payload in committables:
            part = json.loads(payload)
            if part not in self.table.published:
                rows = self.table.staged[part]
                # One statement, as a transaction would be.
                self.table.rows, self.table.published = self.table.rows + rows, self.table.published | {part}

    def discard_uncommitted(self, generation: int) -> None:
        for part in list(self.table.staged):
            if int(part.partition(":")[0]) < generation:
                del self.table.staged[part]


def check(kind: type[Sink], **options: Any) -> None:
    TABLES.clear()
    check_sink(kind, lambda name: TABLES.get(name, Table()).rows, **options)


def with_writer(change: type[SinkWriter]) -> type[Sink]:
    class Changed(GoodSink):
        def writer(self, subtask: int, generation: int) -> SinkWriter:
            return change(self.name, subtask, generation)

    return Changed


def with_committer(change: type[Committer]) -> type[Sink]:
    class Changed(GoodSink):
        def committer(self) -> Committer | None:
            return change(self.name)

    return Changed


def test_a_sink_that_keeps_the_contract_passes() -> None:
    check(GoodSink)


@pytest.mark.parametrize("kind", [ParquetSink, JsonLinesSink])
def test_the_sinks_of_files_keep_the_contract(kind: Any, tmp_path: Path) -> None:
    def read_back(name: str) -> list[dict[str, Any]]:
        files = sorted((tmp_path / name).glob("part-*"))
        if kind is JsonLinesSink:
            return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]

    check_sink(lambda name: kind(tmp_path / name), read_back)


class PublishesAtOnce(GoodWriter):
    def write(self, batch: pa.RecordBatch) -> None:
        self.table.rows += batch.to_pylist()


class CutsLate(GoodWriter):
    """The preparation takes what is there when it runs, and not what was there at the cut."""

    def prepare(self) -> Any:
        self.count += 1
        part = f"{self.prefix}:{self.count}"

        def stage() -> list[bytes]:
            self.table.staged[part], self.rows = self.rows, []
            return [json.dumps(part).encode()]

        return stage


class NamesWithoutGeneration(GoodWriter):
    def __init__(self, name: str, subtask: int, generation: int) -> None:
        super().__init__(name, subtask, generation)
        self.prefix = f"9:{subtask}"

    def prepare(self) -> Any:
        stage = super().prepare()
        return stage if stage is list else lambda: self.merged(stage)

    def merged(self, stage: Any) -> list[bytes]:
        before = self.table.staged.get(f"{self.prefix}:{self.count}", [])
        committables: list[bytes] = stage()
        self.table.staged[f"{self.prefix}:{self.count}"] += before
        return committables


class CloseThrowsAway(GoodWriter):
    def close(self) -> None:
        for part in [part for part in self.table.staged if part.startswith(self.prefix)]:
            self.table.staged[part] = []


class HandsOverText(GoodWriter):
    def prepare(self) -> Any:
        stage = super().prepare()
        return lambda: [payload.decode() for payload in stage()]


class PublishesAgain(GoodCommitter):
    def commit(self, checkpoint: int, committables: Any) -> None:
        for payload in committables:
            self.table.rows += self.table.staged[json.loads(payload)]


class RemembersInMemory(GoodCommitter):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.done: set[bytes] = set()

    def commit(self, checkpoint: int, committables: Any) -> None:
        for payload in committables:
            if payload not in self.done:
                self.done.add(payload)
                self.table.rows += self.table.staged[json.loads(payload)]


class KnowsTheLastOnly(GoodCommitter):
    """A repetition of the newest checkpoint is recognised, one of an older checkpoint is not."""

    def commit(self, checkpoint: int, committables: Any) -> None:
        if checkpoint != self.table.newest:
            rows = [row for payload in committables for row in self.table.staged[json.loads(payload)]]
            self.table.rows, self.table.newest = self.table.rows + rows, checkpoint


class TwoSteps(GoodCommitter):
    """Publishes, and notes it in a second step: a death in between publishes twice."""

    def commit(self, checkpoint: int, committables: Any) -> None:
        for payload in committables:
            part = json.loads(payload)
            if part not in self.table.published:
                self.table.rows = self.table.rows + self.table.staged[part]
                self.table.published.add(part)


class MarksFirst(GoodCommitter):
    """Notes first: a death in between publishes nothing."""

    def commit(self, checkpoint: int, committables: Any) -> None:
        for payload in committables:
            part = json.loads(payload)
            if part not in self.table.published:
                self.table.published.add(part)
                self.table.rows = self.table.rows + self.table.staged[part]


class SweepsAll(GoodCommitter):
    def commit(self, checkpoint: int, committables: Any) -> None:
        if all(json.loads(payload) in {*self.table.staged, *self.table.published} for payload in committables):
            super().commit(checkpoint, committables)

    def discard_uncommitted(self, generation: int) -> None:
        self.table.staged.clear()


class SweepPublishes(GoodCommitter):
    def discard_uncommitted(self, generation: int) -> None:
        self.commit(0, [json.dumps(part).encode() for part in self.table.staged])


class Unpicklable(GoodSink):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lock = threading.Lock()


class ChangingIdentity(GoodSink):
    def identity(self) -> dict[str, str]:
        return {**super().identity(), "token": secrets.token_hex(4)}


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (with_writer(PublishesAtOnce), "rows are visible before their checkpoint is committed"),
        (with_writer(CutsLate), "a commit did not publish exactly the rows in front of the cut"),
        (with_writer(NamesWithoutGeneration), "two writers of one subtask"),
        (with_writer(CloseThrowsAway), "closing a writer lost what a checkpoint names"),
        (with_writer(HandsOverText), "a committable is not bytes"),
        (with_committer(PublishesAgain), "a repeated commit changed the output. "),
        (with_committer(RemembersInMemory), "a repeated commit changed the output when another process made it"),
        (with_committer(KnowsTheLastOnly), "a driver that was cut off"),
        (with_committer(SweepsAll), "discard_uncommitted removed staged output of the generation that runs"),
        (
            with_committer(SweepPublishes),
            "discard_uncommitted changed output that is committed, or published output that never was",
        ),
        (with_committer(TwoSteps), r"a driver that died within a commit, at step \d+ of \d+, .* .*twice"),
        (
            with_committer(MarksFirst),
            r"a driver that died within a commit, at step \d+ of \d+, .* .*missing",
        ),
        (Unpicklable, "it cannot be pickled to the workers"),
        (ChangingIdentity, "its identity differs from one start to the next"),
    ],
)
def test_each_way_to_break_the_contract_is_told_in_its_own_sentence(kind: type[Sink], sentence: str) -> None:
    with pytest.raises(ContractBroken, match=sentence):
        check(kind)


def test_every_planned_death_takes_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check whose faults never happen would pass everything."""
    made: list[Any] = []

    class Noted(check_sink_module._Faults):  # type: ignore[misc]
        def __init__(self, **plan: Any) -> None:
            super().__init__(**plan)
            made.append(self)

    monkeypatch.setattr(check_sink_module, "_Faults", Noted)
    check(GoodSink, deaths_max=4)
    planned = [
        faults
        for faults in made
        if faults.worker_dies or faults.driver_dies or faults.dies_at_line not in (None, sys.maxsize)
    ]
    assert len(planned) >= 10
    # The last trial has three parallelisms, and dies between them and once more.
    assert [faults.deaths for faults in planned] == [0] * len(planned)


def test_a_sink_without_a_committer_is_told_that_it_is_at_least_once() -> None:
    with pytest.raises(ContractBroken, match="at least once"):
        check_sink(lambda name: CallableSink(print), lambda name: [])


def test_the_message_shows_rows_and_a_cure() -> None:
    with pytest.raises(ContractBroken, match=r'came twice, such as \{"n": 0, "text": "row 0"\}.*Recognise by'):
        check(with_committer(PublishesAgain))
