"""Avro schemas: parsed once, with every reference to a named type replaced by the type, and their Arrow types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.errors import PipelineError

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}
_PRECISION_MAX = 38


def avro_schema(where: str, schema: Any, named: Mapping[str, Any] | None = None) -> Any:
    """The record schema of a mapping or JSON text, with its named types resolved. Raises `PipelineError`.

    `named` has types that the text refers to and does not define, by their full names.
    """
    try:
        import fastavro
    except ImportError as error:
        raise PipelineError(
            f"{where}: format='avro' needs the package fastavro: pip install 'penstock[kafka]'"
        ) from error
    names: dict[str, Any] = dict(named or {})
    try:
        parsed: Any = fastavro.parse_schema(json.loads(schema) if isinstance(schema, str) else schema, names)
        is_record = parsed["type"] == "record"
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise PipelineError(
            f"{where}: format='avro' needs schema=, an Avro schema as a mapping or JSON text: {reason}"
        ) from error
    if not is_record:
        raise PipelineError(f"{where}: the Avro schema is that of a {parsed['type']}: it must be that of a record")
    return _resolved(where, parsed, names, ())


def _resolved(where: str, avro: Any, names: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    """The type as mappings and lists alone: `{"type": …}` for everything, a list for a union."""
    if isinstance(avro, list):
        return [_resolved(where, each, names, inside) for each in avro]
    if isinstance(avro, str):
        if avro in _PRIMITIVES:
            return {"type": avro}
        if avro in inside:
            raise PipelineError(
                f"{where}: the Avro type '{avro}' contains itself, and has no Arrow type: decode it with a function "
                f"as format="
            )
        return _resolved(where, names[avro], names, inside)
    kind = avro["type"]
    if kind == "record":
        within = (*inside, avro["name"])
        fields = [{**each, "type": _resolved(where, each["type"], names, within)} for each in avro["fields"]]
        return {**avro, "fields": fields}
    if kind == "array":
        return {**avro, "items": _resolved(where, avro["items"], names, inside)}
    if kind == "map":
        return {**avro, "values": _resolved(where, avro["values"], names, inside)}
    if isinstance(kind, (dict, list)) or kind not in (*_PRIMITIVES, "enum", "fixed"):
        return _resolved(where, kind, names, inside)
    return avro


def arrow_type(where: str, avro: Any) -> pa.DataType:
    """The Arrow type of a resolved Avro type. Raises `PipelineError` for unions that have none."""
    if isinstance(avro, list):
        others = [each for each in avro if each["type"] != "null"]
        if len(others) == 1:
            return arrow_type(where, others[0])
        shown = ", ".join(str(each["type"]) for each in avro)
        raise PipelineError(
            f"{where}: the Avro union of {shown} has no Arrow type: decode it with a function as format=, or declare a "
            f"schema= without the field"
        )
    kind, logical = avro["type"], avro.get("logicalType")
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        if avro["precision"] > _PRECISION_MAX:
            raise PipelineError(f"{where}: a decimal of {avro['precision']} digits: Arrow has up to {_PRECISION_MAX}")
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    if (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical]
    if kind == "record":
        return pa.struct([(each["name"], arrow_type(where, each["type"])) for each in avro["fields"]])
    if kind == "array":
        return pa.list_(arrow_type(where, avro["items"]))
    if kind == "map":
        return pa.map_(pa.string(), arrow_type(where, avro["values"]))
    if kind == "enum":
        return pa.string()
    if kind == "fixed":
        return pa.binary(avro["size"])
    return _PRIMITIVES[kind]


def arrow_schema(where: str, avro: Any) -> pa.Schema:
    return pa.schema([(each["name"], arrow_type(where, each["type"])) for each in avro["fields"]])
