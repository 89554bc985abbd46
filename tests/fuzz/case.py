"""One case: a pipeline, its input, its lives, its settings and what goes wrong, all drawn from a seed.

A case is a value. The shrinker makes smaller ones of it; records are drawn split by split, so that fewer of them are
the first ones of those that were there.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock import Pipeline, PipelineError
from tests.fuzz import kinds, models
from tests.fuzz.kinds import Kind
from tests.fuzz.steps import TWO_INPUTS, UNSETTLED, Shape, Step, build, held_schema, shape_of, text_of
from tests.fuzz.world import Fault

_TIMES = [
    "int64()",
    'timestamp("s")',
    'timestamp("ms")',
    'timestamp("us")',
    'timestamp("ns")',
    'timestamp("us", "UTC")',
]
_EXCHANGES = ["rebalance", "shuffle", "to_one", "rescale", "forward"]
_MODES = ["ALIGNED", "UNALIGNED", "ALIGNED_WITH_TIMEOUT"]
_BASE = ("lane", "seq", "life", "v")


@dataclass(frozen=True)
class Life:
    """From one start of a driver to its end."""

    ending: str
    """`end` of the input; `drain`, when all has been read; or the driver has to `die` at some turn."""
    parallelism: int
    workers: int
    crashes: tuple[int, ...] = ()
    """The workers are killed when so many checkpoints are complete."""
    at_turn: int | None = None
    """When it dies, or is drained early."""


@dataclass(frozen=True)
class Case:
    """Everything that a run depends on."""

    seed: int
    columns: dict[str, str]
    """Keys, `x`, `t` and perhaps `p`, by the texts of their kinds."""
    distinct: int
    nulls: float
    step_ms: int
    disorder_ms: int
    base_ms: int
    timed: bool
    steps: tuple[Step, ...]
    rows: dict[tuple[str, int, int], int]
    """By source, split and life: how many records appear."""
    lives: tuple[Life, ...]
    faults: tuple[Fault, ...]
    policy: dict[str, Any]
    worker: dict[str, int]
    patience: float
    """How often a sink wants input."""
    speed: float
    """How likely a call of `map_async` returns in a turn."""
    max_parallelism: int
    unnamed: frozenset[str] = frozenset()
    """Steps without a name in the program."""
    inserted_in: int | None = None
    """From this life on, other steps without names are in front of all of these."""

    def shaped(self) -> tuple[Shape, ...]:
        """The shape of every step's output."""
        columns = {"lane": pa.string(), "seq": pa.int64(), "life": pa.int8(), "v": pa.int64()}
        columns |= {name: kinds.kind_of(text).type for name, text in self.columns.items()}
        source = Shape(columns, self.disorder_ms if self.timed else None)
        shapes: list[Shape] = []
        for step in self.steps:
            is_source = step.kind == "source"
            shapes.append(source if is_source else shape_of(step, [shapes[number] for number in step.inputs]))
        return tuple(shapes)

    def batches(self, source: str, split: int) -> list[tuple[int, pa.RecordBatch]]:
        """The input of a split, each batch with the life in which it appears."""
        drawn = random.Random(f"{self.seed} {source} {split}")
        made, first = [], 0
        for life in range(len(self.lives)):
            count, begin = self.rows.get((source, split, life), 0), first
            while count:
                size = min(count, drawn.randint(1, 20))
                times_ms = [self._time_ms(life, first - begin + row) for row in range(size)]
                made.append((life, self._batch(drawn, f"{source}.{split}", first, life, times_ms)))
                first, count = first + size, count - size
        return made

    def _time_ms(self, life: int, number: int) -> int:
        """No life has a record that is older than all of the life before: at its end, that time had been reached."""
        before = [max(count for place, count in self.rows.items() if place[2] == past) for past in range(life)]
        return self.base_ms + (sum(before) + number) * self.step_ms

    def _batch(self, drawn: random.Random, lane: str, first: int, life: int, times_ms: list[int]) -> pa.RecordBatch:
        size = len(times_ms)
        rows = range(first, first + size)
        arrays = {
            "lane": pa.array([lane] * size),
            "seq": pa.array(rows, pa.int64()),
            "life": pa.array([life] * size, pa.int8()),
            "v": pa.array([kinds.number_in(drawn, 1000, self.nulls) for _ in rows], pa.int64()),
        }
        for name, text in self.columns.items():
            kind = kinds.kind_of(text)
            if name == "t":
                arrays[name] = self._times(drawn, kind, times_ms)
            else:
                distinct = self.distinct if name.startswith("k") else 12
                arrays[name] = kinds.array_of(kind, [kinds.number_in(drawn, distinct, self.nulls) for _ in rows])
        return pa.record_batch(arrays)

    def _times(self, drawn: random.Random, kind: Kind, times_ms: list[int]) -> pa.Array:
        times = [time_ms + drawn.randint(0, self.disorder_ms) for time_ms in times_ms]
        if pa.types.is_integer(kind.type):
            return pa.array(times, pa.int64())
        per_s = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[kind.type.unit]
        return pa.array([time * per_s // 1000 for time in times], pa.int64()).view(kind.type)

    def text(self) -> str:
        shown = [
            f"seed {self.seed}: max_parallelism={self.max_parallelism}, {self.policy}, {self.worker}, "
            f"sinks want input at {self.patience:.0%}, calls return at {self.speed:.0%}, "
            f"{self.distinct} keys per column, {self.nulls:.0%} null",
            text_of(self.steps, self.shaped()),
            f"rows: {self.rows}",
        ]
        if self.unnamed:
            shown.append(f"without a name: {', '.join(sorted(self.unnamed))}")
        if self.inserted_in is not None:
            shown.append(f"others in front of them from life {self.inserted_in} on")
        shown += [f"life {number}: {life}" for number, life in enumerate(self.lives)]
        shown += [f"fault: {fault}" for fault in self.faults]
        return "\n".join(shown)


def draw(seed: int) -> Case:
    return _Drawing(seed).case()


class _Drawing:
    """Draws one case, step by step."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(f"penstock fuzz {seed}")
        self.steps: list[Step] = []
        self.shapes: list[Shape] = []
        self.max_parallelism = self.random.choice([4, 7, 16, 128])

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def case(self) -> Case:
        r = self.random
        columns = self._columns()
        self.timed = self.chance(0.5)
        self.step_ms = r.choice([10, 100, 1000])
        self.disorder_ms = r.choice([0, 0, 2, 10]) * self.step_ms
        self.sources = r.choice([1, 1, 2, 3])
        typed = {"lane": pa.string(), "seq": pa.int64(), "life": pa.int8(), "v": pa.int64()}
        typed |= {name: kinds.kind_of(text).type for name, text in columns.items()}
        for number in range(self.sources):
            splits = r.randint(1, 4)
            # One split for each subtask, where there is event time: then no record is late.
            self._add(
                Step(
                    "source", f"source{number}", parallelism=splits if self.timed else None, options={"splits": splits}
                ),
                Shape(typed, self.disorder_ms if self.timed else None),
            )
        for _ in range(r.randint(1, 6)):
            self._draw_step()
        self._draw_sinks()
        unnamed = self._unnamed()
        self._draw_files()
        lives = self._lives()
        self._filter()
        return Case(
            self.seed,
            columns,
            distinct=r.choice([1, 2, 4, 9]),
            nulls=r.choice([0, 0.1, 0.3]),
            step_ms=self.step_ms,
            disorder_ms=self.disorder_ms,
            base_ms=r.choice([0, -5_000, 1_700_000_000_000]),
            timed=self.timed,
            steps=self._drifting(lives),
            rows=self._rows(len(lives)),
            lives=lives,
            faults=self._faults(),
            policy=self._policy(),
            worker=self._worker(),
            patience=r.choice([1.0, 0.5, 0.2]),
            speed=r.choice([0.5, 0.1, 0.03, 0.03]),
            max_parallelism=self.max_parallelism,
            unnamed=unnamed,
            inserted_in=r.choice([None, *range(1, len(lives))]),
        )

    def _drifting(self, lives: tuple[Life, ...]) -> tuple[Step, ...]:
        """The steps, perhaps with sources that wait for each other: each has an end, so that nobody waits for ever."""
        drawn = random.Random(f"{self.seed} drift")
        if not self.timed or any(life.ending != "end" for life in lives) or drawn.random() < 0.3:
            return tuple(self.steps)
        waits = {"max_drift": f"{drawn.choice([0, 2, 10]) * self.step_ms} ms"}
        return tuple(
            replace(step, options=step.options | waits) if step.kind == "source" else step for step in self.steps
        )

    def _filter(self) -> None:
        """Make some aggregates those of a part of the records."""
        drawn = random.Random(f"{self.seed} filtered")
        for number, step in enumerate(self.steps):
            if step.kind not in ("aggregate", "window") or self.shapes[step.inputs[0]].columns.get("v") != pa.int64():
                continue
            outputs = {
                name: (*wanted, drawn.choice([0, 300, 900])) if wanted != "count" and drawn.random() < 0.4 else wanted
                for name, wanted in step.options["outputs"].items()
            }
            self.steps[number] = replace(step, options=step.options | {"outputs": outputs})

    def _unnamed(self) -> frozenset[str]:
        """Steps that need no name: no two of them that nothing tells apart."""
        if self.chance(0.4):
            return frozenset()
        chosen = frozenset(step.name for step in self.steps if self.chance(0.8))
        pipeline = Pipeline("fuzz", max_parallelism=self.max_parallelism)
        build(self.steps, self.shapes, pipeline, {}, chosen)
        try:
            pipeline.graph()
        except PipelineError:
            return frozenset()
        return chosen

    def _columns(self) -> dict[str, str]:
        r, is_safe = self.random, self.chance(0.25)

        def of(some: Any) -> str:
            chosen: Kind = r.choice([kind for kind in some if kind.is_safe or not is_safe])
            return chosen.text

        columns = {f"k{number}": of(kinds.KEYS) for number in range(r.choice([1, 1, 2, 3]))}
        columns |= {"x": of(kinds.WORDS), "t": 'timestamp("us")' if is_safe else r.choice(_TIMES)}
        if self.chance(0.5):
            columns["p"] = of(kinds.PAYLOADS)
        return columns

    def _add(self, step: Step, shape: Shape | None = None) -> int:
        self.steps.append(step)
        self.shapes.append(shape or shape_of(step, [self.shapes[number] for number in step.inputs]))
        return len(self.steps) - 1

    # --- steps ---

    def _draw_step(self) -> None:
        r = self.random
        streams = [n for n, step in enumerate(self.steps) if not step.is_sink and step.kind != "dead_letters"]
        number = r.choice(streams[-2:]) if self.chance(0.7) else r.choice(streams)
        shape = self.shapes[number]
        name = f"op{len(self.steps)}"
        if not set(_BASE) <= set(shape.columns):
            self._draw_aggregate(number, name)
            return
        draws = {
            self._draw_map: 2,
            self._draw_filter: 1,
            self._draw_flat_map: 1,
            self._draw_columns: 1,
            self._draw_map_async: 2,
            self._draw_union: 1.5,
            self._draw_aggregate: 2,
            self._draw_reduce: 1,
            self._draw_running: 2,
            self._draw_held: 2,
            self._draw_two: 2,
            self._draw_window: 3 if shape.timed_ms is not None else 0,
        }
        r.choices(list(draws), list(draws.values()))[0](number, name)

    def _key(self, shape: Shape, most: int = 3) -> tuple[str, ...]:
        names = [name for name in shape.columns if name.startswith("k")]
        return tuple(self.random.sample(names, self.random.randint(1, min(most, len(names)))))

    def _way(self, number: int) -> dict[str, Any]:
        """How records travel to an operator that does not need a key."""
        shape, upstream = self.shapes[number], self.steps[number]
        way: dict[str, Any] = {}
        if self.chance(0.2):
            way["key"] = (self._key(shape),)
        elif self.chance(0.3):
            way["exchange"] = self.random.choice(_EXCHANGES)
        if way.get("exchange") == "forward":
            if upstream.kind == "union":
                del way["exchange"]
            else:
                way["parallelism"] = self.declared(number)
        elif way.get("exchange") != "to_one" and self.chance(0.15):
            way["parallelism"] = self.random.randint(1, min(4, self.max_parallelism))
        return way

    def declared(self, number: int) -> int | None:
        """The parallelism that a step was given."""
        step = self.steps[number]
        return 1 if step.exchange == "to_one" else step.parallelism

    def _as(self, number: int) -> str:
        types = self.shapes[number].columns.values()
        forms = ["arrow"]
        if not any(pa.types.is_union(kind) for kind in types):
            forms.append("rows")
        safe = [kind.type for kind in kinds.KEYS if kind.is_safe]
        if all(kind in safe for kind in types):
            forms.append("pandas")
        return self.random.choice(forms)

    def _limits(self, as_: str) -> dict[str, Any]:
        """Limits on the batches of a function, now and then."""
        if as_ == "rows" or not self.chance(0.3):
            return {}
        rows = {"batch_rows": self.random.choice([1, 3, 100])}
        return rows | ({"batch_time": "2 ms"} if self.chance(0.5) else {})

    def _refusing(self) -> dict[str, Any]:
        """Of some functions: the records that they cannot take, and what becomes of these."""
        if self.chance(0.7):
            return {}
        return {"bad": self.random.randrange(7), "on_error": self.random.choice(["drop", "stream"])}

    def _add_refusing(self, step: Step) -> int:
        number = self._add(step)
        if step.options.get("on_error") in ("stream", "dead_letter"):
            self._add(Step("dead_letters", f"letters{number}", (number,)))
        return number

    def _draw_files(self) -> None:
        """Files with bad lines, beside all else."""
        if self.chance(0.75):
            return
        r = self.random
        lines = [
            [
                r.choice(models.BAD_LINES) if self.chance(0.2) else json.dumps({"file": f"{file}", "number": number})
                for number in range(r.choice([1, 5, 40]))
            ]
            for file in range(r.randint(1, 4))
        ]
        options = {"lines": lines, "on_error": r.choice(["skip", "dead_letter"])}
        first = self._add_refusing(Step("files", f"files{len(self.steps)}", options=options))
        for number in range(first, len(self.steps)):
            self._add(Step(r.choice(["fuzz_sink", "collect_sink"]), f"sink{number}", (number,)))

    def _draw_map(self, number: int, name: str) -> None:
        as_ = self._as(number)
        options = {"number": self.random.randint(-5, 5), "as_": as_, "limits": self._limits(as_), **self._refusing()}
        self._add_refusing(Step("map", name, (number,), **self._way(number), options=options))

    def _draw_filter(self, number: int, name: str) -> None:
        forms = ["mask", "expression", "field"] + (["rows"] if self._as(number) == "rows" else [])
        options = {"bits": self.random.randrange(4), "form": self.random.choice(forms)}
        if options["form"] != "field":
            options |= self._refusing()
        self._add_refusing(Step("filter", name, (number,), **self._way(number), options=options))

    def _draw_flat_map(self, number: int, name: str) -> None:
        as_ = self._as(number)
        as_ = "arrow" if as_ == "pandas" else as_
        options = {"copies": self.random.choice([1, 2, 3]), "as_": as_, "limits": self._limits(as_)}
        options |= self._refusing()
        self._add_refusing(Step("flat_map", name, (number,), **self._way(number), options=options))

    def _draw_columns(self, number: int, name: str) -> None:
        shape = self.shapes[number]
        if self.chance(0.5):
            column = f"w{len(self.steps)}"
            self._add(Step("with_column", name, (number,), **self._way(number), options={"column": column}))
            return
        dropped = [column for column in shape.columns if column in ("x", "p") or column.startswith("w")]
        kept = [column for column in shape.columns if column not in dropped or self.chance(0.5)]
        self._add(Step("select", name, (number,), **self._way(number), options={"columns": kept}))

    def _draw_map_async(self, number: int, name: str) -> int:
        r = self.random
        options = {
            "number": r.randint(-5, 5),
            "as_": self._as(number),
            "concurrency": r.randint(1, 3),
            "ordered": self.chance(0.7),
            "batch_rows": r.choice([1, 4, 1024]),
            **self._refusing(),
        }
        way = {"key": (self._key(self.shapes[number]),)} if self.chance(0.5) else self._way(number)
        return self._add_refusing(Step("map_async", name, (number,), **way, options=options))

    def _like(self, number: int) -> list[int]:
        """Streams of the same columns."""
        shape = self.shapes[number]
        return [
            other
            for other, step in enumerate(self.steps)
            if not step.is_sink and list(self.shapes[other].columns.items()) == list(shape.columns.items())
        ]

    def _draw_union(self, number: int, name: str) -> None:
        others = self.random.choices(self._like(number), k=self.random.randint(1, 2))
        tagged = [
            self._add(Step("lane", f"{name}_{place}", (given,), options={"suffix": f"/{name}.{place}"}))
            for place, given in enumerate([number, *others])
        ]
        self._add(Step("union", name, tuple(tagged)))

    def _draw_aggregate(self, number: int, name: str) -> None:
        r, shape = self.random, self.shapes[number]
        if not any(column.startswith("k") for column in shape.columns):
            return
        key = self._key(shape)
        outputs: dict[str, Any] = {} if self.chance(0.2) else {f"n{len(self.steps)}": "count"}
        words = [kind.type for kind in kinds.WORDS]
        candidates = [c for c, kind in shape.columns.items() if kind in words and c not in key and c != "life"]
        for place, column in enumerate(r.sample(candidates, min(len(candidates), r.randint(0, 3)))):
            outputs[f"a{len(self.steps)}{place}"] = (r.choice(_functions(shape.columns[column], column)), column)
        if not outputs:
            outputs = {f"n{len(self.steps)}": "count"}
        self._add(Step("aggregate", name, (number,), (key,), None, self._some(), {"outputs": outputs}))

    def _some(self) -> int | None:
        return self.random.randint(1, 4) if self.chance(0.15) else None

    def _draw_reduce(self, number: int, name: str) -> None:
        if any(pa.types.is_union(kind) for kind in self.shapes[number].columns.values()):
            return
        self._add(Step("reduce", name, (number,), (self._key(self.shapes[number]),), None, self._some()))

    def _draw_running(self, number: int, name: str) -> None:
        columns = self.shapes[number].columns
        if {"n", "total"} & set(columns):
            return
        as_, is_processor = self._as(number), self.chance(0.3)
        if is_processor and as_ == "arrow":
            is_processor = False
        options = {"state": self.random.choice(["value", "list", "map"]), "as_": as_, "is_processor": is_processor}
        self._add(Step("running", name, (number,), (self._key(self.shapes[number]),), None, self._some(), options))

    def _draw_held(self, number: int, name: str) -> None:
        key = self._key(self.shapes[number])
        options = {
            "delay_ms": self.random.choice([1, 10, 100, 100_000]),
            "way": self.random.choice(["each", "moved", "periodic"]),
            "schema": held_schema(self.shapes[number], key),
        }
        self._add(Step("held", name, (number,), (key,), None, self._some(), options))

    def _draw_two(self, number: int, name: str) -> None:
        r = self.random
        kind = r.choice(TWO_INPUTS)
        if kind == "rules":
            # Few of them, and of a source of their own, so that not too many pairs come out.
            splits = r.randint(1, 2)
            other = self._add(
                Step("source", f"rules{len(self.steps)}", options={"splits": splits}),
                Shape(dict(self.shapes[0].columns)),
            )
            self._add(Step(kind, name, (number, other), (self._key(self.shapes[number]), ()), None, self._some()))
            return
        key = self._key(self.shapes[number])
        wanted = [(column, self.shapes[number].columns[column]) for column in key]
        others = [other for other in self._like(number) if other != number] or [number]
        other = r.choice(others)
        assert all(self.shapes[other].columns[column] == kind_ for column, kind_ in wanted)
        if other == number or self.steps[other].kind == "union":
            other = self._add(Step("lane", f"{name}_right", (other,), options={"suffix": f"/{name}"}))
        keys = () if kind == "sides" and self.chance(0.5) else (key, key)
        self._add(Step(kind, name, (number, other), keys, None, self._some()))

    def _draw_window(self, number: int, name: str) -> None:
        r = self.random
        if self.chance(0.5):
            # Records that are in hand hold event time back.
            number = self._draw_map_async(number, name)
            name = f"op{len(self.steps)}"
        shape = self.shapes[number]
        key = self._key(shape)
        unit = max(self.step_ms, 1000) if shape.columns["t"] == pa.timestamp("s") else self.step_ms
        every = unit * r.choice([1, 3, 10])
        size = every * r.choice([1, 1, 2, 5]) if self.chance(0.7) else every + unit * r.randint(1, 3)
        outputs: dict[str, Any] = {"n": "count"}
        words = [kind.type for kind in kinds.WORDS]
        for place, column in enumerate(c for c in ("v", "x") if shape.columns.get(c) in words and c not in key):
            if self.chance(0.6):
                wanted = [f for f in _functions(shape.columns[column], column) if f not in ("first", "last")]
                outputs[f"a{place}"] = (r.choice(wanted), column)
        options = {
            "size": size,
            "every": every,
            "offset": r.choice([0, 0, every // 2 // unit * unit]),
            "outputs": outputs,
        }
        if self.chance(0.3):
            options = {"gap": every, "outputs": outputs}
        elif self.chance(0.3):
            # No record is late here: a window that is kept longer is emitted just once.
            options["allowed_lateness"] = unit * r.choice([1, 5, 50])
        self._add(Step("window", name, (number,), (key,), None, self._some(), options))

    def _draw_sinks(self) -> None:
        r = self.random
        used = {number for step in self.steps if step.kind != "dead_letters" for number in step.inputs}
        for number, step in list(enumerate(self.steps)):
            name = f"sink{number}"
            if step.kind in (*UNSETTLED, "window", "held"):
                # Its records are needed to judge the rest.
                self._add(Step("fuzz_sink", name, (number,)))
            elif step.kind == "map_async" and step.is_keyed and self.chance(0.7):
                # Only an edge with a key keeps the order of its keys through a rescale.
                self._add(Step("fuzz_sink", name, (number,), step.key))
            elif number not in used or self.chance(0.1):
                kind = r.choice(["fuzz_sink", "fuzz_sink", "collect_sink", "callable_sink"])
                if kind == "callable_sink" and self._is_downstream_of_unsettled(number):
                    kind = "fuzz_sink"
                way = self._way(number) if "lane" in self.shapes[number].columns and self._has_key(number) else {}
                if self.chance(0.5):
                    way = {}
                self._add(Step(kind, name, (number,), **way))

    def _has_key(self, number: int) -> bool:
        return any(column.startswith("k") for column in self.shapes[number].columns)

    def _is_downstream_of_unsettled(self, number: int) -> bool:
        step = self.steps[number]
        return step.kind in UNSETTLED or any(map(self._is_downstream_of_unsettled, step.inputs))

    # --- circumstances ---

    def _lives(self) -> tuple[Life, ...]:
        r = self.random
        lives, parallelism = [], r.randint(1, 4)
        count = r.choice([1, 1, 2, 2, 3])
        for number in range(count):
            if number and self.chance(0.6):
                parallelism = r.randint(1, 4)
            ending = "end" if number == count - 1 else r.choice(["end", "drain", "die"])
            at_turn = r.randint(20, 400) if ending == "die" or (ending == "drain" and self.chance(0.3)) else None
            crashes = tuple(sorted(r.sample(range(1, 5), r.choice([0, 1, 1, 2, 3]))))
            lives.append(Life(ending, parallelism, r.randint(1, 4), crashes, at_turn))
        return tuple(lives)

    def _rows(self, lives: int) -> dict[tuple[str, int, int], int]:
        r, rows = self.random, {}
        for step in self.steps:
            if step.kind == "source":
                for split in range(step.options["splits"]):
                    for life in range(lives):
                        most = 3 if step.name.startswith("rules") else r.choice([3, 10, 30])
                        rows[step.name, split, life] = r.randint(1 if self.timed else 0, most)
        return rows

    def _faults(self) -> tuple[Fault, ...]:
        r = self.random
        faults = []
        for _ in range(r.choice([0, 0, 1, 1, 2, 3])):
            kind = r.choice(["raise", "raise", "store", "lost", "read", "commit", "lost commit", "die", "after"])
            if kind == "raise":
                names = [
                    step.name
                    for step in self.steps
                    if step.kind not in ("union", "select", "aggregate", "window", "files", "dead_letters")
                ]
                faults.append(Fault("raise", r.choice(names), r.randint(1, 30)))
            elif kind == "read":
                faults.append(Fault("read", "reading the store", r.randint(1, 30)))
            elif kind in ("commit", "lost commit"):
                sinks = [step.name for step in self.steps if step.kind == "fuzz_sink"]
                if sinks:
                    faults.append(Fault(kind.split()[0], f"commit of {r.choice(sinks)}", r.randint(1, 5)))
            else:
                faults.append(Fault(kind, "changing the store", r.choice([r.randint(1, 10), r.randint(1, 80)])))
        return tuple(faults)

    def _policy(self) -> dict[str, Any]:
        r = self.random
        return {
            "interval_ms": r.choice([5, 20, 60]),
            "pause_ms_min": r.choice([0, 0, 5]),
            "mode": r.choice(_MODES),
            "alignment_timeout_ms": r.choice([0, 2, 10]),
            "retained": r.choice([1, 1, 3]),
        }

    def _worker(self) -> dict[str, int]:
        r = self.random
        choices = {
            "credit_limit_bytes": [300, 2_000, 1 << 20],
            "credit_limit_bytes_min": [200],
            "channel_time_ms": [0, 10],
            "output_bytes_max": [300, 2_000, 1 << 20],
            "slice_rows_max": [2, 10, 131_072],
            "source_rows_max": [3, 20, 65_536],
            "inline_bytes_max": [0, 2_000, 4 << 20],
            "segment_bytes": [200, 4 << 20],
            "recovery_bytes_max": [500, 64 << 20],
        }
        return {name: r.choice(some) for name, some in choices.items()}


def _functions(kind: pa.DataType, column: str) -> list[str]:
    functions = ["count", "min", "max", "first", "last"]
    is_narrow = pa.types.is_integer(kind) and kind.bit_width <= 32
    if column == "v" or is_narrow or pa.types.is_floating(kind):
        functions += ["sum", "sum", "mean"]
    return functions
