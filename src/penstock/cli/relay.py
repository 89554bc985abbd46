"""What Spark's process writes to standard error, taken in and passed on.

Spark says a lot while it starts, before it knows its log level, and writes over whatever is drawn on the terminal. So
its standard error is a pipe: held back while it starts, and from then on passed on line by line to `sys.stderr`, which
a live display prints above itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import IO

_LINES_HELD_MAX = 500
_ERROR = 2


class Relay:
    """Passes lines on, once it was told to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[str] | None = deque(maxlen=_LINES_HELD_MAX)

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        """Processes that are started in here write to the relay, for as long as they live."""
        sys.stderr.flush()
        reader, writer = os.pipe()
        original = os.dup(_ERROR)
        os.dup2(writer, _ERROR)
        # The only writers left after this are those processes, so the thread ends with the last of them.
        os.close(writer)
        threading.Thread(target=self._pass_on, args=(os.fdopen(reader, errors="replace"),), daemon=True).start()
        try:
            yield
        finally:
            os.dup2(original, _ERROR)
            os.close(original)

    def release(self, *, show_held: bool) -> None:
        """Pass on everything from now on; what was held back until now too, or not."""
        with self._lock:
            held, self._held = self._held, None
        if show_held and held:
            sys.stderr.writelines(held)

    def tail(self, count: int) -> str:
        """The last lines that were held back."""
        with self._lock:
            return "".join(list(self._held or ())[-count:]).rstrip()

    def _pass_on(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                with self._lock:
                    if self._held is not None:
                        self._held.append(line)
                        continue
                # A terminal that is gone is no reason to let Spark's process block on its pipe.
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(line)
                    sys.stderr.flush()
