"""The session of `penstock run --remote`: a Spark Connect server that somebody else has started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.cli.relay import Relay
from penstock.cli.session import run_workers_with_this_python
from penstock.errors import PenstockError
from penstock.spark.sessions import is_on_this_host

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def connect(remote: str, conf: Mapping[str, str], file: str | None, *, verbose: bool) -> SparkSession:
    """Connect to the server at `remote`, and send it the module of the pipeline. Raises `PenstockError`."""
    run_workers_with_this_python()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(remote)
    # With "local[2]" PySpark starts a server, which says a lot. Any other server has its settings.
    quiet = {"spark.ui.showConsoleProgress": "false"} if is_on_this_host(remote) and not verbose else {}
    for key, value in {**quiet, **conf}.items():
        builder = builder.config(key, value)
    relay = Relay()
    try:
        with relay.catching():
            session = builder.getOrCreate()
        if file is not None:
            session.addArtifacts(file, pyfile=True)
    # PySpark exits where a package is missing and it takes the program for one of its own tests.
    except (Exception, SystemExit) as error:
        relay.release(show_held=True)
        raise PenstockError(
            f"cannot open a session on the Spark Connect server at {remote}: {error}\nThis machine "
            "needs pyspark[connect] (grpcio, protobuf and others), and the server must run Spark 4.3 "
            "and be reachable at an address such as sc://host:15002."
        ) from error
    relay.release(show_held=verbose)
    return session
