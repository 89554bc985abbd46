"""The two ways of showing progress: a live panel for a person at a terminal, plain lines for everybody else."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from typing import Protocol, TextIO

from rich import box
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from penstock.cli.progress.readings import Reading, declined_text, first_line, left_out, plain_line, recovery_text
from penstock.cli.progress.stats import shown_bytes, shown_count, shown_ms, shown_seconds
from penstock.protocol.history import CheckpointRecord

_LINE_EVERY_S = 2.0
_WIDTH_MAX = 100
_PHASE_STYLES = {"running": "green", "failed": "bold red", "finished": "bold green", "stopped": "bold green"}


class Display(Protocol):
    """Shows readings from `open` to `close`."""

    def open(self) -> None: ...

    def show(self, reading: Reading) -> None:
        """Called several times a second; how often anything is drawn is the display's business."""
        ...

    def say(self, text: str) -> None:
        """A remark that stays, such as the answer to Ctrl-C."""
        ...

    def note(self, text: str) -> None:
        """A remark about progress: it stays, unless nobody wants to hear of progress."""
        ...

    def close(self, reading: Reading) -> None:
        """The last reading: shown whatever was shown before it."""
        ...


class QuietDisplay:
    """Nothing but the answers to Ctrl-C."""

    def open(self) -> None:
        pass

    def show(self, reading: Reading) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, flush=True)

    def note(self, text: str) -> None:
        pass

    def close(self, reading: Reading) -> None:
        pass


class PlainDisplay:
    """One line every two seconds, and one for each new error, each with the time on the wall, as in any log."""

    def __init__(
        self, file: TextIO | None = None, now: Callable[[], datetime.datetime] = datetime.datetime.now
    ) -> None:
        self._file = file
        self._now = now
        self._next_at_s = 0.0
        self._error: str | None = None
        self._line = ""

    def open(self) -> None:
        pass

    def show(self, reading: Reading) -> None:
        if reading.status.last_error not in (None, self._error):
            self._error = reading.status.last_error
            self.say(f"{shown_seconds(reading.elapsed_s)} error: {first_line(self._error or '')}")
        if reading.elapsed_s >= self._next_at_s:
            # From now on and not from when it was due: a driver that was held up must not catch up on lines.
            self._next_at_s = reading.elapsed_s + _LINE_EVERY_S
            self._line = plain_line(reading)
            self.say(self._line)

    def say(self, text: str) -> None:
        print(f"{self._now():%Y-%m-%d %H:%M:%S} {text}", file=self._file or sys.stdout, flush=True)

    def note(self, text: str) -> None:
        self.say(text)

    def close(self, reading: Reading) -> None:
        if plain_line(reading) != self._line:
            self.say(plain_line(reading))


class LiveDisplay:
    """A panel that is drawn anew several times a second; what sinks print appears above it."""

    def __init__(self, console: Console, hint: str = "") -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._console = console
        self._hint = hint
        self._drawn: tuple[int, int] | None = None
        """Width and height of the panel on the screen."""

    def open(self) -> None:
        self._live.start()

    def show(self, reading: Reading) -> None:
        self._draw(reading, self._hint)

    def _draw(self, reading: Reading, hint: str) -> None:
        # Room for the ^C that a terminal echoes behind the panel: in the next line it would move everything.
        width = min(_WIDTH_MAX, self._console.width - 4)
        panel = panel_of(reading, hint, width)
        if self._drawn is not None:
            self._wipe_wrapped(*self._drawn)
        self._live.update(panel, refresh=True)
        self._drawn = width, len(self._console.render_lines(panel, pad=False))

    def _wipe_wrapped(self, width: int, height: int) -> None:
        """Remove a panel that the terminal has wrapped, because it has become narrower than the panel.

        Each of its lines takes several rows now, and `Live` goes up by one for each line: so the panel is erased, and
        the cursor put where the last line would be. On a terminal that cuts lines instead of wrapping them, rows above
        the panel go with it.
        """
        rows = height * -(-width // self._console.width)
        if rows > height:
            self._console.file.write(f"\r\x1b[{rows - 1}A\x1b[J" + "\n" * (height - 1))

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def note(self, text: str) -> None:
        self.say(text)

    def close(self, reading: Reading) -> None:
        self._draw(reading, "")
        self._live.stop()


def panel_of(reading: Reading, hint: str = "", width: int = _WIDTH_MAX) -> Panel:
    """Everything that is known of a running pipeline.

    Always of the same height: what others print meanwhile appears above the panel, and where that is was decided
    when the panel was drawn before.
    """
    status = reading.status
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=12)
    table.add_column(no_wrap=True, min_width=10)
    table.add_column(no_wrap=True, overflow="ellipsis")
    others = "".join(f", {shown_count(count)} {name.replace('_', ' ')}" for name, count in left_out(status))
    table.add_row("in", f"{shown_count(status.rows_in)} rows", f"{shown_count(reading.rows_in_per_s)}/s{others}")
    table.add_row("out", f"{shown_count(status.rows_out)} rows", f"{shown_count(reading.rows_out_per_s)}/s")
    bar = ProgressBar(total=100, completed=status.backpressure_percent, width=24, complete_style="yellow")
    table.add_row("backpressure", f"{status.backpressure_percent}%", bar)
    table.add_row("checkpoint", *_checkpoint(reading.completed))
    declined = declined_text(reading.declined) if reading.declined is not None else ""
    declined = first_line(reading.held_up) or declined
    table.add_row("", "", Text(declined, style="yellow"))
    recovery = "" if status.recovery is None else recovery_text(status.recovery)
    table.add_row("recovery", "" if recovery else "none", recovery)
    table.add_row("restarts", str(status.restarts), Text(first_line(status.last_error or ""), style="red"))
    title = Text.assemble(
        (status.name, "bold"), "  ", (reading.phase, _PHASE_STYLES.get(status.phase.value, "yellow")), "  "
    ).append(shown_seconds(reading.elapsed_s), style="dim")
    subtitle = Text(hint, style="dim") if hint else None
    return Panel(
        table, title=title, title_align="left", subtitle=subtitle, subtitle_align="left", box=box.ROUNDED, width=width
    )


def _checkpoint(record: CheckpointRecord | None) -> tuple[str, str]:
    if record is None:
        return "none yet", ""
    how = "unaligned" if record.is_unaligned else "aligned"
    state, inflight = shown_bytes(record.state_bytes), shown_bytes(record.inflight_bytes)
    return f"{record.checkpoint}", f"{shown_ms(record.duration_ms)}  {how}  {state} state  {inflight} in flight"
