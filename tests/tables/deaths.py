"""Drivers in processes of their own, killed with SIGKILL between two lines of their committer, and started again.

One program imports everything once and forks a driver for each start: nothing has run in it by then, so that there are
no threads to lose.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_PROGRAM = """
import json, os, signal, sys
import pyarrow as pa
import penstock.worker.worker, penstock.driver.supervisor
from penstock import Pipeline
from penstock.testing import CHECKPOINT, ListSource, run

ROOT, MODULE, DEATHS, CHANGES = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "changes"
__import__(MODULE)
FILE = sys.modules[MODULE].__file__

def make_sink(DIRECTORY):
{sink}
    return sink

def batch(start, count):
    rows = list(range(start, start + count))
    if not CHANGES:
        return pa.record_batch({{"n": rows}})
    # Of each row another one is made that the next part deletes, and one that comes and goes within this one.
    made = [n + 1000 for n in rows] if start < 200 else []
    gone = [n + 900 for n in rows] if start >= 100 else []
    brief = [n + 5000 for n in rows]
    ops = ["insert"] * len(rows + made + brief) + ["delete"] * len(gone + brief)
    return pa.record_batch({{"n": rows + made + brief + gone + brief, "op": ops}})

def drive(home, death):
    lines = 0

    def count(frame, event, argument):
        nonlocal lines
        lines += event == "line"
        if lines == death:
            os.kill(os.getpid(), signal.SIGKILL)
        return count

    sink = make_sink(home)
    make = type(sink).committer

    def committer(self):
        made = make(self)
        commit = made.commit

        def traced(checkpoint, committables):
            sys.settrace(lambda frame, event, argument: count if frame.f_code.co_filename == FILE else None)
            try:
                commit(checkpoint, committables)
            finally:
                sys.settrace(None)

        made.commit = traced
        return made

    type(sink).committer = committer
    items = [item for part in range(3) for item in (batch(100 * part, 50), batch(100 * part + 50, 50), CHECKPOINT)]
    pipeline = Pipeline("killed")
    pipeline.source(ListSource(items, splits=2), name="numbers").sink(sink, name="sink")
    run(pipeline, parallelism=2, store=home + "/checkpoints")
    with open(home + "/lines", "w") as file:
        file.write(str(lines))

def forked(home, death):
    os.makedirs(home, exist_ok=True)
    child = os.fork()
    if child == 0:
        try:
            drive(home, death)
            os._exit(0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

codes = {{"whole": [forked(ROOT + "/whole", 0)]}}
lines = int(open(ROOT + "/whole/lines").read())
for number in range(DEATHS):
    # Not among the last: another run may have fewer commits, with more rows each.
    line = 1 + lines // 2 * number // DEATHS
    home = ROOT + "/killed_at_" + str(line)
    codes["killed_at_" + str(line)] = [forked(home, line), forked(home, 0)]
print(json.dumps(codes))
"""


def killed_at_every_step(
    directory: Path,
    *,
    sink: str,
    module: str,
    read_back: Callable[[Path], Sequence[int]],
    deaths: int = 4,
    changes: bool = False,
) -> None:
    """Assert that 300 rows are there exactly once after one death at each of several steps of the commits.

    With `changes` the rows are a changelog, of which two of three are deleted again.

    `sink` is a statement that binds the name `sink`, of which each trial has another DIRECTORY.
    """
    program = _PROGRAM.format(sink=f"    {sink}")
    command = [sys.executable, "-c", program, str(directory), module, str(deaths), "changes" * changes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=os.environ)
    assert done.returncode == 0, done.stderr[-3000:]
    codes: dict[str, list[int]] = json.loads(done.stdout)
    assert codes.pop("whole") == [0]
    assert list(codes.values()) == [[-9, 0]] * deaths, f"{codes}\n{done.stderr[-3000:]}"
    for name in ("whole", *codes):
        assert sorted(read_back(directory / name)) == list(range(300)), name
