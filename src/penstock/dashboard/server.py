"""The server: uvicorn in a daemon thread. It is never a reason for a pipeline to fail.

Without the packages of `penstock[ui]` there is no page, and one line says how to get it.
"""

from __future__ import annotations

import importlib.util
import logging
import socket
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.dashboard.guard import Guard
from penstock.dashboard.prometheus import MetricsNames
from penstock.dashboard.sights.last_words import leave
from penstock.dashboard.sights.live import LiveSight
from penstock.dashboard.sights.series import STEP_MS
from penstock.dashboard.sights.sight import Sight
from penstock.dashboard.tokens import token_of
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.spark.job import Job

_log = logging.getLogger("penstock")

PORT_DEFAULT = 4050
PORTS_TRIED = 50
HOST_DEFAULT = "127.0.0.1"
_PACKAGES = ("starlette", "uvicorn", "prometheus_client")
_CLOSE_S = 2.0
_TURNS = 5
"""Readings for one sample of the history."""
_INSTALL = "pip install 'penstock[ui]'"


class Server:
    """A server that answers. `close` may be called from any thread."""

    def __init__(
        self,
        sight: Sight,
        guard: Guard,
        *,
        host: str = HOST_DEFAULT,
        port: int = PORT_DEFAULT,
        names: MetricsNames = "penstock",
        step_s: float = STEP_MS / 1000,
    ) -> None:
        """Raises `OSError` if no port is free from `port` on; 0 takes any."""
        import uvicorn

        from penstock.dashboard.app import application
        from penstock.dashboard.quiet_server import QuietServer

        self._sight = sight
        self._step_s = step_s
        self._socket = bound(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._app = application(sight, guard, names)
        config = uvicorn.Config(
            self._app,
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=30,
            limit_concurrency=512,
        )
        self._server = QuietServer(config)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-page", daemon=True)
        self._sampler = threading.Thread(target=self._sample, name="penstock-page-history", daemon=True)

    def start(self) -> Server:
        """Begin to answer."""
        self._thread.start()
        self._sampler.start()
        return self

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        except Exception as error:
            _log.warning("the page at %s has failed: %r. The pipeline continues without it", self.address, error)
        finally:
            self._socket.close()

    def _sample(self) -> None:
        has_failed, turns = False, 0
        # More often than samples are taken: rates need an earlier reading as soon as the first page is open.
        while not self._is_over.wait(self._step_s / _TURNS):
            turns += 1
            try:
                self._sight.sample() if turns % _TURNS == 0 else self._sight.moment
            except Exception as error:
                if not has_failed:
                    has_failed = True
                    _log.warning("the page's history of metrics could not be updated: %r", error)

    def wait(self) -> None:
        """Wait until it is closed."""
        # With a limit: only then Ctrl-C reaches a thread that waits.
        while self._thread.is_alive():
            self._thread.join(1.0)

    def close(self) -> None:
        """End it; open pages are let go."""
        self._is_over.set()
        self._app.state.events.close_soon()
        self._server.end_soon()
        self._thread.join(_CLOSE_S)


def bound(host: str, port: int) -> socket.socket:
    """A socket on the first free port from `port` on; on any if it is 0."""
    candidates = [0] if port == 0 else range(port, min(65_536, port + PORTS_TRIED))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    error: OSError | None = None
    for candidate in candidates:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(128)
            return listening
        except OSError as failure:
            listening.close()
            error = failure
    raise OSError(f"no port from {port} on is free on {host}: {error}")


def missing_packages() -> list[str]:
    return [name for name in _PACKAGES if importlib.util.find_spec(name) is None]


def check_options(port: object, host: object, names: object, hosts: object) -> None:
    """Raise `OptionError` for an option that cannot be meant."""
    is_number = isinstance(port, int) and not isinstance(port, bool)
    if port is not None and port is not False and not (is_number and 0 <= port < 65_536):  # type: ignore[operator]
        raise OptionError(f"ui_port is {port!r}: it must be a port from 0 (any free one) to 65535, or None for no page")
    if not isinstance(host, str) or not host:
        raise OptionError(f"ui_host is {host!r}: it must be an address of this machine, such as '127.0.0.1'")
    if names not in ("penstock", "flink"):
        raise OptionError(f"metrics_names is {names!r}: it must be 'penstock' or 'flink'")
    if isinstance(hosts, str) or not all(isinstance(each, str) for each in hosts):  # type: ignore[attr-defined]
        raise OptionError(f"ui_allowed_hosts is {hosts!r}: it must be a sequence of names, such as ['spark-driver']")


def open_page(
    job: Job,
    port: int | None,
    host: str = HOST_DEFAULT,
    names: MetricsNames = "penstock",
    allowed_hosts: Sequence[str] = (),
) -> Server | None:
    """The page of a job, which is closed with it; None without the packages, or if none is wanted.

    Nothing that goes wrong here is an error: the pipeline runs without a page then.
    """
    if port is None or port is False:
        return None
    if missing := missing_packages():
        _log.info("pipeline %s has no page, because %s is missing: %s", job.name, ", ".join(missing), _INSTALL)
        return None
    try:
        watched = job._watched()
        token, file = token_of(watched.store)
        sight = LiveSight(watched)
        server = Server(sight, Guard(token, allowed_hosts), host=host, port=port, names=names).start()
    except Exception as error:
        _log.warning("pipeline %s has no page: %s. It continues without one", job.name, error)
        return None

    def close() -> None:
        leave(sight, watched.store)
        server.close()

    job._attach(close, server.address)
    kept = f", also in {file}" if file is not None else ""
    _say(f"pipeline '{job.name}': page at {server.address} (token for orders: {token}{kept})")
    return server


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
