"""A warm process: it has loaded the libraries that everybody needs, and forks a trial for each request.

Started inside the pristine copy of the tree. It never imports `penstock`, because every trial brings a source directory
with another mutant. One request is one line of JSON on standard input; lines of JSON come back on standard output:

{"pid": 4711}               the trial has begun; the process leads a group that can be killed
...                         lines of the trial itself, see `trial`
{"ended": 0}                the trial is over, with this return code; a negative one is a signal
{"used": 1.5}               the seconds of a processor that it took, with the processes that it has waited for
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, TextIO

LIBRARIES = (
    *("numpy", "pandas", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet"),
    *("fsspec", "msgspec", "pyspark.cloudpickle", "pyspark.sql.datasource", "typer", "zmq"),
    *("hypothesis", "hypothesis.strategies", "pytest"),
    *("pyiceberg.catalog.sql", "deltalake", "psycopg", "confluent_kafka.schema_registry.avro", "ptars"),
    *("httpx", "playwright.sync_api", "prometheus_client", "uvicorn"),
)
"""Loading them takes seconds, which is longer than most trials. None of them starts a thread."""

OUTPUT = "output"
"""The file in the directory of a trial that gets its standard output and standard error."""


def main() -> None:
    # pytest loads every plugin that is installed, and one of them takes longer than all of the libraries.
    plugins = [entry.module for entry in importlib.metadata.entry_points(group="pytest11")]
    for name in (*LIBRARIES, *plugins):
        # A library that is not there is missed by the trial that needs it, and by nobody else.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    # The collector would touch every object that trials share with this process, and so copy them.
    gc.collect()
    gc.freeze()
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _run(json.loads(line), replies)
        _await_end(pid, replies)


def _await_end(pid: int, replies: TextIO) -> None:
    # WNOWAIT: the number of the process stays taken until its end has been told, so that the harness, which may be
    # about to kill the group, cannot hit another one.
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    replies.write(json.dumps({"ended": code}) + "\n")
    _, _, usage = os.wait4(pid, 0)
    replies.write(json.dumps({"used": usage.ru_utime + usage.ru_stime}) + "\n")


def _run(request: dict[str, Any], replies: TextIO) -> None:
    """The trial. Never returns: what the process was before the fork is none of its business."""
    code = 1
    try:
        os.setsid()
        replies.write(json.dumps({"pid": os.getpid()}) + "\n")
        directory = Path(request["directory"])
        _redirect(directory)
        _confine(directory, Path(request["source"]))
        from tests.mutants import trial

        trial.run(request, lambda reply: replies.write(json.dumps(reply) + "\n"))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
            replies.flush()
        os._exit(code)


def _redirect(directory: Path) -> None:
    output = os.open(directory / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)


def _confine(directory: Path, source: Path) -> None:
    """Import `penstock` from `source`, also in processes that it starts; temporary files go below `directory`."""
    sys.path.insert(0, str(source))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(source), os.getcwd()])
    os.environ["TMPDIR"] = str(directory)
    # For all trials: Hypothesis reads every source file for its constants, and keeps them by the contents of the file.
    # Examples that failed are kept there too, and no trial uses those of another: its phases are without `reuse`.
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(os.getcwd(), "hypothesis")
    tempfile.tempdir = None


if __name__ == "__main__":
    main()
