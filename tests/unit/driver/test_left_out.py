"""Records that windows drop or sources skip are warned of, with their share."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from penstock import Pipeline
from penstock.driver.left_out import LateRows, SkippedInput
from penstock.ids import Generation, WorkerId
from penstock.mailbox.frames import HeartbeatFrame
from penstock.testing import CollectSink, ListSource, run
from tests.unit.mailbox.fake_ports import ManualClock


def beat(worker: int, read: int, late: int) -> HeartbeatFrame:
    return HeartbeatFrame(Generation(1), WorkerId(worker), rows_in=read, rows_late=late)


def test_the_share_is_said_once_a_minute_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    watch = LateRows("views", clock)
    watch.heard(beat(0, 100, 0))
    assert caplog.messages == []
    watch.heard(beat(1, 100, 5))
    watch.heard(beat(1, 200, 50))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("pipeline views: 5 of 200 records (2.5 %) came after their windows")
    clock.advance(60_000)
    watch.heard(beat(0, 100, 0))
    watch.heard(beat(0, 100, 1))
    watch.end()
    assert [message.split(" records")[0] for message in caplog.messages[1:]] == [
        "pipeline views: 50 of 300",
        "pipeline views: 51 of 300",
    ]
    watch.end()
    assert len(caplog.messages) == 3


def test_each_attempt_counts_from_zero(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    watch = LateRows("views", clock)
    watch.heard(beat(0, 10, 5))
    watch.begin_attempt()
    clock.advance(60_000)
    watch.heard(beat(0, 10, 2))
    assert [message.split(" records")[0] for message in caplog.messages] == [
        "pipeline views: 5 of 10",
        "pipeline views: 2 of 10",
    ]


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
    clock = ManualClock()
    watch = SkippedInput("views", clock)
    watch.heard(beat(0, 100, 0))
    assert caplog.messages == []
    skipped = HeartbeatFrame(Generation(1), WorkerId(1), rows_skipped=3, files_skipped=1, first_skipped="a, line 7: no")
    watch.heard(skipped)
    watch.heard(replace(skipped, rows_skipped=4))
    (message,) = caplog.messages
    assert message.startswith("pipeline views: 3 records and 1 files could not be read and were skipped.")
    assert "The first one: a, line 7: no." in message and 'on_error="dead_letter"' in message
    watch.end()
    assert len(caplog.messages) == 2
