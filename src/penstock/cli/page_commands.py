"""`penstock ui`, `penstock logs` and `penstock top`: a pipeline of another process, or one that has ended."""

from __future__ import annotations

import datetime
import socket
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.checkpoints import CheckpointDirectory
from penstock.checkpoints import open as open_directory
from penstock.cli.checkpoints.commands import Directory, Json
from penstock.cli.checkpoints.tables import print_json, table_of
from penstock.cli.failures import reported
from penstock.cli.progress.stats import shown_bytes, shown_count, shown_seconds
from penstock.dashboard.guard import Guard
from penstock.dashboard.server import HOST_DEFAULT, PORT_DEFAULT, Server, missing_packages
from penstock.dashboard.sights.stored import StoredSight
from penstock.dashboard.tokens import token_of
from penstock.dashboard.views import GraphView, LogLineView, LogsView, Overview
from penstock.errors import PenstockError
from penstock.storage.lease import owner_of

T = TypeVar("T")

_ANSWER_S = 5.0
_INSTALL = "pip install 'penstock[ui]'"

Port = Annotated[int, typer.Option("--port", metavar="N", help="Port, or the next free one. Example: --port 8080")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on. Example: --host 0.0.0.0")]
Browse = Annotated[bool, typer.Option("--open", help="Open the page in a browser. Example: --open")]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Number of lines. Example: --limit 50")
]
Turns = Annotated[
    int | None, typer.Option("--turns", metavar="N", min=1, help="Exit after this many updates. Example: --turns 1")
]


def ui(directory: Directory, port: Port = PORT_DEFAULT, host: Host = HOST_DEFAULT, browse: Browse = False) -> None:
    """Show the page of a pipeline of another process, or of one that has ended. Ctrl-C exits.

    If its driver has its own page on this host, print that address: it has the live figures.

    Example: penstock ui /tmp/totals --open
    """
    with reported():
        opened = open_directory(directory)
        if (address := live_page(opened)) is not None:
            _say_page("the pipeline's own page is at", address, browse)
            return
        if missing := missing_packages():
            raise PenstockError(f"the page needs {', '.join(missing)}: {_INSTALL}")
        server = serve(opened, port, host)
        _say_page(f"page of {directory}, from its checkpoints:", server.address, browse)
        try:
            server.wait()
        except KeyboardInterrupt:
            server.close()


def serve(opened: CheckpointDirectory, port: int, host: str) -> Server:
    """A server for a checkpoint directory. Orders reach its driver, if there is one, through the directory."""
    token = token_of(opened.store)[0] if _is_running(opened) else None
    return Server(StoredSight(opened), Guard(token), host=host, port=port).start()


def logs(directory: Directory, limit: Limit = 200, as_json: Json = False) -> None:
    """Print the last warnings and errors of a pipeline, of its driver and its workers.

    Example: penstock logs /tmp/totals --limit 20
    """
    with reported():
        opened = open_directory(directory)
        address = live_page(opened)
        if address is not None:
            found = _asked(address, f"/api/v1/logs?limit={limit}", LogsView)
        else:
            found = StoredSight(opened).logs(limit)
        if as_json:
            print_json(msgspec.to_builtins(found))
            return
        for line in found.lines:
            typer.echo(_line(line))
        if found.dropped:
            typer.echo(f"({found.dropped} earlier lines are not kept)", err=True)
        if not found.lines:
            typer.echo("no warnings and no errors", err=True)


def top(directory: Directory, turns: Turns = None) -> None:
    """Show the operators of a running pipeline, live: rows per second, shares of time, queues, state. Ctrl-C exits.

    Example: penstock top /tmp/totals
    """
    with reported():
        opened = open_directory(directory)
        address = live_page(opened)
        if address is None:
            raise PenstockError(_no_page(opened) if _is_running(opened) else f"no pipeline is running on {directory}")
        try:
            _watch(lambda: _operators(address), turns)
        except KeyboardInterrupt:
            return


# --- the page of a driver ---


def live_page(opened: CheckpointDirectory) -> str | None:
    """The address of the driver's own page, if the driver runs on this host and the page answers."""
    owner = owner_of(opened.store)
    if owner is None or not owner.is_alive or owner.page is None or owner.host != socket.gethostname():
        return None
    try:
        found = _asked(owner.page, "/api/v1/overview", Overview)
    except PenstockError:
        return None
    # Another pipeline may have the port by now.
    return owner.page if found.pipeline == owner.pipeline else None


def _is_running(opened: CheckpointDirectory) -> bool:
    owner = owner_of(opened.store)
    return owner is not None and owner.is_alive


def _no_page(opened: CheckpointDirectory) -> str:
    owner = owner_of(opened.store)
    if owner is None or owner.page is None:
        return f"the pipeline on {opened.place} has no page: start it with penstock[ui] installed, and with a ui_port"
    port = owner.page.rpartition(":")[2]
    return (
        f"the page of the pipeline on {opened.place} is at {owner.page} on {owner.host}, and does not answer here. "
        f"From another host: ssh -L {port}:127.0.0.1:{port} {owner.host}"
    )


def _asked(address: str, path: str, kind: type[T]) -> T:
    try:
        with urllib.request.urlopen(address + path, timeout=_ANSWER_S) as answer:
            return msgspec.json.decode(answer.read(), type=kind)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise PenstockError(f"the page at {address} does not answer: {error}") from error


def _say_page(what: str, address: str, browse: bool) -> None:
    typer.echo(f"{what} {address}")
    if browse:
        webbrowser.open(address)


def _line(line: LogLineView) -> str:
    at = datetime.datetime.fromtimestamp(line.at_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    who = "driver" if line.worker is None else f"worker {line.worker}"
    operator = f" {line.operator}" if line.operator else ""
    return f"{at} {line.level:<7} {who}{operator}: {line.text}"


# --- operators, live ---


def _watch(table: Callable[[], Table], turns: int | None) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, 160))
    with Live(table(), console=console, auto_refresh=False) as live:
        done = 1
        while turns is None or done < turns:
            time.sleep(1)
            live.update(table(), refresh=True)
            done += 1


def _operators(address: str) -> Table:
    overview = _asked(address, "/api/v1/overview", Overview)
    graph = _asked(address, "/api/v1/graph", GraphView)
    columns = ("operators", "x", "in/s", "out/s", "busy", "held up", "queue", "state", "lag")
    title = f"{overview.pipeline}: {overview.phase_text}, checkpoint {overview.last_checkpoint or 'none yet'}"
    table = table_of(columns, Text(title).plain)
    for each in graph.vertices:
        names = Text(" → ".join(operator.name for operator in each.operators))
        table.add_row(
            names,
            str(each.parallelism),
            _shown(each.rows_in_per_second, lambda rows: shown_count(round(rows))),
            _shown(each.rows_out_per_second, lambda rows: shown_count(round(rows))),
            _shown(each.busy, _percent),
            _shown(each.backpressured, _percent),
            _shown(each.queue_bytes, lambda size: shown_bytes(int(size))),
            _shown(each.state_bytes, lambda size: shown_bytes(int(size))),
            _shown(each.watermark_lag_ms, lambda ms: shown_seconds(ms / 1000)),
        )
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _shown(value: float | None, shown: Callable[[float], str]) -> str:
    return "-" if value is None else shown(value)
