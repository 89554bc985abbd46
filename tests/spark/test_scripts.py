"""A pipeline in a script: what it prints, and how it takes Ctrl-C, the end of the session, or a wrong Python."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

import pytest

pytestmark = pytest.mark.spark

_ROOT = Path(__file__).resolve().parents[2]
_HANG_S = 600.0


class Script:
    """A process that runs `tests/spark/script.py`, or another module, killed if it hangs."""

    def __init__(
        self, directory: Path, *scenes: str, python: str | None = None, module: str = "tests.spark.script"
    ) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
        environment["PYTHONPATH"] = os.pathsep.join([str(_ROOT), str(_ROOT / "src")])
        if python is not None:
            environment["PYSPARK_PYTHON"] = python
        self._errors = (directory / "stderr").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(directory), *scenes],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )
        self._end = threading.Timer(_HANG_S, self.kill)
        self._end.start()

    def line(self) -> str:
        """The next line of its standard output."""
        output: IO[str] | None = self.process.stdout
        assert output is not None
        line = output.readline()
        assert line, self.errors
        return line.rstrip("\n")

    def interrupt(self) -> None:
        """Ctrl-C: the terminal sends it to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    @property
    def errors(self) -> str:
        self._errors.flush()
        return Path(self._errors.name).read_text()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        self._end.cancel()
        if self.process.poll() is None:
            self.kill()
        self.process.wait()
        self._errors.close()


def test_a_script_is_told_of_its_typo_in_one_line_and_ends_well_at_ctrl_c_and_with_its_session(tmp_path: Path) -> None:
    # Without PYSPARK_PYTHON: the workers run the interpreter of the script, although `python3` may be another one.
    script = Script(tmp_path, "typo", "interrupted", "stopped")
    try:
        first = script.line()
        assert first.startswith("UserCodeError: operator 'enrich'")
        assert "script.py:" in first
        print(script.line())

        assert script.line() == "busy"
        script.interrupt()
        assert script.line() == "KeyboardInterrupt"
        assert script.line() == "restarts 0"
        assert script.line() == "waiting"
        script.interrupt()
        assert script.line() == "waited True"
        assert script.line() == "phase stopped"

        assert script.line().startswith("SessionStopped: the Spark session was stopped while the pipeline ran")
        assert script.line() == "restarts 0"
        assert script.process.wait() == 0
        errors = script.errors
    finally:
        script.close()
    typo = errors.partition("--- typo begins\n")[2].partition("--- typo ends\n")[0].splitlines()
    # One restart is one line, and so is the end; Spark has nothing to add, and draws no progress bar.
    assert [line.split(" ")[2] for line in typo if line.startswith("pipeline typo")] == ["failed", "has"], typo
    told = ("pipeline typo", "pipeline 'typo': page at", "The pipeline gave up")
    assert not [line for line in typo if not line.startswith(told)], typo
    assert "stopping with a savepoint (Ctrl-C again: at once)" in errors
    assert "pipeline 'interrupted' stopped with savepoint" in errors
    assert "Traceback" not in errors
    assert "[Stage" not in errors.partition("--- typo begins")[2]


def test_a_python_that_lacks_penstock_ends_the_pipeline_at_once_with_the_cure(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    script = Script(tmp_path, "unfit", python=str(bare / "bin" / "python"))
    try:
        line = script.line()
        assert line.startswith("WorkerEnvironment: the Python of the workers cannot run this pipeline"), line
        assert "No module named" in line
        assert f"Set PYSPARK_PYTHON={sys.executable} before the session starts" in line
        assert script.line() == "restarts 0"
    finally:
        script.close()
