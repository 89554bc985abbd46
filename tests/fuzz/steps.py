"""The steps of a random pipeline as values: how each is built with the public API, written as text, and shaped.

A step is a source, an operator or a sink. `via` says how records travel to it: by key, or by one of the exchanges.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock import CallableSink, FileSource, Pipeline, filtered
from penstock.testing import CollectSink, ListSource
from tests.fuzz import functions
from tests.fuzz.kinds import plain_type
from tests.fuzz.world import FuzzSink, FuzzSource, current, see

UNSETTLED = ("aggregate", "reduce", "running")
"""Steps whose records depend on the order in which their input came: their output is verified, and then believed."""
TWO_INPUTS = ("join_lists", "join_rows", "rules", "sides")


@dataclass(frozen=True)
class Step:
    """One step; `inputs` are numbers of earlier ones."""

    kind: str
    name: str
    inputs: tuple[int, ...] = ()
    key: tuple[tuple[str, ...], ...] = ()
    """The key columns of each input, if it is keyed."""
    exchange: str | None = None
    parallelism: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_keyed(self) -> bool:
        return bool(self.key)

    @property
    def is_sink(self) -> bool:
        return self.kind in ("fuzz_sink", "collect_sink", "callable_sink")


@dataclass(frozen=True)
class Shape:
    """What is known of a stream before anything has run."""

    columns: dict[str, pa.DataType]
    timed_ms: int | None = None
    """If there is event time: how far records may be behind it."""

    def schema(self) -> pa.Schema:
        return pa.schema(list(self.columns.items()))


FILES = Shape({"file": pa.string(), "number": pa.int64()})
"""The records of a source of files."""


# --- shapes ---


def shape_of(step: Step, shapes: Sequence[Shape]) -> Shape:
    """The shape of a step's output, from the shapes of its inputs."""
    if step.kind == "files":
        return FILES
    given = shapes[0]
    columns = dict(given.columns)
    options = step.options
    match step.kind:
        case "union":
            delays = [shape.timed_ms for shape in shapes]
            return Shape(columns, None if None in delays else max(delay for delay in delays if delay is not None))
        case "select":
            return Shape({name: columns[name] for name in options["columns"]}, given.timed_ms)
        case "with_column":
            return Shape({**columns, options["column"]: pa.int64()}, given.timed_ms)
        case "dead_letters":
            return Shape({"line": pa.int64()} if given == FILES else {"reason": pa.string()})
        case "aggregate":
            keys = {name: plain_type(columns[name]) for name in step.key[0]}
            return Shape({**keys, **aggregate_types(options["outputs"], columns)})
        case "window":
            keys = {name: plain_type(columns[name]) for name in step.key[0]}
            bounds = dict.fromkeys(("window_start", "window_end"), columns["t"])
            return Shape({**keys, **bounds, **aggregate_types(options["outputs"], columns)})
        case "running":
            return Shape({**columns, "n": pa.int64(), "total": pa.int64()})
        case "held":
            return Shape(dict(zip(options["schema"].names, options["schema"].types, strict=True)))
        case "join_lists" | "join_rows" | "rules":
            return Shape(dict(zip(functions.PAIRS.names, functions.PAIRS.types, strict=True)))
        case "sides" | "reduce":
            return Shape(columns)
        case _:
            return given


def aggregate_types(outputs: dict[str, Any], columns: dict[str, pa.DataType]) -> dict[str, pa.DataType]:
    return {output: _aggregate_type(wanted, columns) for output, wanted in outputs.items()}


def _outputs(outputs: dict[str, Any]) -> dict[str, Any]:
    """As the API takes them. One with a third part is of the rows whose `v` is below that."""
    return {
        output: wanted
        if wanted == "count" or len(wanted) == 2
        else filtered(*wanted[:2], where=pc.field("v") < wanted[2])
        for output, wanted in outputs.items()
    }


def _aggregate_type(wanted: Any, columns: dict[str, pa.DataType]) -> pa.DataType:
    if wanted == "count" or wanted[0] == "count":
        return pa.int64()
    function, column, *_ = wanted
    kind = plain_type(columns[column])
    if function == "mean" or (function == "sum" and pa.types.is_floating(kind)):
        return pa.float64()
    return pa.int64() if function == "sum" else kind


def held_schema(shape: Shape, key: Sequence[str]) -> pa.Schema:
    keys = [(name, plain_type(shape.columns[name])) for name in key]
    return pa.schema([*keys, ("lane", pa.string()), ("seq", pa.int64()), ("v", pa.int64())])


# --- building ---


def build(
    steps: Sequence[Step],
    shapes: Sequence[Shape],
    pipeline: Pipeline,
    collected: dict[str, CollectSink],
    unnamed: Container[str] = (),
) -> None:
    """Describe the pipeline. `collected` has the sinks that outlive it; `unnamed` are steps without a name."""
    streams: list[Any] = []
    for step, shape in zip(steps, shapes, strict=True):
        inputs = [streams[number] for number in step.inputs]
        streams.append(_built(step, shape, inputs, pipeline, collected, step.name not in unnamed))


def insert(pipeline: Pipeline) -> None:
    """Steps of many kinds in front of all others, without names: nothing of these others may become theirs."""
    rows = [{"k0": f"{n % 3}", "lane": "", "seq": n, "life": 0, "v": n} for n in range(20)]
    stream = pipeline.source(ListSource(rows, batch_rows=3))
    stream = stream.map(_passed).rebalance().filter(pc.field("v") >= 0).map_async(_passed)
    for other in (
        stream.key_by("k0").count("n"),
        stream.key_by("k0").reduce(lambda _, row: row),
        stream.key_by("k0").process(functions.Running("inserted", "value", "arrow")),
    ):
        other.sink(CollectSink())


def _passed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _built(
    step: Step, shape: Shape, inputs: list[Any], pipeline: Pipeline, collected: dict[str, CollectSink], is_named: bool
) -> Any:
    o, settings = step.options, {"name": step.name if is_named else None, "parallelism": step.parallelism}
    if step.kind == "source":
        source = pipeline.source(FuzzSource(step.name, o["splits"]), **settings)
        if shape.timed_ms is None:
            return source
        return source.with_watermark(
            "t",
            delay=f"{shape.timed_ms} ms",
            max_drift=o.get("max_drift"),
            name=f"time of {step.name}" if is_named else None,
            parallelism=step.parallelism,
        )
    if step.kind == "files":
        path = f"{current().directory}/{step.name}"
        source = FileSource(path, format="jsonl", schema=FILES.schema(), on_error=o["on_error"])
        return pipeline.source(source, **settings)
    if step.kind == "dead_letters":
        return inputs[0].dead_letters().select(*shape.columns, **settings)
    if step.kind == "union":
        return inputs[0].union(*inputs[1:])
    for number, key in enumerate(step.key):
        if key:
            inputs[number] = inputs[number].key_by(*key)
    stream = inputs[0]
    if step.exchange is not None:
        stream = getattr(stream, step.exchange)()
    schema, as_, name = shape.schema(), o.get("as_", "arrow"), step.name
    bad = o.get("bad")
    if bad is not None:
        settings["on_error"] = o["on_error"]
    match step.kind:
        case "map":
            add = functions.Add(name, o["number"], as_, bad)
            return stream.map(add, format=as_, schema=schema, **o["limits"], **settings)
        case "lane":
            return stream.map(functions.Lane(name, o["suffix"]), **settings)
        case "filter":
            keep = functions.Keep(name, o["bits"], o["form"], bad)
            if o["form"] == "field":
                return stream.filter(keep.expression, **settings)
            return stream.filter(keep, format="rows" if o["form"] == "rows" else "arrow", **settings)
        case "flat_map":
            made = functions.Copy(name, o["copies"], as_, bad)
            return stream.flat_map(made, format=as_, schema=schema, **o["limits"], **settings)
        case "map_async":
            more = {key: o[key] for key in ("concurrency", "ordered", "batch_rows")}
            return stream.map_async(
                functions.Add(name, o["number"], as_, bad), format=as_, schema=schema, **more, **settings
            )
        case "select":
            return stream.select(*o["columns"], **settings)
        case "with_column":
            return stream.with_column(o["column"], functions.Doubled(name), **settings)
        case "aggregate":
            return stream.aggregate(**settings, **_outputs(o["outputs"]))
        case "reduce":
            return stream.reduce(functions.Summed(name), **settings)
        case "running":
            made = functions.RunningProcessor if o["is_processor"] else functions.Running
            return stream.process(made(name, o["state"], as_), format=as_, schema=schema, **settings)
        case "held":
            held = functions.Held(name, o["delay_ms"], o["way"], o["schema"], step.key[0])
            return stream.process(held, time_mode="processing", **settings)
        case "window":
            made = stream.session if "gap" in o else stream.window
            return made(**_durations(o), late="error").aggregate(**settings, **_outputs(o["outputs"]))
        case "join_lists":
            return stream.connect(inputs[1]).process(functions.JoinByLists(name), **settings)
        case "join_rows":
            return stream.connect(inputs[1]).process(functions.JoinByRows(name, *step.key), **settings)
        case "rules":
            return stream.connect(inputs[1].broadcast()).process(functions.Rules(name), **settings)
        case "sides":
            return stream.connect(inputs[1]).process(functions.Sides(name), **settings)
        case "fuzz_sink":
            return stream.sink(FuzzSink(name), **settings)
        case "collect_sink":
            return stream.sink(collected.setdefault(name, CollectSink()), **settings)
        case "callable_sink":
            return stream.sink(CallableSink(see(name)), **settings)
    raise AssertionError(step.kind)


# --- as text ---


def _durations(options: dict[str, Any]) -> dict[str, str]:
    names = ("size", "every", "offset", "allowed_lateness", "gap")
    return {name: f"{options[name]} ms" for name in names if name in options}


def text_of(steps: Sequence[Step], shapes: Sequence[Shape]) -> str:
    """The pipeline in the words of the API; functions are named by what they do."""
    return "\n".join(_line(number, step, steps, shapes[number]) for number, step in enumerate(steps))


def _line(number: int, step: Step, steps: Sequence[Step], shape: Shape) -> str:
    o = step.options
    names = [f"s{given}" for given in step.inputs]
    for place, key in enumerate(step.key):
        if key:
            names[place] += f".key_by({', '.join(map(repr, key))})"
    if step.exchange is not None:
        names[0] += f".{step.exchange}()"
    rest = f"name={step.name!r}" + (f", parallelism={step.parallelism}" if step.parallelism else "")
    if step.kind == "source":
        drift = f", max_drift={o['max_drift']!r}" if "max_drift" in o else ""
        timed = "" if shape.timed_ms is None else f".with_watermark('t', delay='{shape.timed_ms} ms'{drift})"
        columns = ", ".join(f"{name}: {kind}" for name, kind in shape.columns.items())
        return f"s{number} = pipeline.source(FuzzSource(splits={o['splits']}), {rest}){timed}  # {columns}"
    if step.kind == "files":
        lines = ", ".join(str(len(lines)) for lines in o["lines"])
        return f"s{number} = pipeline.source(FileSource(on_error={o['on_error']!r}), {rest})  # files of {lines} lines"
    if step.kind == "dead_letters":
        return f"s{number} = {names[0]}.dead_letters()"
    if step.kind == "union":
        return f"s{number} = {names[0]}.union({', '.join(names[1:])})"
    shown = {key: value for key, value in o.items() if key not in ("schema", "as_")}
    as_ = f", format={o['as_']!r}" if "as_" in o else ""
    if step.kind in TWO_INPUTS:
        right = f"{names[1]}.broadcast()" if step.kind == "rules" else names[1]
        return f"s{number} = {names[0]}.connect({right}).process({step.kind}, {rest})"
    if step.is_sink:
        return f"{names[0]}.sink({step.kind}, {rest})"
    if step.kind in ("aggregate", "window"):
        outputs = ", ".join(f"{name}={wanted!r}" for name, wanted in o["outputs"].items())
        spans = ", ".join(f"{name}={span!r}" for name, span in _durations(o).items()) if step.kind == "window" else ""
        window = f".{'session' if 'gap' in o else 'window'}({spans})" if spans else ""
        return f"s{number} = {names[0]}{window}.aggregate({outputs}, {rest})"
    call = {"running": "process", "held": "process", "lane": "map"}.get(step.kind, step.kind)
    arguments = ", ".join(f"{key}={value!r}" for key, value in shown.items())
    return f"s{number} = {names[0]}.{call}({step.kind}({arguments}){as_}, {rest})"
