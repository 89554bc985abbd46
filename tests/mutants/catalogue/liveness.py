"""Defects of signs of life, and of how often a pipeline that fails is started again."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_SUPERVISOR = "runtime/supervisor.py"
_PULSE = "runtime/pulse.py"
_WORKER = "runtime/worker.py"
_RESTART = "protocol/restart.py"


def _mutant(name: str, file: str, old: str, new: str, why: str) -> Mutant:
    tests = {
        _SUPERVISOR: ("tests/unit/runtime/test_supervisor.py", "tests/unit/runtime/test_long_work.py"),
        _PULSE: ("tests/unit/spark/test_pulse.py",),
        _WORKER: ("tests/unit/runtime/test_worker.py", "tests/unit/spark/test_pulse.py"),
        _RESTART: ("tests/unit/protocol/test_restart.py",),
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
        "        if frame.busy_ms > self._settings.stuck_ms_max:\n",
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
)
