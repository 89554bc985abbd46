"""Judges a run: what every sink must have got, in which order as far as the API promises one, and in which types.

Order: a stream keeps it within a lane, a split by one way, as long as every edge on the way does. Behind `key_by` it is
kept for records that agree in the key as well. The columns on which records of a lane must agree are its `scope`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from penstock.testing import CollectSink
from tests.fuzz import models
from tests.fuzz.case import Case
from tests.fuzz.kinds import Plain, frozen, plain_rows
from tests.fuzz.steps import UNSETTLED, Step
from tests.fuzz.world import World

Scope = tuple[str, ...] | None

_SHOWN = 3
HELD_MS_MAX = 30
"""Records that are held back for longer may still be held when nothing moves any more."""


class Judge:
    """Of one run of a case."""

    def __init__(self, case: Case, world: World, collected: dict[str, CollectSink]) -> None:
        self.case = case
        self.world = world
        self.collected = collected
        self.shapes = case.shaped()
        self.ends = [number for number, life in enumerate(case.lives) if life.ending == "end"]

    def violations(self) -> Iterator[str]:
        for number, step in enumerate(self.case.steps):
            if step.kind in UNSETTLED:
                yield from self._verify(number, step)
        for step in self.case.steps:
            if step.is_sink:
                yield from self._judge_sink(step)
        for number, step in enumerate(self.case.steps):
            if step.kind in ("window", "held"):
                yield from self._judge_progress(number, step)
        yield from self._judge_counts()

    # --- what came out ---

    def batches(self, step: Step) -> list[pa.RecordBatch]:
        if step.kind == "collect_sink":
            return self.collected[step.name].batches() if step.name in self.collected else []
        if step.kind == "callable_sink":
            return self.world.seen.get(step.name, [])
        return [written.batch for written in self.world.published.get(step.name, [])]

    def found(self, step: Step) -> list[Plain]:
        return [row for batch in self.batches(step) for row in plain_rows(batch)]

    def sink_of(self, number: int) -> Step:
        return next(step for step in self.case.steps if step.kind == "fuzz_sink" and step.inputs == (number,))

    # --- what should have come out ---

    @functools.cached_property
    def _rows(self) -> dict[int, list[Plain]]:
        return {}

    def rows(self, number: int) -> list[Plain]:
        """The records of a stream: those of the model, or those that came out and were found to be right."""
        if number not in self._rows:
            step = self.case.steps[number]
            if step.kind == "source":
                made = [
                    row
                    for split in range(step.options["splits"])
                    for _, batch in self.case.batches(step.name, split)
                    for row in plain_rows(batch)
                ]
            elif step.kind == "dead_letters":
                made = self.bad_rows(step.inputs[0])
            elif step.kind in UNSETTLED:
                made = self.found(self.sink_of(number))
            else:
                inputs = [self.rows(given) for given in step.inputs]
                shapes = [self.shapes[given] for given in step.inputs]
                made = models.model(step, inputs, shapes, self.ends)
            self._rows[number] = made
        return self._rows[number]

    def bad_rows(self, number: int) -> list[Plain]:
        """The records that a step has not taken."""
        step = self.case.steps[number]
        return models.bad_rows(step, self.rows(step.inputs[0]) if step.inputs else [])

    def _judge_counts(self) -> Iterator[str]:
        """Records that were left out are counted once each, over all restarts and lives."""
        expected = dict.fromkeys(("dropped", "stream", "skip"), 0)
        for number, step in enumerate(self.case.steps):
            if "on_error" in step.options:
                name = {"drop": "dropped", "dead_letter": "stream"}.get(step.options["on_error"])
                expected[name or step.options["on_error"]] += len(self.bad_rows(number))
        if self.world.left_out != expected:
            yield f"records left out were counted as {self.world.left_out} and not {expected}"

    def _verify(self, number: int, step: Step) -> Iterator[str]:
        sink = self.sink_of(number)
        (given,) = step.inputs
        has_lanes = "lane" in self.shapes[given].columns and "seq" in self.shapes[given].columns
        scope = self.scope_into(step) if has_lanes else None
        is_in_order = self.keeps_order(number, sink)
        yield from models.verify(step, self.rows(given), self.found(sink), scope, is_in_order)

    def _judge_sink(self, sink: Step) -> Iterator[str]:
        (number,) = sink.inputs
        shape = self.shapes[number]
        for batch in self.batches(sink):
            if batch.schema.names != list(shape.columns) or batch.schema.types != list(shape.columns.values()):
                yield f"{sink.name} got the columns {_types(batch.schema)} and not {_types(shape.schema())}"
                return
        found = self.found(sink)
        keys = self.key_columns(number)
        expected = Counter(_frozen(row, keys) for row in self.rows(number))
        counted = Counter(_frozen(row, keys) for row in found)
        if sink.kind == "callable_sink":
            # At least once: twice is right, and each at least as often as it should come.
            counted = Counter({row: min(count, expected[row]) for row, count in counted.items() if expected[row]}) + (
                Counter({row: count for row, count in counted.items() if not expected[row]})
            )
        for what, difference in (("lost", expected - counted), ("has too many of", counted - expected)):
            if difference:
                some = [dict(row) for row in list(difference)[:_SHOWN]]
                yield f"{sink.name} {what} {sum(difference.values())} of {sum(expected.values())} records: {some}"
        if {"lane", "seq"} <= set(shape.columns) and "lane2" not in shape.columns and sink.kind != "callable_sink":
            scope = self.scope_into(sink)
            if scope is not None:
                for wrong in models.out_of_order(found, scope):
                    yield f"{sink.name}: {wrong}"

    def key_columns(self, number: int) -> frozenset[str]:
        """Columns in which the two zeros are one: keys, and dictionaries, which Arrow itself takes for equal then."""
        step = self.case.steps[number]
        if step.kind == "source":
            types = self.shapes[number].columns.items()
            return frozenset(
                name for name, kind in types if pa.types.is_dictionary(kind) and pa.types.is_floating(kind.value_type)
            )
        keys = frozenset(column for key in step.key for column in key)
        if step.kind not in ("aggregate", "window", "held", "reduce"):
            keys = frozenset()
        # The least and the greatest of both zeros may be either.
        keys |= frozenset(step.options["outputs"]) if step.kind in ("aggregate", "window") else frozenset()
        return keys.union(*(self.key_columns(given) for given in step.inputs))

    # --- order ---

    def scope_into(self, step: Step) -> Scope:
        """The scope of the records that come into a step, over all its inputs."""
        together: set[str] = set()
        for place, given in enumerate(step.inputs):
            scope = self._scope_over(given, step, place)
            if scope is None:
                return None
            together |= set(scope)
        return tuple(sorted(together))

    def _scope_over(self, given: int, step: Step, place: int) -> Scope:
        if self.case.steps[given].kind == "union":
            over = [self._scope_over(member, step, place) for member in self.case.steps[given].inputs]
            return None if None in over else tuple({column for scope in over if scope for column in scope})
        before = self.scope(given)
        if before is None:
            return None
        if step.key and step.key[place]:
            return (*before, *step.key[place])
        return before if self.keeps_order(given, step) else None

    def scope(self, number: int) -> Scope:
        """The scope of a step's output."""
        step = self.case.steps[number]
        if step.kind == "source":
            return ()
        if step.kind in ("join_lists", "join_rows", "rules", "aggregate", "window", "files", "dead_letters"):
            return None
        if step.kind == "map_async" and not step.options["ordered"]:
            return None
        if step.kind == "map_async" and not step.is_keyed and self.is_rescaled(step):
            return None
        scope = self.scope_into(step)
        # Without its columns nobody can tell which records must be in order.
        return scope if scope is None or set(scope) <= set(self.shapes[number].columns) else None

    def keeps_order(self, given: int, step: Step) -> bool:
        """Whether an edge without a key keeps the order of what goes over it."""
        upstream = self.case.steps[given]
        if step.exchange in ("to_one", "forward"):
            return True
        if step.exchange is not None:
            return False
        if upstream.kind == "union":
            return all(self.keeps_order(member, step) for member in upstream.inputs)
        if self.declared(upstream) != self.declared(step):
            return False
        # At one parallelism it is from one to one; at another, records in flight are dealt out anew.
        return self.is_chained(given, step) or not self.is_rescaled(step)

    def is_chained(self, given: int, step: Step) -> bool:
        upstream = self.case.steps[given]
        is_alone = self._readers(given) == 1 and len(step.inputs) == 1
        return is_alone and not {"union", "map_async"} & {upstream.kind, step.kind}

    def _readers(self, given: int) -> int:
        """How many read a stream; a union is nothing but those who read it."""
        readers = 0
        for number, step in enumerate(self.case.steps):
            if given in step.inputs:
                readers += self._readers(number) if step.kind == "union" else step.inputs.count(given)
        return readers

    def declared(self, step: Step) -> int | None:
        return 1 if step.exchange == "to_one" else step.parallelism

    def is_rescaled(self, step: Step) -> bool:
        return self.declared(step) is None and len({life.parallelism for life in self.case.lives}) > 1

    # --- time ---

    def _judge_progress(self, number: int, step: Step) -> Iterator[str]:
        """A pipeline that is drained when nothing moves any more has emitted all that was due."""
        sink, keys = self.sink_of(number), self.key_columns(number)
        written = self.world.published.get(sink.name, [])
        for life, plan in enumerate(self.case.lives):
            if plan.ending != "drain" or plan.at_turn is not None:
                continue
            due = self._windows_due(number, step, life) if step.kind == "window" else self._held_due(step, life)
            emitted = Counter(
                _frozen(row, keys) for each in written if each.life <= life for row in plain_rows(each.batch)
            )
            missing = Counter(_frozen(row, keys) for row in due) - emitted
            if missing:
                ended = [end for end in self.ends if end < life]
                after = f", after the input had ended in life {ended[-1]}" if ended else ""
                some = [dict(row) for row in list(missing)[:_SHOWN]]
                yield f"{step.name} has not emitted {len(missing)} rows that were due in life {life}{after}: {some}"

    def _given(self, step: Step, life: int) -> list[Plain]:
        return [row for row in self.rows(step.inputs[0]) if row["life"] <= life]

    def _held_due(self, step: Step, life: int) -> list[Plain]:
        if step.options["delay_ms"] > HELD_MS_MAX:
            return []
        return models.model(step, [self._given(step, life)], [], self.ends)

    def _windows_due(self, number: int, step: Step, life: int) -> list[Plain]:
        reached = self._reached(number, life)
        if reached is None:
            return []
        made = models.windows(step, self._given(step, life), self.shapes[step.inputs[0]], self.ends)
        # A session is complete when event time has passed its end: a record at the end would belong to it.
        spare = 1 if "gap" in step.options else 0
        return [row for row in made if row["window_end"] + spare <= reached]

    def _reached(self, number: int, life: int) -> int | None:
        """Where event time must be, in ticks of the column; None if a split had nothing new in this life."""
        reached = []
        for given in self._sources_of(number):
            step = self.case.steps[given]
            for split in range(step.options["splits"]):
                batches = self.case.batches(step.name, split)
                if not any(appears == life for appears, _ in batches):
                    return None
                newest = max(row["t"] for appears, batch in batches if appears <= life for row in plain_rows(batch))
                per_ms = models.ticks_per_ms(self.shapes[given].columns["t"])
                reached.append(int((newest // per_ms - self.case.disorder_ms) * per_ms))
        return min(reached)

    def _sources_of(self, number: int) -> set[int]:
        step = self.case.steps[number]
        return {number} if step.kind == "source" else set().union(*map(self._sources_of, step.inputs))


def _frozen(row: Plain, keys: frozenset[str]) -> tuple[tuple[str, object], ...]:
    return tuple((name, frozen(value, is_key=name in keys)) for name, value in row.items())


def _types(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
