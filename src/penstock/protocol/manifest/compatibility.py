"""Compatibility: whether a pipeline can go on from a checkpoint, decided before anything starts.

The manifest holds the shape of the pipeline that took the checkpoint. It is compared whole with the shape of the
pipeline that starts; only a difference that nothing in the checkpoint depends on is allowed:

| in the checkpoint | depends on |
|---|---|
| anything | the pipeline's name and `max_parallelism` |
| state of an operator | its name, kind and definition, the keys of its inputs, and which stream feeds which input |
| a watermark | the event-time column that it was made from |
| positions of a source | its name and definition: positions of other splits would skip or repeat records |
| records in flight on an edge | both ends, the partitioning, the key, the columns that travel, their declared schema |
| output that is not published | the name and definition of its sink (I4) |

A worker knows one thing more: the states that the operators ask for when they are opened. `check_states` compares them
with the recorded ones before anything is read. Schemas must be equal: no state is widened or filled up on its way.

Manifests of earlier versions do not record everything; a fact that was not recorded is not compared.

Pure: facts in, nothing or an `IncompatibleCheckpoint` out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from penstock.errors import IncompatibleCheckpoint
from penstock.ids import OperatorName
from penstock.protocol.manifest.values import (
    EdgeShape,
    Manifest,
    OperatorShape,
    PipelineShape,
    StateKind,
    committables_of,
)

EVENT_TIME_COLUMN = "event-time column"
"""Part of the definition of an operator that makes watermarks."""
AGGREGATES = "aggregates"
"""Part of the definition of an operator that aggregates: the numbers that its state holds."""
_NO_WATERMARK = -(2**63)
_TO_A_SAVEPOINT = "start the pipeline as it was, stop it with a savepoint, and start the new one from that"
_WITHOUT_STATE = "give it another name and set allow_dropped_state=True to drop its state"


def check_fits(
    manifest: Manifest, shape: PipelineShape, *, allow_dropped_state: bool = False, is_committed: bool = False
) -> None:
    """Raise `IncompatibleCheckpoint` unless a pipeline of `shape` can go on from `manifest`; says what differs.

    The message speaks of the checkpoint as "it": `recovery` names it. `is_committed`: everything that the checkpoint
    holds for its sinks is published.
    """
    old = manifest.shape
    what = "it"
    if old.name != shape.name:
        raise IncompatibleCheckpoint(
            f"{what} was taken by pipeline '{old.name}', and this pipeline is '{shape.name}': use another checkpoint "
            f"directory, or that name"
        )
    if old.max_parallelism != shape.max_parallelism:
        raise IncompatibleCheckpoint(
            f"{what} was taken with max_parallelism={old.max_parallelism}, which cannot change: set it to that instead "
            f"of {shape.max_parallelism}"
        )
    _check_operators(manifest, shape, what, allow_dropped_state)
    _check_clocks(manifest, shape, what)
    _check_edges(manifest, shape, what)
    if not is_committed:
        _check_output(manifest, shape, what)


# --- operators ---


def _check_operators(manifest: Manifest, shape: PipelineShape, what: str, allow_dropped_state: bool) -> None:
    new = {operator.name: operator for operator in shape.operators}
    kinds = _kinds_of_state(manifest)
    for operator in manifest.shape.operators:
        if operator.name not in kinds:
            continue
        held = "state of operator" if kinds[operator.name] else "positions of source"
        has = f"{what} has {held} '{operator.name}'"
        if operator.name in new:
            _check_definition(operator, new[operator.name], has, _WITHOUT_STATE)
            # Broadcast state is the same in all subtasks, however records find their way to them.
            is_spread = bool(kinds[operator.name] & {StateKind.KEYED, StateKind.LIST})
            _check_inputs(manifest.shape, shape, operator, new[operator.name], has, is_spread)
        elif not allow_dropped_state:
            raise IncompatibleCheckpoint(
                f"{has}, which this pipeline does not have{_in_its_place(manifest.shape, operator, shape)}: give the "
                f"operator that continues it name='{operator.name}', or set allow_dropped_state=True to drop it"
            )


def _in_its_place(old: PipelineShape, operator: OperatorShape, shape: PipelineShape) -> str:
    """How the one operator that could have taken its place differs, if there is just one."""
    before = {each.name for each in old.operators}
    new = [each for each in shape.operators if operator.kind and each.kind == operator.kind and each.name not in before]
    if len(new) != 1:
        return ""
    facts = [*_changes(operator, new[0])]
    if operator.key != new[0].key:
        facts.append(("key", _columns(operator.key), _columns(new[0].key)))
    how = "".join(f", whose {name} is {after} and was {earlier}" for name, earlier, after in facts)
    return f" (it has '{new[0].name}'{how})"


def _kinds_of_state(manifest: Manifest) -> dict[OperatorName, set[StateKind]]:
    """The kinds of state that the checkpoint has of each operator; none for a source, whose positions are state too."""
    kinds: dict[OperatorName, set[StateKind]] = {}
    for report in manifest.reports:
        for piece in report.states:
            kinds.setdefault(piece.operator, set()).add(piece.kind)
        for split in report.splits:
            kinds.setdefault(split.operator, set())
    return kinds


def _check_definition(old: OperatorShape, new: OperatorShape, has: str, way_out: str) -> None:
    for name, before, after in _changes(old, new):
        added = _added(before, after) if name == AGGREGATES else ""
        hint = f" ({added} is new)" if added else ""
        # The records that the state has seen are gone: a new aggregate could not count them.
        beside = f", and compute {added} in a second aggregation beside it, which starts from now" if added else ""
        raise IncompatibleCheckpoint(
            f"{has}, whose {name} was {before} and is {after} here{hint}: put it back{beside}, or {way_out}"
        )


def _added(before: str, after: str) -> str:
    """The aggregates that were added, if nothing else has changed."""
    old, new = {*before.split(", ")}, {*after.split(", ")}
    return ", ".join(sorted(new - old)) if old <= new else ""


def _changes(old: OperatorShape, new: OperatorShape) -> Iterator[tuple[str, str, str]]:
    """Settings with their old and new value, as far as both versions have recorded them."""
    if not old.kind or not new.kind:
        return
    before, after = dict(old.definition), dict(new.definition)
    if old.kind != new.kind:
        before, after = {"operator": old.kind}, {"operator": new.kind}
    for name in (*before, *(name for name in after if name not in before)):
        if before.get(name) != after.get(name):
            yield name, before.get(name, "not set"), after.get(name, "not set")


def _check_inputs(
    old: PipelineShape, new: PipelineShape, operator: OperatorShape, now: OperatorShape, has: str, is_spread: bool
) -> None:
    """`is_spread`: each subtask has its own state, so that it matters which records come to which."""
    if operator.chain != now.chain:
        # An operator with keyed inputs is the head of its chain before and after; the others get theirs one to one.
        return
    before, after = _inputs(old, operator.chain), _inputs(new, now.chain)
    if is_spread:
        is_recorded = all(edge.records is not None for edge in before)
        _check_keys(_keys(operator, before, is_recorded), _keys(now, after, is_recorded), has)
    for edge in before:
        moved = [other.edge.input for other in after if other.edge.upstream == edge.edge.upstream]
        if moved and edge.edge.input not in moved:
            raise IncompatibleCheckpoint(
                f"{has}, whose input {edge.edge.input} was '{edge.edge.upstream}', which is input {moved[0]} here: "
                f"connect the streams in the old order, or {_WITHOUT_STATE}"
            )


def _inputs(shape: PipelineShape, chain: OperatorName) -> list[EdgeShape]:
    return [edge for edge in shape.edges if edge.edge.downstream == chain]


def _keys(operator: OperatorShape, inputs: Sequence[EdgeShape], is_recorded: bool) -> dict[int, str]:
    """The key of each keyed input, as text; of the first one alone, if a checkpoint has no more than that recorded."""
    if not is_recorded:
        return {0: _columns(operator.key)}
    keys: dict[int, set[tuple[str, ...]]] = {}
    for edge in inputs:
        if edge.records is not None and edge.records.key:
            keys.setdefault(edge.edge.input, set()).add(edge.records.key)
    return {number: " and ".join(map(_columns, sorted(found))) for number, found in keys.items()}


def _check_keys(before: Mapping[int, str], after: Mapping[int, str], has: str) -> None:
    for number in sorted({*before, *after}):
        old, new = before.get(number, "nothing"), after.get(number, "nothing")
        if old != new:
            side = f" on input {number}" if number else ""
            raise IncompatibleCheckpoint(
                f"{has} keyed by {old}{side}, but here it is keyed by {new}: its state cannot be found by another "
                f"key. Key it as before, or {_WITHOUT_STATE}"
            )


def _columns(names: Sequence[str] | None) -> str:
    if names is None:
        return "all columns"
    return "(" + ", ".join(names) + ")" if names else "nothing"


def _check_clocks(manifest: Manifest, shape: PipelineShape, what: str) -> None:
    """A watermark speaks for the column that it was made from: times of another one may all lie behind it."""
    new = {operator.name: operator for operator in shape.operators}
    clocks = {chain for report in manifest.reports for chain, clock in report.watermarks if clock > _NO_WATERMARK}
    for operator in manifest.shape.operators:
        if operator.chain in clocks and EVENT_TIME_COLUMN in dict(operator.definition) and operator.name in new:
            has = f"{what} has a watermark of operator '{operator.name}'"
            _check_definition(operator, new[operator.name], has, "use another checkpoint directory")


# --- edges ---


def _check_edges(manifest: Manifest, shape: PipelineShape, what: str) -> None:
    new = {edge.edge: edge for edge in shape.edges}
    old = {edge.edge: edge for edge in manifest.shape.edges}
    for edge in sorted({segment.edge for report in manifest.reports for segment in report.channels}):
        has = f"{what} has records in flight on the edge {edge}"
        if edge not in new:
            raise IncompatibleCheckpoint(f"{has}, which this pipeline does not have: {_TO_A_SAVEPOINT}")
        for name, before, after in _differences(old[edge], new[edge]):
            raise IncompatibleCheckpoint(
                f"{has}, whose {name} was {before} and is {after} here: put it back, or {_TO_A_SAVEPOINT}"
            )


def _differences(old: EdgeShape, new: EdgeShape) -> Iterator[tuple[str, str, str]]:
    """Facts, with their old and new value, that records in flight were routed or cut by."""
    if old.partitioning is not new.partitioning:
        yield "partitioning", old.partitioning.value, new.partitioning.value
    before, after = old.records, new.records
    if before is None or after is None:
        return
    if before.output != after.output:
        yield "output", before.output, after.output
    if before.key != after.key:
        yield "key", _columns(before.key), _columns(after.key)
    # The receiver holds all records of an input to one schema.
    if before.columns != after.columns:
        yield "set of columns that travel", _columns(before.columns), _columns(after.columns)
    if before.schema is not None and after.schema is not None and before.schema != after.schema:
        yield "declared schema", _columns(before.schema), _columns(after.schema)


# --- output ---


def _check_output(manifest: Manifest, shape: PipelineShape, what: str) -> None:
    """I4: output that a manifest names is published. Nobody else than its sink knows how."""
    old = {operator.name: operator for operator in manifest.shape.operators}
    new = {operator.name: operator for operator in shape.operators}
    for sink in sorted({committable.operator for committable in committables_of(manifest)}):
        has = f"{what} has output of sink '{sink}' that is not published yet"
        if sink not in new:
            raise IncompatibleCheckpoint(
                f"{has}, and this pipeline has no such sink: put it back under that name, start the pipeline until its "
                f"next checkpoint is complete, and rename or remove the sink then"
            )
        if sink in old:
            way_out = "start the pipeline with the old sink until its next checkpoint is complete, and change it then"
            _check_definition(old[sink], new[sink], has, way_out)


# --- states, in a worker ---


def check_states(
    manifest: Manifest,
    operator: OperatorName,
    declared: Mapping[str, tuple[StateKind, str]],
    removed: Container[str] = (),
) -> None:
    """Raise `IncompatibleCheckpoint` unless `operator` has asked for every state that the checkpoint has of it.

    `declared` are its states by name, with their kind and declaration; `removed` are those that it wants no more.
    """
    for piece in (piece for report in manifest.reports for piece in report.states if piece.operator == operator):
        if piece.name in removed:
            continue
        has = f"checkpoint {manifest.checkpoint} has {piece.kind.value} state '{piece.name}' of operator '{operator}'"
        if piece.name not in declared or declared[piece.name][0] is not piece.kind:
            raise IncompatibleCheckpoint(
                f"{has}, which does not have such a state any more: ask for it in open() under that name, "
                f"or {_WITHOUT_STATE}"
            )
        now = declared[piece.name][1]
        if piece.declared and now and piece.declared != now:
            raise IncompatibleCheckpoint(
                f"{has}, which was declared as {piece.declared} and is {now} here: state is not converted. "
                f"Declare it as before, or give the state another name and delete the old one with delete_state, "
                f"or {_WITHOUT_STATE}"
            )
