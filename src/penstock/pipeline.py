"""What a user begins with, and starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, Unpack, overload

from penstock.api.builder import Builder
from penstock.graph.explanation import explained
from penstock.graph.physical import plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.job import Job
    from penstock.spark.settings import StartOptions


class Pipeline(Builder):
    """A pipeline: begin with `source`. `max_parallelism` is the number of key groups, and cannot change later."""

    def start(self, spark: SparkSession, checkpoints: str | os.PathLike[str], **options: Unpack[StartOptions]) -> Job:
        """Start on Spark, or resume from what the directory or URL `checkpoints` holds.

            job = pipeline.start(spark, "/data/checkpoints/totals", parallelism=4, checkpoint_interval="1 s")

        `parallelism` is for operators that name none (default: the slots of the session, at most `workers`), `workers`
        the number of Spark tasks (default: the largest parallelism), `restore` the checkpoint to start from: an id in
        `checkpoints`, or the path of a savepoint. `storage_options` are for URLs. `listeners` are
        `JobListener`s that receive the pipeline's events from its start on.

        With `penstock[ui]` the driver serves a page, REST and Prometheus at `ui_port`, or the next free port; None for
        no page. `ui_host` is the address it listens on (default: this machine alone), `ui_allowed_hosts` are names by
        which other hosts may request it, and `metrics_names="flink"` exports metrics under the names of Flink. The page
        needs the printed token for orders; reading needs none. With `penstock[otel]` metrics are also exported to the
        collector at `otel_endpoint`, or at that of OTEL_EXPORTER_OTLP_ENDPOINT.

        The other options are described at `penstock.Settings`, with their defaults. A duration is a string such as
        "500 ms", a `timedelta`, or a number of seconds; a size is a string such as "256 MiB", or a number of bytes.

        Example on Spark:

            orders.sink(output, name="output")
            job = pipeline.start(spark, "/tmp/penstock/start", workers=1, parallelism=1)
            assert job.wait(timeout=120)
            assert len(output.rows()) == 3
        """
        # Only those who start a pipeline on Spark pay for importing what runs it.
        from penstock.dashboard import server, telemetry
        from penstock.spark import launch

        port, host = options.pop("ui_port", server.PORT_DEFAULT), options.pop("ui_host", server.HOST_DEFAULT)
        names, hosts = options.pop("metrics_names", "penstock"), options.pop("ui_allowed_hosts", ())
        endpoint = options.pop("otel_endpoint", None)
        server.check_options(port, host, names, hosts)
        telemetry.check_endpoint(endpoint)
        job = launch.start(self.graph(), spark, checkpoints, **options)
        server.open_page(job, port, host, names, hosts)
        telemetry.export_metrics(job, endpoint)
        return job

    @overload
    def explain(self, *, parallelism: int | None = ..., to_string: Literal[False] = ...) -> None: ...

    @overload
    def explain(self, *, parallelism: int | None = ..., to_string: Literal[True]) -> str: ...

    @overload
    def explain(self, *, parallelism: int | None = ..., to_string: bool) -> str | None: ...

    def explain(self, *, parallelism: int | None = None, to_string: bool = False) -> str | None:
        """Print the plan, or return it as a text: chains, exchanges with their keys, state, and names.

        An exchange that barriers can overtake on does not hold up an unaligned checkpoint. Nothing is started.
        `parallelism` is for operators that name none, as in `start`; without it, theirs is left open.

        Example:

            >>> totals = orders.key_by("user").sum("amount", name="totals")
            >>> totals.sink(ConsoleSink(), name="out").explain(parallelism=2)
            Pipeline 'orders': 2 chains, 1 exchange
              default parallelism: 2; workers: 2; key groups: 128
            ...
        """
        text = explained(plan(self._described(), parallelism or 1), parallelism)
        if to_string:
            return text
        print(text)
        return None
