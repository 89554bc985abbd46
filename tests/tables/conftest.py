"""A PostgreSQL server for the tests of this directory: started on a free port of loopback, in a temporary directory."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.components import bound, missing, required_package


@dataclass(frozen=True, slots=True)
class PostgresServer:
    port: int

    def dsn(self, user: str = "postgres", database: str = "postgres") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """Started once; it ends with the session, killed by its process id."""
    required_package("psycopg")
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = str(programs[-1] / "postgres") if programs else shutil.which("postgres")
    if found is None:
        missing("PostgreSQL", "apt-get install postgresql")
    home = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
    # The server refuses to run as root.
    user = pwd.getpwnam("postgres") if os.getuid() == 0 else None
    identity = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    if user is not None:
        os.chown(home, user.pw_uid, user.pw_gid)
    data = home / "data"
    initialise = [str(Path(found).with_name("initdb")), "-D", str(data), "-A", "trust", "-U", "postgres", "--no-sync"]
    subprocess.run(initialise, check=True, capture_output=True, cwd=home, **identity)  # type: ignore[call-overload]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with open(home / "log", "wb") as log:
        settings = ("fsync=off", "wal_level=logical", "max_replication_slots=100")
        command = [found, "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", str(home)]
        command += [word for setting in settings for word in ("-c", setting)]
        server = subprocess.Popen(  # type: ignore[call-overload]
            bound(command), stdout=log, stderr=log, cwd=home, **identity
        )
    try:
        _await(port, server, home / "log")
        yield PostgresServer(port)
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(home, ignore_errors=True)


def _await(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + 300
    while True:
        try:
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PostgreSQL does not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)
