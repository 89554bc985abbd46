"""Starting a pipeline on Spark: everything is checked first, so that what can go wrong goes wrong here."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.connectors.sink import Committer
from penstock.driver.observation.listeners import JobListener
from penstock.errors import OptionError
from penstock.graph.logical import Graph
from penstock.graph.physical import plan as plan_graph
from penstock.ids import OperatorName
from penstock.spark.job import Job
from penstock.spark.labels import stop_progress_bar
from penstock.spark.preflight import check_session
from penstock.spark.sessions import context_of, driver_address
from penstock.spark.settings import Settings
from penstock.spark.worker_group import StoreAddress
from penstock.storage import open_store
from penstock.storage.copies import import_checkpoint
from penstock.storage.lease import Lease

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("penstock")


def start(
    graph: Graph,
    spark: SparkSession,
    checkpoints: str | os.PathLike[str],
    *,
    parallelism: int | None = None,
    workers: int | None = None,
    restore: str | os.PathLike[str] | int | None = None,
    storage_options: dict[str, object] | None = None,
    listeners: Sequence[JobListener] = (),
    **options: Any,
) -> Job:
    """Start a pipeline, or resume it if `checkpoints` holds checkpoints of it.

    `parallelism` is for operators that name none (default: the slots of the session, at most `workers`), `workers`
    the number of Spark tasks (default: the largest parallelism). `restore` names the checkpoint to start from: an id
    in `checkpoints`, or the path of a savepoint. `listeners` hear of the pipeline's life from its start on. All
    else is described at `Settings`.
    """
    settings = Settings.of(options)
    _check_arguments(spark, checkpoints, parallelism, workers)
    _check_listeners(listeners)
    _check_restore(restore)
    if not isinstance(storage_options, Mapping | None):
        raise OptionError(
            f"storage_options is {storage_options!r}: it must be a dict for fsspec, such as {{'anon': True}}, or None"
        )
    if parallelism is None:
        parallelism = workers or min(_default_parallelism(spark), graph.max_parallelism)
    plan = plan_graph(graph, parallelism, workers)
    check_session(spark, plan.workers)
    store = open_store(checkpoints, storage_options=storage_options)
    Lease(store, graph.name).check()
    if restore is not None:
        import_checkpoint(store, restore if isinstance(restore, int) else os.fspath(restore), storage_options)
    committers: dict[OperatorName, Committer] = {}
    for node in graph.nodes:
        if node.source is not None:
            node.source.on_start()
        committer = node.sink.committer() if node.sink is not None else None
        if committer is not None:
            committers[node.name] = committer
    network = driver_address(spark)
    address = StoreAddress(getattr(store, "url", os.fspath(checkpoints)), storage_options or {})
    if stop_progress_bar(spark):
        _log.info("Spark's progress bar is off in this session: it would be drawn over everything, without end")
    return Job(spark, graph.name, plan, settings, committers, store, address, network, listeners)._start()


def _check_arguments(spark: Any, checkpoints: Any, parallelism: Any, workers: Any) -> None:
    if not hasattr(spark, "createDataFrame"):
        raise OptionError(
            f"start needs a SparkSession, not {spark!r}: SparkSession.builder.getOrCreate() makes one. To run without "
            f"Spark, in a test, there is penstock.testing.run"
        )
    if not isinstance(checkpoints, str | os.PathLike):
        raise OptionError(
            f"checkpoints is {checkpoints!r}: it must be the path or URL of a directory, such as '/data/checkpoints/p'"
        )
    for name, value in (("parallelism", parallelism), ("workers", workers)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise OptionError(f"{name} is {value!r}: it must be a whole number of at least 1, or None")


def _check_listeners(listeners: Any) -> None:
    if isinstance(listeners, JobListener) or not isinstance(listeners, Iterable):
        raise OptionError(f"listeners is {listeners!r}: it must be a list of penstock.JobListener")
    for listener in listeners:
        if not isinstance(listener, JobListener):
            raise OptionError(f"listeners has {listener!r}: all of them must be a penstock.JobListener")


def _check_restore(restore: Any) -> None:
    if isinstance(restore, str | os.PathLike):
        can_work = os.fspath(restore).strip("0") != ""
    else:
        can_work = restore is None or (type(restore) is int and restore >= 1)
    if not can_work:
        raise OptionError(
            f"restore is {restore!r}: it must be the id of a checkpoint, such as 17, or the path or URL of a savepoint"
        )


def _default_parallelism(spark: SparkSession) -> int:
    context = context_of(spark)
    return max(1, int(context.defaultParallelism)) if context is not None else 1
