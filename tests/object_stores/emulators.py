"""Servers that speak as Azure's and Google's do, on loopback: Azurite from npm, fake-gcs-server from Go's module proxy.

To fetch the one and to compile the other takes minutes, so no test does it: `python -m tests.object_stores.emulators`
fills a cache outside of the repository, and tests run where it is filled, or where the programs are on the PATH.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.components import bound

AZURITE = "3.35.0"
FAKE_GCS = "v1.56.1"
CACHE = Path(os.environ.get("PENSTOCK_TEST_CACHE", Path.home() / ".cache" / "penstock-tests"))
_UP_SECONDS = 120.0


class NoEmulator(Exception):
    """The server cannot be started here; says why."""


def azurite() -> Path:
    """The program of Azurite. Raises `NoEmulator` if it was not fetched."""
    return _found("azurite-blob", _azurite_home() / "node_modules" / ".bin")


def fake_gcs() -> Path:
    """The program of fake-gcs-server. Raises `NoEmulator` if it was not compiled."""
    return _found("fake-gcs-server", _gcs_home())


def _found(program: str, home: Path) -> Path:
    found = shutil.which(program, path=f"{home}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise NoEmulator(
            f"{program} is not there: `python -m tests.object_stores.emulators` fetches it, in some minutes"
        )
    return Path(found)


def fetch() -> None:
    """Fill the cache, with npm and Go. Raises `NoEmulator`."""
    _fetch("npm", ["install", "--no-audit", "--no-fund", f"azurite@{AZURITE}"], _azurite_home(), azurite)
    _fetch("go", ["install", f"github.com/fsouza/fake-gcs-server@{FAKE_GCS}"], _gcs_home(), fake_gcs)


def _azurite_home() -> Path:
    return CACHE / f"azurite-{AZURITE}"


def _gcs_home() -> Path:
    return CACHE / f"fake-gcs-{FAKE_GCS}"


def _fetch(tool: str, arguments: Sequence[str], home: Path, program: Callable[[], Path]) -> None:
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            program()
            return
        except NoEmulator:
            pass
        found = shutil.which(tool)
        if found is None:
            raise NoEmulator(f"{tool} is missing: install it")
        if tool == "npm":
            (home / "package.json").write_text('{"private": true}', encoding="utf-8")
        environment = {**os.environ, "GOBIN": str(home)}
        done = subprocess.run(
            [found, *arguments], cwd=home, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NoEmulator(f"{tool} {arguments[0]} failed: {(done.stdout + done.stderr)[-500:]}")


@contextmanager
def running(command: Sequence[str], port: int, environment: Mapping[str, str]) -> Iterator[None]:
    """A server as long as the block runs, from when it answers on its port."""
    everything = {**os.environ, **environment}
    nowhere = subprocess.DEVNULL
    server = subprocess.Popen(bound(command), env=everything, stdout=nowhere, stderr=nowhere)
    try:
        deadline = time.monotonic() + _UP_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 2).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise NoEmulator(f"{command[0]} does not start") from None
                time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    fetch()
