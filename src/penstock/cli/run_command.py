"""`penstock run`: from the name of a pipeline to its end."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from penstock.cli.failures import reported
from penstock.cli.loading import Loaded, load
from penstock.cli.options import duration_of, port_of, properties_of, settings_of
from penstock.cli.progress.displays import Display, LiveDisplay, PlainDisplay, QuietDisplay
from penstock.cli.remote import connect
from penstock.cli.running import Watch, signals_to
from penstock.cli.session import MASTER_DEFAULT, make_session, properties_for
from penstock.ids import OperatorName
from penstock.storage import open_store, paths
from penstock.storage.copies import check_restore
from penstock.storage.lease import Lease

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TARGET = (
    "The pipeline: module:name or path/to/file.py:name. The name is that of a Pipeline, or of a function without "
    "arguments that returns one. Example: examples/running_totals.py:pipeline"
)
_CHECKPOINTS = (
    "Directory or URL of the checkpoints; the pipeline resumes from its newest checkpoint. Without "
    "it, checkpoints/ and the name of the pipeline. Example: --checkpoints s3://bucket/totals"
)
_PARALLELISM = "Parallelism of operators that set none; without it, the slots of the session. Example: --parallelism 4"
_WORKERS = "Number of Spark tasks; without it, the largest parallelism. Example: --workers 2"
_MASTER = "Spark master. Example: --master 'local[2]'"
_CONF = "A Spark property; may be repeated. Example: --conf spark.driver.memory=2g"
_RESTORE = "Checkpoint to start from: an id in the directory, or the path of a savepoint. Example: --restore 17"
_SET = (
    "A setting of the pipeline, see below; may be repeated. Durations in seconds, or as 500ms or '10 min'; sizes in "
    "bytes, or as 256MiB. Example: --set checkpoint_interval=1s"
)
_FOR = "Stop after the workers have run for this long, as Ctrl-C does. Example: --for 60s"
_DRAIN = "Whether Ctrl-C, SIGTERM and --for stop with a savepoint, or at once. Example: --no-drain-on-interrupt"
_REMOTE = (
    "Spark Connect server to run on, in place of --master; needs pyspark[connect]. "
    "Example: --remote sc://spark.example:15002"
)
_UI_PORT = "Port of the page, or the next free one; none for no page. Example: --ui-port 8080"
_QUIET = "No progress: only the address of the page, errors, output of sinks, and the last line. Example: --quiet"
_VERBOSE = "Show Spark's warnings, and tracebacks. Example: --verbose"


def run(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=_TARGET, show_default=False)],
    checkpoints: Annotated[str | None, typer.Option("--checkpoints", metavar="DIR", help=_CHECKPOINTS)] = None,
    parallelism: Annotated[int | None, typer.Option("--parallelism", metavar="N", min=1, help=_PARALLELISM)] = None,
    workers: Annotated[int | None, typer.Option("--workers", metavar="N", min=1, help=_WORKERS)] = None,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help=_MASTER, show_default=MASTER_DEFAULT)
    ] = None,
    remote: Annotated[str | None, typer.Option("--remote", metavar="URL", help=_REMOTE)] = None,
    conf: Annotated[list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help=_CONF)] = None,
    restore: Annotated[str | None, typer.Option("--restore", metavar="ID|PATH", help=_RESTORE)] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help=_SET)] = None,
    limit: Annotated[str | None, typer.Option("--for", metavar="DURATION", help=_FOR)] = None,
    drain_on_interrupt: Annotated[
        bool, typer.Option("--drain-on-interrupt/--no-drain-on-interrupt", help=_DRAIN)
    ] = True,
    ui_port: Annotated[str, typer.Option("--ui-port", metavar="N|none", help=_UI_PORT)] = "4050",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help=_QUIET)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help=_VERBOSE)] = False,
) -> None:
    """Run a pipeline on Spark, or resume it from its checkpoints, until it is finished or stopped.

    Ctrl-C stops it with a savepoint, Ctrl-C twice at once. Exit codes: 0 finished or stopped, 1 failed, 2 wrong usage.

    Example: penstock run examples/running_totals.py:pipeline --checkpoints /tmp/totals --set checkpoint_interval=1
    """
    options = settings_of(settings or ())
    limit_s = None if limit is None else duration_of(limit, "--for")
    conf_given = properties_of(conf or ())
    page = port_of(ui_port, "--ui-port")
    if remote is not None and master is not None:
        raise typer.BadParameter(
            "it names a server, which has its own master: leave --master out", param_hint="--remote"
        )
    with reported(verbose=verbose):
        loaded = load(target)
        name = loaded.pipeline.name
        place = checkpoints or default_directory(name)
        # Checked before Spark is started, because that takes seconds.
        loaded.pipeline.graph()
        store = open_store(place)
        Lease(store, name).check()
        if restore is not None:
            check_restore(store, restore)
        chosen = remote or master or conf_given.get("spark.master", MASTER_DEFAULT)
        start = options | {"parallelism": parallelism, "workers": workers, "restore": restore, "ui_port": page}
        display = _display(drain_on_interrupt, quiet)
        if not quiet:
            where = "connecting to Spark" if remote is not None else "starting Spark"
            typer.echo(f"{where} ({chosen}) for pipeline '{name}', checkpoints in {place}")
        with _session(loaded, chosen, remote, conf_given, verbose) as spark:
            typer.echo(_run(loaded, spark, place, start, limit_s, drain_on_interrupt, display))


def default_directory(pipeline: str) -> str:
    """Where checkpoints are if nobody says: a directory with the name of the pipeline, as far as a path can have it.

    An earlier version added a hash to names with blanks and the like: such a directory is used if it is there.
    """
    earlier = f"checkpoints/{paths.slug(OperatorName(pipeline))}"
    readable = re.sub(r"[^a-z0-9_]+", "-", pipeline.lower()).strip("-")
    return earlier if os.path.isdir(earlier) or not readable else f"checkpoints/{readable}"


def _run(
    loaded: Loaded,
    spark: SparkSession,
    place: str,
    start: dict[str, Any],
    limit_s: float | None,
    drain: bool,
    display: Display,
) -> str:
    job = loaded.pipeline.start(spark, place, **start)
    watch = Watch(job, display, limit_s=limit_s, drain=drain)
    with signals_to(watch.interrupt):
        return watch.run()


def _display(drain: bool, quiet: bool) -> Display:
    if quiet:
        return QuietDisplay()
    console = Console()
    hint = "Ctrl-C stops with a savepoint, twice at once" if drain else "Ctrl-C stops at once"
    return LiveDisplay(console, hint) if console.is_terminal else PlainDisplay()


@contextlib.contextmanager
def _session(
    loaded: Loaded, master: str, remote: str | None, conf: dict[str, str], verbose: bool
) -> Iterator[SparkSession]:
    if remote is not None:
        spark = connect(remote, conf, loaded.file, verbose=verbose)
    else:
        properties = properties_for(loaded.pipeline.name, master, loaded.directories, conf, verbose=verbose)
        spark = make_session(properties, loaded.directories, loaded.file, verbose=verbose)
    try:
        yield spark
    finally:
        # What Spark has to say about its own end is of no interest any more.
        with contextlib.suppress(Exception):
            spark.stop()
