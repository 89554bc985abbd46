"""What a worker tells of its process: log lines within a bound, and profiles of its mailbox thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from penstock.ids import OperatorName
from penstock.mailbox.activity import Activity
from penstock.mailbox.notes import Stack
from penstock.worker.host import LINES_MAX, LINES_SENT_MAX, Process, WorkerLog, resident_bytes, sampled

PATIENCE_S = 60.0


@pytest.fixture
def log() -> Iterator[WorkerLog]:
    activity = Activity()
    activity.working = OperatorName("sums"), 1
    with WorkerLog(activity) as log:
        yield log


def test_warnings_of_user_code_name_the_operator_that_worked(log: WorkerLog) -> None:
    logging.getLogger("of.the.user").warning("%d rows are odd", 3)
    logging.getLogger("of.the.user").info("not worth it")
    [line], dropped = log.take()
    assert (line.level, line.text, line.operator, dropped) == ("WARNING", "3 rows are odd", "sums", 0)
    assert log.take() == ((), 0)


def test_a_message_that_cannot_be_made_does_not_end_the_worker(log: WorkerLog) -> None:
    log.handle(logging.LogRecord("of.the.user", logging.WARNING, __file__, 1, "%d rows", ("no number",), None))
    assert log.take()[0][0].text == "%d rows"


def test_lines_beyond_the_bound_are_dropped_and_counted(log: WorkerLog) -> None:
    for number in range(LINES_MAX + 30):
        logging.getLogger("of.the.user").warning("line %d", number)
    lines, dropped = log.take()
    assert (len(lines), dropped, lines[0].text) == (LINES_SENT_MAX, 30, "line 30")


def test_the_next_pipeline_in_the_process_does_not_hear_of_this_one() -> None:
    with WorkerLog(Activity()) as first:
        pass
    logging.getLogger("of.the.user").warning("too late")
    assert first.take() == ((), 0)


def test_a_profile_names_the_functions_that_a_thread_is_in() -> None:
    ready, done = threading.Event(), threading.Event()

    def waits_for_the_end() -> None:
        ready.set()
        done.wait(PATIENCE_S)

    thread = threading.Thread(target=waits_for_the_end, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S) and thread.ident is not None
    activity = Activity()
    activity.working = OperatorName("sums"), 1
    samples, seconds, stacks = sampled(thread.ident, 0.2, activity)
    done.set()
    thread.join(PATIENCE_S)
    assert samples >= 1 and seconds >= 0.2 and sum(stack.samples for stack in stacks) == samples
    assert {stack.operator for stack in stacks} == {"sums"}
    # The test is the user here; threads are of Python.
    owners = {call[0].rpartition(".")[2]: call[3] for stack in stacks for call in stack.calls}
    assert (owners["waits_for_the_end"], owners["run"]) == (0, 1)
    assert sampled(thread.ident, PATIENCE_S, activity)[0] == 0, "a thread that is gone ends the profile"


def test_one_profile_at_a_time_and_its_answer_comes_in_the_mailbox() -> None:
    posted: list[object] = []
    came = threading.Event()

    def post(call: object) -> None:
        posted.append(call)
        came.set()

    with WorkerLog(Activity()) as log:
        process = Process(threading.get_ident(), post, log)
        answers: list[tuple[int, float, tuple[Stack, ...]]] = []
        assert process.profile(0.3, lambda *answer: answers.append(answer))
        assert not process.profile(0.3, lambda *answer: answers.append(answer))
        assert came.wait(PATIENCE_S) and not answers
        posted[0]()  # type: ignore[operator]
    [(samples, _, stacks)] = answers
    assert samples >= 1 and stacks


def test_memory_is_told_where_the_system_says_it() -> None:
    assert resident_bytes() > 1 << 20
