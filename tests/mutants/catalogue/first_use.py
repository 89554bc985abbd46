"""Defects of what a new user meets: errors without their place, words that disagree, files that are left."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_USER_CODE = "user_code.py"
_FAILURES = "mailbox/failures.py"
_SOCKETS = "exchange/socket_directory.py"
_PLACES = ("tests/unit/test_places_of_errors.py",)
_OF_SOCKETS = ("tests/unit/exchange/test_socket_directory.py",)


def _mutant(name: str, file: str, old: str, new: str, why: str, tests: tuple[str, ...] = _PLACES) -> Mutant:
    return Mutant(name, OWN, file, old, new, why, seeds=0, tests=tests)


MUTANTS = (
    _mutant(
        "An error of data does not name its operator",
        "worker/context.py",
        "            place(error, named, subtask, self.added_at)\n",
        "",
        "A wrong value of state is told without operator, subtask and line.",
    ),
    _mutant(
        "Every operator of a chain names itself in an error",
        _USER_CODE,
        "    if error.is_placed or not isinstance",
        "    if not isinstance",
        "The operator in front of the failing one is blamed too.",
    ),
    _mutant(
        "The key of a wrong value is not told",
        _USER_CODE,
        "    at = [own, error.record] if own",
        "    at = [own] if own",
        "The record that provokes the error cannot be found.",
    ),
    _mutant(
        "An error without a line of a function has no line",
        _USER_CODE,
        "else [_added(added_at)]",
        "else []",
        "A column that is not there is told without the line that names it.",
    ),
    _mutant(
        "The record is part of a failure",
        _USER_CODE,
        "        error.signature = text\n",
        "        error.signature = f'{text} {error.record} {subtask}'\n",
        "The same wrong value of another key restarts the pipeline until its budget is used up.",
    ),
    _mutant(
        "The signature of an error of data stays in the worker",
        _FAILURES,
        "            refused.signature = frame.signature\n",
        "            pass\n",
        "The driver sees another error for each key.",
    ),
    _mutant(
        "Code that is made for a schema counts as a line of the user's",
        "state/rows/tuples.py",
        '"<penstock: tuples>"',
        '"<string>"',
        "The line of a wrong value is one that nobody has written.",
    ),
    _mutant(
        "Errors of timers are not placed",
        "worker/context.py",
        '                raise self.told("on_timer", error) from cause_of(error)\n',
        "                raise\n",
        "A wrong value in on_timer is told without operator and line.",
    ),
    _mutant(
        "A wrong schema in open is tried again",
        "errors.py",
        "OptionError | PipelineError | Incompatible",
        "OptionError | Incompatible",
        "A typo costs the whole restart budget.",
    ),
    _mutant(
        "The row that Arrow refuses is not told",
        "operators/formats.py",
        "{error}{row}{hint}",
        "{error}{hint}",
        "One bad row of thousands cannot be found.",
    ),
    _mutant(
        "The directory of a live process is removed",
        _SOCKETS,
        "fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "fcntl.LOCK_UN)\n",
        "A new worker cuts the others of its host off.",
        _OF_SOCKETS,
    ),
    _mutant(
        "Directories of other hosts are removed",
        _SOCKETS,
        "        if os.read(lock, 1024) == host:\n            shutil",
        "        if True:\n            shutil",
        "A lock may not be seen on another host.",
        _OF_SOCKETS,
    ),
    _mutant(
        "What killed workers have left stays until the next start",
        _SOCKETS,
        "        os.close(self._lock)\n        sweep()\n",
        "        os.close(self._lock)\n",
        "A pipeline that has ended well leaves directories.",
        _OF_SOCKETS,
    ),
    _mutant(
        "What a killed driver has left is not removed at the next start",
        _SOCKETS,
        "        sweep()\n        self.path",
        "        self.path",
        "Each kill leaves a directory for good.",
        _OF_SOCKETS,
    ),
    _mutant(
        "A pipeline that was stopped has finished",
        "driver/supervisor.py",
        "Phase.STOPPED if ends_with_savepoint(self.history) else Phase.FINISHED",
        "Phase.FINISHED",
        "The box says that all is read, and the line below that it goes on from a savepoint.",
        ("tests/unit/driver/test_supervisor.py",),
    ),
    _mutant(
        "The end of all input is a stop",
        "protocol/history.py",
        " and BarrierFlag.SAVEPOINT in last.flags",
        "",
        "A pipeline that has read everything says that it was stopped.",
        ("tests/unit/protocol/test_history.py",),
    ),
)
