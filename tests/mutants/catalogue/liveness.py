"""Defects of signs of life, and of how often a pipeline that fails is started again."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_SUPERVISOR = "driver/supervisor.py"
_PULSE = "worker/pulse.py"
_WORKER = "worker/worker.py"
_RESTART = "protocol/restart.py"
_PHASES = "driver/attempts/phases.py"
_COORDINATOR = "driver/checkpoints/coordinator.py"
_COMMITTERS = "driver/checkpoints/committers.py"
_TASK = "spark/task.py"
_ENVIRONMENT = "spark/environment.py"
_MACHINE = "protocol/coordinator/machine.py"
_USER_CODE = "user_code.py"
_ERRORS = "errors.py"
_STAGE = "worker/sources/source_stage.py"
_GROUP = "metrics/group.py"
_PRUNING = "driver/checkpoints/pruning.py"
_FAILURES = "mailbox/failures.py"
_SESSIONS = "spark/sessions.py"
_WAITING = "tests/unit/driver/test_waiting.py"


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    tests = {
        _SUPERVISOR: ("tests/unit/driver/test_supervisor.py", "tests/unit/worker/test_long_work.py", _WAITING),
        _PULSE: ("tests/unit/spark/test_pulse.py",),
        _WORKER: ("tests/unit/worker/test_worker.py", "tests/unit/spark/test_pulse.py"),
        _RESTART: ("tests/unit/protocol/test_restart.py",),
        _PHASES: ("tests/unit/driver/attempts/test_phases.py",),
        _COORDINATOR: (_WAITING,),
        _COMMITTERS: (_WAITING,),
        _TASK: ("tests/unit/spark/test_task.py",),
        _ENVIRONMENT: ("tests/unit/spark/test_environment.py",),
        _MACHINE: (_WAITING,),
        _USER_CODE: ("tests/unit/test_user_code.py",),
        _ERRORS: ("tests/unit/test_user_code.py",),
        _STAGE: ("tests/unit/metrics/test_backlog.py",),
        _GROUP: ("tests/unit/metrics/test_metric_group.py",),
        _PRUNING: ("tests/unit/storage/test_directory.py",),
        _FAILURES: ("tests/unit/test_user_code.py",),
        _SESSIONS: ("tests/unit/spark/test_sessions.py",),
    }
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests[file])


MUTANTS = (
    # --- signs of life ---
    _mutant(
        "A worker that is busy counts as silent",
        _SUPERVISOR,
        "not isinstance(frame, HelloFrame):",
        "not isinstance(frame, HelloFrame | BusyFrame):",
        "A call that takes long is made again after a restart, without end.",
    ),
    _mutant(
        "A worker that is stuck in one call is waited for without end",
        _SUPERVISOR,
        "        if frame.busy_ms > self._settings.call_timeout_ms:\n",
        "        if frame.busy_ms < 0:\n",
        "The pipeline stands still, and nobody ends it.",
    ),
    _mutant(
        "A worker says that it is busy only when its mailbox is free",
        _PULSE,
        "        if busy_ms is None:\n            return\n",
        "        if busy_ms is None or busy_ms > 0:\n            return\n",
        "It counts as silent, and the pipeline restarts for nothing.",
    ),
    _mutant(
        "A driver that never comes back keeps its workers",
        _PULSE,
        "        if not self._overdue_ms < silent_ms < self._busy_ms_max:\n",
        "        if not self._overdue_ms < silent_ms:\n",
        "Workers go on whose output nobody publishes.",
    ),
    _mutant(
        "A driver that is held up gives no sign of life",
        _PULSE,
        "        for worker in self._workers:\n            worker.send(self._frame)\n",
        "        pass\n",
        "All workers end because the driver was busy for a while.",
    ),
    # --- waiting ---
    _mutant(
        "A pipeline is running before its last worker is",
        _PHASES,
        "        return len(self._ready) == self._workers\n",
        "        return len(self._ready) > 0\n",
        "Somebody believes that it works while it waits.",
    ),
    _mutant(
        "A pipeline that finds no slots starts again and again",
        _SUPERVISOR,
        "if isinstance(error, NoFreeSlots) and not self._has_run:",
        "if isinstance(error, NoFreeSlots) and self._has_run:",
        "Ten times start_timeout pass before anybody hears of it.",
    ),
    _mutant(
        "The time that workers have to come up passes while there are no slots for them",
        _SUPERVISOR,
        "                self._signs.await_first(self._startup.missing(self._workers))\n",
        "                pass\n",
        "Workers that start at last count as silent.",
    ),
    _mutant(
        "A store that fails is tried again without a word",
        _COORDINATOR,
        "        if isinstance(event, TombstoneFailed | ReservationFailed | CommitFailed):\n",
        "        if isinstance(event, ReservationFailed):\n",
        "A full disk is silent for ten minutes.",
    ),
    _mutant(
        "A sink that hangs is another failure each time",
        _COMMITTERS,
        "f\"sinks {', '.join(sinks)}\")",
        "calls)",
        "The pipeline ends after restarts_max times checkpoint_timeout, which is hours.",
    ),
    _mutant(
        "A worker leaves in silence although nobody has heard of its failure",
        _TASK,
        "                if isinstance(frame, StopFrame) and frame.generation == launch.generation:\n"
        "                    return True\n"
        "        transport.wait(left_ms)\n"
        "    return False\n",
        "                if isinstance(frame, StopFrame) and frame.generation == launch.generation:\n"
        "                    return True\n"
        "        transport.wait(left_ms)\n"
        "    return True\n",
        "The reason of a failure is lost, and the pipeline waits for a worker that is gone.",
    ),
    _mutant(
        "The pipeline is unpickled before the versions are compared",
        _ENVIRONMENT,
        "        for package, wanted in driver.items():\n",
        "        pickle.loads(payload)\n        for package, wanted in driver.items():\n",
        "Another version fails with an error from its inside.",
    ),
    # --- restarts ---
    _mutant(
        "Failures without a checkpoint in between are forgotten",
        _RESTART,
        " or progress_at_ms is None or at_ms >= progress_at_ms\n",
        "\n",
        "A pipeline that fails each time after an hour repeats that hour without end.",
    ),
    _mutant(
        "An attempt that completed no checkpoint counts as progress",
        _SUPERVISOR,
        "coordinator.state.newest > coordinator.state.restored or",
        "coordinator.state.newest >= coordinator.state.restored or",
        "A pipeline that fails each time after an hour repeats that hour without end.",
    ),
    # --- commits that fail, and failures that come again ---
    _mutant(
        "A commit that cannot succeed is tried for as long as any other",
        _MACHINE,
        "if event.is_permanent and retry.failures >= PERMANENT_FAILURES_MAX:",
        "if False:",
        "A missing right ends the pipeline after minutes and many restarts.",
    ),
    _mutant(
        "Every failure of a commit counts as one that does not pass",
        _COMMITTERS,
        "return isinstance(error, _PERMANENT) or (",
        "return True or (",
        "A database that restarts ends the pipeline.",
    ),
    _mutant(
        "The restored checkpoint is committed with the patience of checkpoints",
        _MACHINE,
        "Publishing(recommit, Retry(now_ms, timeout_ms=policy.commit_timeout_ms))",
        "Publishing(recommit, Retry(now_ms))",
        "A commit that fails after a restart is tried for ten minutes.",
    ),
    _mutant(
        "The subtask is part of a failure",
        _USER_CODE,
        "{_SUBTASK.sub('', what)}",
        "{what}",
        "The same typo looks like another error in another subtask, and the pipeline restarts.",
    ),
    _mutant(
        "The message of an exception is part of a failure",
        _USER_CODE,
        "if not _is_of_a_client(error) else",
        "if False else",
        "A bug that meets one key after the other restarts the pipeline until its budget is used up.",
    ),
    _mutant(
        "The message of a client of a service is not part of a failure",
        _USER_CODE,
        "if not _is_of_a_client(error) else",
        "if True else",
        "Two different outages end a pipeline that would have got over both.",
    ),
    _mutant(
        "The counts in an error of data are part of a failure",
        _ERRORS,
        '_NUMBER.sub("#", error.signature or str(error))',
        "(error.signature or str(error))",
        "The same bad column looks like another error in every batch.",
    ),
    _mutant(
        "A line that was typed in a notebook is one of a library",
        _USER_CODE,
        "    if filename.startswith(_TYPED):\n        return 0\n",
        "",
        "The error names a line of pyarrow instead of the user's.",
    ),
    _mutant(
        "The driver names the file of a cell and not the cell",
        _FAILURES,
        "        error = kind(with_cells(frame.error))",
        "        error = kind(frame.error)",
        "The error in a notebook names a file that does not exist.",
    ),
    _mutant(
        "The address of the driver is that of the Connect server",
        _SESSIONS,
        "    if server is None or server in _LOOPBACK:",
        "    if True:",
        "A client on another host than its server binds to an address that it does not have.",
    ),
    _mutant(
        "A source that was read before anybody asked has no backlog",
        _STAGE,
        "            self._measured |= _units(self._readers[name].backlog())\n",
        "            pass\n",
        "A source that is read to its end looks like one that does not know.",
    ),
    _mutant(
        "A counter of a user starts anew with each restart",
        _GROUP,
        "metric.counter(name, unit, help, is_total=True)",
        "metric.counter(name, unit, help)",
        "Counts of a function are not those of its state.",
    ),
    _mutant(
        "An attempt that is over warns of the pruning that it gives up",
        _PRUNING,
        "elif not self._is_stopped:",
        "else:",
        "Every restart looks like a disk that cannot be written.",
    ),
)
