"""What is shown of a running pipeline."""

from __future__ import annotations

import datetime
import io
from dataclasses import replace

import pytest
from rich.console import Console

from penstock.cli.progress.displays import LiveDisplay, PlainDisplay, QuietDisplay, panel_of
from penstock.cli.progress.readings import Readings, first_line, plain_line, recovery_text
from penstock.driver.attempts.phases import Phase
from penstock.mailbox.recovery_stats import RecoveryStats
from penstock.protocol.declines import DeclineReason
from penstock.protocol.history import Status
from penstock.protocol.manifest import SnapshotKind
from tests.unit.cli.kit import FakeJob, record, status


def test_a_plain_line_has_all_figures() -> None:
    job = FakeJob()
    readings = Readings(job, started_at=100.0)
    readings.take(109.0)
    job.now = status(rows_in=1_200_000, rows_out=600_000)
    job.records = (record(17),)
    assert plain_line(readings.take(112.0)) == (
        "12s running in=1.2M (400k/s) out=600k (200k/s) backpressure=40% checkpoint=17 35ms unaligned 1.2MB restarts=0"
    )


def test_before_the_first_checkpoint_there_is_none() -> None:
    assert "checkpoint=none" in plain_line(Readings(FakeJob(), 0.0).take(0.0))


def test_a_declined_attempt_does_not_hide_the_last_completed_checkpoint() -> None:
    job = FakeJob()
    job.records = (
        record(16, cut=SnapshotKind.ALIGNED),
        replace(record(17), status=Status.DECLINED, reason=DeclineReason.EXPIRED, detail="late"),
    )
    reading = Readings(job, 0.0).take(1.0)
    assert "checkpoint=16 35ms aligned" in plain_line(reading)
    shown = _drawn(reading)
    assert "checkpoint 17 was declined: expired (late)" in shown


def test_a_phase_is_shown_with_how_far_it_has_come() -> None:
    job = FakeJob()
    job.now = replace(status(phase=Phase.WAITING_FOR_SLOTS), detail="1 of 2 free")
    reading = Readings(job, 0.0).take(1.0)
    assert plain_line(reading).startswith("1s waiting for slots (1 of 2 free) in=0")
    assert "waiting for slots (1 of 2 free)" in _drawn(reading)


def test_what_holds_up_the_checkpoints_of_a_running_pipeline_has_a_place_of_its_own() -> None:
    job = FakeJob()
    job.now = replace(status(), detail="the disk is full")
    reading = Readings(job, 0.0).take(1.0)
    assert plain_line(reading).startswith("1s running in=0")
    assert plain_line(reading).endswith(" waiting=(the disk is full)")
    assert "the disk is full" in _drawn(reading)


def test_an_attempt_in_progress_is_neither_completed_nor_declined() -> None:
    job = FakeJob()
    job.records = (
        record(16, cut=SnapshotKind.ALIGNED),
        replace(record(17), status=Status.IN_PROGRESS, detail="it waits"),
    )
    reading = Readings(job, 0.0).take(1.0)
    assert "checkpoint=16 35ms aligned" in plain_line(reading)
    assert reading.declined is None


def test_rates_are_those_of_the_last_seconds_and_begin_anew_with_an_attempt() -> None:
    job = FakeJob()
    readings = Readings(job, 0.0)
    for second in range(20):
        job.now = status(rows_in=1000 * second if second < 10 else 9000 + 10 * (second - 9))
        reading = readings.take(float(second))
    assert reading.rows_in_per_s == pytest.approx(10)
    job.now = status(rows_in=5, restarts=1)
    assert readings.take(20.0).rows_in_per_s == 0.0
    job.now = status(rows_in=105, restarts=1)
    assert readings.take(21.0).rows_in_per_s == pytest.approx(100)


def test_plain_lines_come_every_two_seconds_and_errors_once() -> None:
    job, file = FakeJob(), io.StringIO()
    readings, display = Readings(job, 0.0), PlainDisplay(file, lambda: datetime.datetime(2026, 11, 17, 9, 5, 7))
    display.open()
    for tenth in range(45):
        if tenth == 12:
            job.now = status(last_error="worker 1 died\nwith much to say", restarts=1)
        display.show(readings.take(tenth / 10))
    display.close(readings.take(4.6))
    lines = file.getvalue().splitlines()
    assert [line.split()[2] for line in lines] == ["0s", "1s", "2s", "4s"]
    # With the time on the wall, as in any log.
    assert lines[1] == "2026-11-17 09:05:07 1s error: worker 1 died"


def test_a_quiet_display_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    display, reading = QuietDisplay(), Readings(FakeJob(), 0.0).take(0.0)
    display.open()
    display.show(reading)
    display.note("holds 2 of the 2 slots of Spark")
    display.say("stopping")
    display.close(reading)
    assert capsys.readouterr().out == "stopping\n"


def test_a_panel_that_the_terminal_has_wrapped_is_removed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=104, height=40)
    display, readings = LiveDisplay(console), Readings(FakeJob(), 0.0)
    display.open()
    display.show(readings.take(0.0))
    height = file.getvalue().count("\n") + 1
    display.show(readings.take(1.0))
    assert "\x1b[J" not in file.getvalue()
    # Each line of 100 cells takes two rows of 50; `Live` goes up by one for each line.
    console.width = 50
    display.show(readings.take(2.0))
    assert f"\r\x1b[{2 * height - 1}A\x1b[J" + "\n" * (height - 1) in file.getvalue()
    written = len(file.getvalue())
    display.show(readings.take(3.0))
    assert "\x1b[J" not in file.getvalue()[written:]
    display.close(readings.take(4.0))


def test_the_panel_shows_what_the_lines_show() -> None:
    job = FakeJob()
    job.now = status(rows_in=1_200_000, restarts=2, last_error="sum[1] on worker 1: [ZeroDivisionError] seven")
    job.records = (record(17),)
    shown = _drawn(Readings(job, 0.0).take(12.0))
    for part in ("totals", "running", "12s", "1.2M rows", "40%", "17", "35ms", "unaligned", "1.2 MB", "2"):
        assert part in shown
    # Square brackets in an error are text, and not colours.
    assert "[ZeroDivisionError] seven" in shown


def test_rows_that_came_too_late_are_shown_where_there_are_any() -> None:
    job = FakeJob()
    reading = Readings(job, 0.0).take(1.0)
    assert "late" not in plain_line(reading) + _drawn(reading)
    job.now = status(rows_in=1_000, rows_late=3)
    reading = Readings(job, 0.0).take(1.0)
    assert "out=0 (0/s) late=3 backpressure" in plain_line(reading)
    assert "3 late" in _drawn(reading)
    job.now = replace(job.now, rows_skipped=7, files_skipped=1, dead_letters=2, rows_ahead=9)
    reading = Readings(job, 0.0).take(1.0)
    assert "late=3 ahead=9 skipped=7 files_skipped=1 dead_letters=2 backpressure" in plain_line(reading)
    assert "7 skipped, 1 files skipped, 2 dead letters" in _drawn(reading)


def _drawn(reading: object) -> str:
    console = Console(file=io.StringIO(), width=110)
    console.print(panel_of(reading, "Ctrl-C stops"))  # type: ignore[arg-type]
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_an_error_is_cut_to_a_line() -> None:
    assert first_line("\n  one\ntwo") == "one"
    assert first_line("") == ""
    assert len(first_line("x" * 1000)) == 200


def test_a_recovery_says_how_far_it_is_and_how_long_it_took() -> None:
    under_way = RecoveryStats(310, 12, 340, None, 1_200_000_000)
    assert recovery_text(RecoveryStats()) == "reading state"
    assert recovery_text(under_way) == (
        "state back after 310ms, first record after 340ms, filtered in 12ms, 1.2 GB to drain"
    )
    job = FakeJob()
    job.now = replace(status(), recovery=replace(under_way, drained_ms=4_200, bytes_left=0))
    assert plain_line(Readings(job, 0.0).take(0.0)).endswith("filtered in 12ms, drained after 4.2s)")
