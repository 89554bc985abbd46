"""Records for which a user's function raises: `on_error="drop"` and `on_error="stream"`.

A function of rows is called once for each row, and the row alone fails. A function of batches is called again with the
halves of a batch for which it has raised, until the bad rows are alone: about two calls for each bad row and each
halving. Errors of connections, files and memory are never those of a record: they fail the pipeline, whatever
`on_error` says, or an outage would throw the stream away.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias, TypeVar

import pyarrow as pa

from penstock.connectors.dead_letters import DeadLetter, batch_of, labelled
from penstock.errors import DataError, PenstockError, UserCodeError
from penstock.ids import DEAD_LETTERS
from penstock.metrics import standard as metrics
from penstock.operators.contract import OperatorContext
from penstock.user_code import is_outside, place_of, raised_at, reason_of, shortened

OnError: TypeAlias = Literal["raise", "drop", "stream"]
T = TypeVar("T")

_log = logging.getLogger("penstock")
_PAUSE_MS = 60_000


class RaisedElsewhere(UserCodeError):
    """A function has raised in another process: the text is all that is known."""


def is_of_records(error: Exception) -> bool:
    """Whether the records may be to blame, and not the world outside or the engine."""
    if isinstance(error, RaisedElsewhere):
        return not error.may_pass
    if isinstance(error, PenstockError):
        return isinstance(error, DataError)
    return not is_outside(error)


def narrowed(
    rows: int, attempt: Callable[[int, int], T], failed: Callable[[int, Exception], None], first: int = 0
) -> Iterator[T]:
    """The results of `attempt(first, end)` for all rows but those that fail alone, which `failed` hears of."""
    try:
        result = attempt(first, first + rows)
    except Exception as error:
        if not is_of_records(error):
            raise
        if rows == 1:
            failed(first, error)
            return
        half = rows // 2
    else:
        yield result
        return
    yield from narrowed(half, attempt, failed, first)
    yield from narrowed(rows - half, attempt, failed, first + half)


def each_called(
    function: Callable[[T], object], rows: Sequence[T], failed: Callable[[int, Exception], None]
) -> tuple[list[int], list[object]]:
    """The numbers of the rows that a function takes, and its results for them."""
    numbers: list[int] = []
    results: list[object] = []
    for number, row in enumerate(rows):
        try:
            results.append(function(row))
        except Exception as error:
            if not is_of_records(error):
                raise
            failed(number, error)
        else:
            numbers.append(number)
    return numbers, results


class Failures:
    """The records of one subtask for which its function has raised: counted, and told of or sent to `dead_letters()`.

    It belongs to the mailbox thread. Call it only where the operator may emit.
    """

    def __init__(self, context: OperatorContext, on_error: OnError) -> None:
        self._context = context
        self._is_stream = on_error == "stream"
        self._count = context.metrics.counter(metrics.DEAD_LETTERS if self._is_stream else metrics.DROPPED)
        self._warned_at_ms: int | None = None
        self._untold = ""

    def report(self, rows: pa.RecordBatch, errors: Sequence[Exception]) -> None:
        """One error for each row."""
        if not errors:
            return
        self._count.add(len(errors))
        if self._is_stream:
            letters = [_letter(row, error) for row, error in zip(rows.to_pylist(), errors, strict=True)]
            self._context.emit_to(DEAD_LETTERS, labelled(batch_of(letters, None), self._context.operator))
            return
        self._untold = _told(rows.slice(rows.num_rows - 1).to_pylist()[0], errors[-1])
        now_ms = self._context.now_ms()
        if self._warned_at_ms is None or now_ms - self._warned_at_ms >= _PAUSE_MS:
            self._warned_at_ms = now_ms
            self._warn()

    def close(self) -> None:
        """The last word is not held back."""
        if self._untold:
            self._warn()

    def _warn(self) -> None:
        _log.warning(
            "operator '%s', subtask %d: %d records so far were dropped because the function raised. The last one: %s. "
            'To keep such records, set on_error="stream" and give dead_letters() a sink',
            self._context.operator,
            self._context.subtask,
            self._count.value,
            self._untold,
        )
        self._untold = ""


def failures_of(context: OperatorContext, on_error: OnError) -> Failures | None:
    return None if on_error == "raise" else Failures(context, on_error)


def _letter(row: dict[str, object], error: Exception) -> DeadLetter:
    path, line = place_of(error)
    return DeadLetter(path, _reason(error), line, raw=json.dumps(row, default=_plain, ensure_ascii=False))


def _told(row: dict[str, object], error: Exception) -> str:
    at = raised_at(error)
    return f"{_reason(error)}{f' ({at})' if at else ''}, for {shortened(repr(row))}"


def _reason(error: Exception) -> str:
    if isinstance(error, RaisedElsewhere):
        return str(error)
    return f"{type(error).__name__}: {reason_of(error)}"


def _plain(value: object) -> object:
    """A value that JSON does not have, as a text: bytes in base64, times in ISO 8601."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    as_text: Callable[[], str] | None = getattr(value, "isoformat", None)
    return str(value) if as_text is None else as_text()
