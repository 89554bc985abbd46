"""The call `KeyedStream.join`: its arguments, checked, and the operator that they describe."""

from __future__ import annotations

import functools
import logging
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.api.arguments import require_choice
from penstock.errors import DataError, PipelineError
from penstock.graph.edges import OutputPort
from penstock.graph.logical import Keeps
from penstock.ids import LATE_OF_SIDE, MAIN_OUTPUT
from penstock.model.changelog import Changelog
from penstock.model.joins import SIDES, How, IntervalBounds, JoinBounds, RegularBounds, WindowBounds
from penstock.model.units import Duration, duration_ms
from penstock.model.windows import Late
from penstock.operators.join.operator import JoinOperator
from penstock.operators.join.output import key_type
from penstock.operators.join.spec import JoinSpec

if TYPE_CHECKING:
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.stream import Stream

_log = logging.getLogger("penstock")


def joined_streams(
    left: KeyedStream,
    right: object,
    *,
    between: tuple[Duration, Duration] | None,
    window: Duration | None,
    state_ttl: Duration | None,
    how: How,
    on: str | tuple[str, str] | None,
    late: Late,
    suffix: str,
    name: str | None,
    parallelism: int | None,
) -> Stream:
    """The result of `KeyedStream.join`."""
    from penstock.api.keyed_stream import KeyedStream

    left._require_own("join", right)
    if not isinstance(right, KeyedStream):
        raise PipelineError(f'join takes a keyed stream: call key_by("…") on the right side too, which is {right!r}')
    for side in (left, right):
        side._require_columns("join")
        side._require_appends("join", "a pair of a record that is taken back would stay; join the records themselves")
    require_choice("join: how", how, "inner", "left", "right", "full")
    require_choice("join: late", late, "drop", "error", "stream")
    if not suffix:
        raise PipelineError(f"join: suffix is {suffix!r}: it must be a string, such as '_right'")
    times = _times(left, right, on)
    bounds = _bounds(between, window, state_ttl, has_event_time=None not in times)
    _check_keys(left, right)
    if bounds.closes:
        _require_event_time(bounds, times)
    elif not bounds.has_clock:
        _log.warning(
            "pipeline '%s': a regular join keeps every row of both sides, so its state grows without "
            'bound. Set state_ttl="1 day" to expire rows after that time, or join with between=… or '
            "window=…",
            left.pipeline.name,
        )
    schemas = _declared(left), _declared(right)
    spec = JoinSpec(bounds, how, (left.key, right.key), times, late, suffix, schemas)
    if late == "stream" and spec.clock != "event":
        raise PipelineError(
            "join: late is 'stream': no row of this join is late, since it has no event time. Leave late=… out, or "
            "join with between=…, window=… or a state_ttl of event time"
        )
    chosen = left.pipeline._add(
        "join",
        name,
        left._parallelism if parallelism is None else parallelism,
        how,
        operator=functools.partial(JoinOperator, spec),
        keeps=Keeps.KEYS,
        learns_schemas=how != "inner",
        definition=_definition(spec),
        side_outputs=tuple(LATE_OF_SIDE.values()) if late == "stream" else (),
    )
    left.pipeline._connect(left._ports, chosen, 0)
    left.pipeline._connect(right._ports, chosen, 1)
    # An outer join that cannot wait inserts a row without a partner, and deletes it when one comes.
    changelog: Changelog | None = "retracting" if how != "inner" and not bounds.closes else None
    return left._stream((OutputPort(chosen, event_time=_result_time(spec), changelog=changelog),))


def _times(left: KeyedStream, right: KeyedStream, on: str | tuple[str, str] | None) -> tuple[str | None, str | None]:
    if on is None:
        return left._event_time, right._event_time
    named = (on, on) if isinstance(on, str) else on
    if not all(named):
        raise PipelineError(f'join: on is {on!r}: it must be the event-time column of both sides, or ("left", "right")')
    return named


def _bounds(
    between: tuple[Duration, Duration] | None,
    window: Duration | None,
    state_ttl: Duration | None,
    *,
    has_event_time: bool,
) -> JoinBounds:
    given = [
        name
        for name, value in (("between", between), ("window", window), ("state_ttl", state_ttl))
        if value is not None
    ]
    if len(given) > 1:
        raise PipelineError(
            f"join: {' and '.join(given)} are given, but each selects a different kind of join: choose one"
        )
    if between is not None:
        return _interval(between)
    if window is not None:
        return WindowBounds(duration_ms("join: window", window, at_least_ms=1, exactly=True))
    if state_ttl is None:
        return RegularBounds(None, False)
    return RegularBounds(duration_ms("join: state_ttl", state_ttl, at_least_ms=1), has_event_time)


def _interval(between: object) -> IntervalBounds:
    if not isinstance(between, tuple | list) or len(between) != 2:
        raise PipelineError(f'join: between is {between!r}: it must be two durations, such as ("-5 min", "10 min")')
    lower_ms, upper_ms = (_signed_ms(value) for value in between)
    if lower_ms > upper_ms:
        raise PipelineError(
            f"join: between is {between!r}, from {lower_ms} ms to {upper_ms} ms: the interval is "
            "empty. Swap the two bounds"
        )
    return IntervalBounds(lower_ms, upper_ms)


def _signed_ms(value: Duration) -> int:
    """A duration that may be negative: the right row is earlier by that much."""
    what = "join: between"
    if isinstance(value, str):
        text = value.strip()
        size = duration_ms(what, text.lstrip("+-") if text[:1] in ("+", "-") else text, exactly=True)
        return -size if text.startswith("-") else size
    if isinstance(value, timedelta):
        return duration_ms(what, abs(value), exactly=True) * (-1 if value < timedelta(0) else 1)
    return -duration_ms(what, -value, exactly=True) if value < 0 else duration_ms(what, value, exactly=True)


def _check_keys(left: KeyedStream, right: KeyedStream) -> None:
    if len(left.key) != len(right.key):
        raise PipelineError(
            f"join: the left side is keyed by {', '.join(left.key)} and the right side by {', '.join(right.key)}: both "
            f"need a key of as many columns, though not of the same names"
        )
    ours, theirs = _declared(left), _declared(right)
    if ours is None or theirs is None:
        return
    for our_name, their_name in zip(left.key, right.key, strict=True):
        if ours.names.count(our_name) == 1 and theirs.names.count(their_name) == 1:
            try:
                key_type(ours.field(our_name), theirs.field(their_name))
            except DataError as error:
                raise PipelineError(f"join: {error}") from None


def _require_event_time(bounds: JoinBounds, times: tuple[str | None, str | None]) -> None:
    missing = [SIDES[side] for side, column in enumerate(times) if column is None]
    if missing:
        sides = " and ".join(f"the {side} side" for side in missing)
        raise PipelineError(
            f"join {bounds} needs event time, and {sides} {'has' if len(missing) == 1 else 'have'} none: call "
            f'with_watermark("…", "10 s") there, or name the columns with on=… if the sources make their own watermarks'
        )


def _declared(stream: KeyedStream) -> pa.Schema | None:
    """The schema of a stream, if the operator that it comes from declares it."""
    if len(stream._ports) != 1 or stream._ports[0].output != MAIN_OUTPUT:
        return None
    operator = stream._ports[0].operator
    return next(node.schema for node in stream.pipeline._nodes if node.name == operator)


def _definition(spec: JoinSpec) -> tuple[tuple[str, str], ...]:
    """The settings that its state depends on."""
    settings = {"rows": str(spec.bounds), "right key": ", ".join(spec.keys[1])}
    if spec.clock == "event":
        settings["event times"] = ", ".join(str(column) for column in spec.on)
    return tuple(settings.items())


def _result_time(spec: JoinSpec) -> str | None:
    """The column of the event time of the result: of the side whose rows are in every result."""
    left, right = spec.on
    if not spec.bounds.closes or spec.how == "full":
        return None
    if spec.how != "right":
        return left
    return f"{right}{spec.suffix}" if right == left else right
