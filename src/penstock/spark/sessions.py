"""What kind of session a pipeline was given, and whether it is still there."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from penstock.errors import OptionError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
_ANY_PORT = 15002
_SHUT_DOWN = (
    "SparkContext was shut down",
    "Cannot call methods on a stopped SparkContext",
    "SparkContext has been shutdown",
    "NO_ACTIVE_SESSION",
    "SESSION_CLOSED",
)
"""What Spark says about a job whose session was stopped under it."""


def context_of(spark: SparkSession) -> SparkContext | None:
    """The context of the application; None with Spark Connect, where the session knows of none."""
    return getattr(spark, "_sc", None)


def session_zone(spark: SparkSession) -> str:
    """The zone in which the session shows times: that of the JVM, unless it was set."""
    # Called with a default, Spark would return that instead of its own.
    return spark.conf.get("spark.sql.session.timeZone") or "UTC"


def master_of(spark: SparkSession) -> str:
    return spark.conf.get("spark.master", "") or ""


def is_on_this_host(master: str) -> bool:
    """Whether all executors of this master are on the driver's host: `local[2]`, or `local-cluster[2,1,1024]`."""
    return master.startswith("local")


def driver_address(spark: SparkSession) -> str | None:
    """The address at which workers reach this process; None if all of them are on this host. Raises `OptionError`.

    With Spark Connect the server's `spark.driver.host` is this host only if the server is.
    """
    server = None if context_of(spark) is not None else str(spark.client.host)
    if server is None or server in _LOOPBACK:
        return None if is_on_this_host(master_of(spark)) else spark.conf.get("spark.driver.host")
    return _address_towards(server)


def _address_towards(host: str) -> str:
    """The address of this host on the way to another one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as way:
            # Sends nothing: only the route is looked up.
            way.connect(address)
            return str(way.getsockname()[0])
    except OSError as error:
        raise OptionError(
            f"the workers of the Spark Connect server at {host} must be able to reach this process, "
            f"but this host has no route there: {error}"
        ) from error


def is_plain_local(spark: SparkSession) -> bool:
    """Whether all tasks run in the driver's own JVM, so that no executor can come or go."""
    master = master_of(spark)
    return is_on_this_host(master) and not master.startswith("local-cluster")


def is_stopped(spark: SparkSession, error: Exception | None = None) -> bool:
    """Whether the session was stopped, as far as it or `error`, with which a job of it ended, says so."""
    if error is not None and any(words in str(error) for words in _SHUT_DOWN):
        return True
    context = context_of(spark)
    if context is None:
        return bool(getattr(spark, "is_stopped", False))
    if context._jsc is None:
        return True
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception:
        # The process behind it does not answer any more.
        return True
