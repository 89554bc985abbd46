"""Records that windows drop or sources skip are warned of, with their share."""

from __future__ import annotations

import logging

import pytest

from penstock import Pipeline
from penstock.driver.observation.left_out import LateRows, SkippedInput
from penstock.ids import OperatorName, WorkerId
from penstock.metrics.metric import Metric
from penstock.metrics.received import ReceivedMetrics
from penstock.metrics.registry import Registry
from penstock.metrics.standard import FILES_SKIPPED, LATE, RECORDS_IN, SKIPPED
from penstock.testing import CollectSink, ListSource, run
from tests.unit.mailbox.fake_ports import ManualClock

READ = OperatorName("read")


class Heard:
    """Metrics of two workers, each with a source and with windows behind it."""

    def __init__(self) -> None:
        self.received = ReceivedMetrics()
        self._registries = [Registry(), Registry()]

    def tell(self, worker: int, metric: Metric, value: int) -> None:
        """A worker has counted so many in all."""
        self._registries[worker].of(READ, worker).counter(metric).value = value
        self.received.heard(WorkerId(worker), self._registries[worker].update())


def test_the_share_is_said_once_a_minute_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    clock, heard = ManualClock(), Heard()
    watch = LateRows("views", clock, heard.received, [READ])
    heard.tell(0, RECORDS_IN, 100)
    watch.look()
    assert caplog.messages == []
    heard.tell(1, RECORDS_IN, 100)
    heard.tell(1, LATE, 5)
    watch.look()
    heard.tell(1, RECORDS_IN, 200)
    heard.tell(1, LATE, 50)
    watch.look()
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("pipeline views: 5 of 200 records (2.5 %) arrived after their windows")
    clock.advance(60_000)
    watch.look()
    heard.tell(0, LATE, 1)
    watch.end()
    assert [message.split(" records")[0] for message in caplog.messages[1:]] == [
        "pipeline views: 50 of 300",
        "pipeline views: 51 of 300",
    ]
    watch.end()
    assert len(caplog.messages) == 3


def test_records_that_the_restored_checkpoint_counts_were_told_of(caplog: pytest.LogCaptureFixture) -> None:
    clock, heard = ManualClock(), Heard()
    watch = LateRows("views", clock, heard.received, [READ])
    heard.received.begin_attempt({(READ, 0): {RECORDS_IN.name: 10, LATE.name: 5}})
    watch.begin_attempt()
    watch.look()
    assert caplog.messages == []
    heard.tell(0, LATE, 6)
    watch.look()
    assert [message.split(" records")[0] for message in caplog.messages] == ["pipeline views: 6 of 10"]


def test_a_pipeline_that_drops_records_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"k": 1, "at": at} for at in (0, 10_000, 100, 200)]
    pipeline, sink = Pipeline("views"), CollectSink()
    stream = pipeline.source(ListSource(rows, batch_rows=1)).with_watermark("at", 0)
    stream.key_by("k").window("1 s").count("n").sink(sink)
    with caplog.at_level(logging.WARNING, "penstock"):
        result = run(pipeline)
    assert result.rows_late == 2
    assert any("2 of 4 records (50 %)" in message for message in caplog.messages)


def test_skipped_input_is_said_once_a_minute_with_the_first_example(caplog: pytest.LogCaptureFixture) -> None:
    clock, heard = ManualClock(), Heard()
    watch = SkippedInput("views", clock, heard.received)
    watch.look()
    assert caplog.messages == []
    heard.tell(1, SKIPPED, 3)
    heard.tell(1, FILES_SKIPPED, 1)
    watch.first = "a, line 7: no"
    watch.look()
    heard.tell(1, SKIPPED, 4)
    watch.look()
    (message,) = caplog.messages
    assert message.startswith("pipeline views: 3 records and 1 file could not be read and were skipped.")
    assert "The first one: a, line 7: no." in message and 'on_error="dead_letter"' in message
    watch.end()
    assert len(caplog.messages) == 2
