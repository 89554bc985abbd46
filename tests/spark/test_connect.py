"""Spark Connect: a server of its own, and a script that knows only its address."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from tests.spark.test_scripts import Script

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

_HANG_S = 180.0


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server with two slots, started from the package of PySpark."""
    home, port = Path(pyspark.__file__).parent, free_port()
    properties = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.python.task.killTimeout": "500ms",
    }
    options = [word for name, value in properties.items() for word in ("--conf", f"{name}={value}")]
    main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    with (tmp_path / "server").open("w") as said:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), "--master", "local[2]", *options, *main],
            env={**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable},
            cwd=tmp_path,
            stdout=said,
            stderr=said,
        )
    try:
        until = time.monotonic() + _HANG_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                running = process.poll() is None and time.monotonic() < until
                assert running, f"the server did not come up: {(tmp_path / 'server').read_text()}"
                time.sleep(0.2)
        yield f"sc://localhost:{port}"
    finally:
        process.terminate()
        process.wait(_HANG_S)


def test_a_pipeline_on_a_connect_server_finishes_survives_a_killed_worker_and_says_that_slots_are_missing(
    server: str, tmp_path: Path
) -> None:
    script = Script(tmp_path, server, module="tests.spark.connected")
    try:
        assert script.line() == "finished 3000 {0: 1000, 1: 1000, 2: 1000}"
        assert script.line() == "phases ['starting workers', 'running']"
        # The server does not report its slots.
        assert script.line() == "slots 2 of None"
        assert script.line() == "restarts 1, at the savepoint True, lost 0"
        assert script.line() == "waiting for slots: Spark Connect does not report slots"
        last = script.line()
        assert last.startswith("NoFreeSlots: the workers have not started within 15 s (start_timeout)"), last
        assert "lower workers or parallelism" in last
        assert script.process.wait() == 0
        errors = script.errors
    finally:
        script.close()
    assert "Traceback" not in errors
