"""Schema evolution: which reader yields the reader's column from bytes of the writer's schema, by the rules of Avro.

Fields meet by name or alias. A field that was not written has its default; one that is not wanted is passed over.
Numbers are promoted, never narrowed. `Incompatible` says which field cannot be read, and why.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.connectors.kafka.avro import decoding as d
from penstock.connectors.kafka.avro.schemas import arrow_type
from penstock.errors import PipelineError

_PROMOTIONS = {
    "int": {"int", "long", "float", "double"},
    "long": {"long", "float", "double"},
    "float": {"float", "double"},
    "double": {"double"},
    "string": {"string", "bytes"},
    "bytes": {"string", "bytes"},
}


class Incompatible(ValueError):
    """Records of the writer's schema cannot be read with that of the reader."""


def record_reader(where: str, writer: Any, reader: Any) -> d.Records:
    """Raises `Incompatible`."""
    return _record(where, writer, reader, "")


def reader_of(where: str, writer: Any, reader: Any, path: str) -> d.Reader:
    if isinstance(writer, list):
        return _union(where, writer, reader, path)
    target = _target(writer, reader)
    if target is None:
        raise Incompatible(f"{_field(path)} is written as {_shown(writer)} and read as {_shown(reader)}")
    kind = target["type"]
    if kind == "record":
        return _record(where, writer, target, path)
    if kind in {"array", "map"}:
        key = "items" if kind == "array" else "values"
        item = reader_of(where, writer[key], target[key], f"{path}[]")
        items = [item] if kind == "array" else [d.Strings(pa.string()), item]
        return d.Lists(_type(where, target), items)
    if kind == "enum":
        return d.Enums([_symbol(each, target) for each in writer["symbols"]], writer["symbols"])
    return _plain(where, writer, target)


def _plain(where: str, writer: Any, target: Any) -> d.Reader:
    written, kind = writer["type"], arrow_type(where, target)
    if written == "null":
        return d.Nulls(kind)
    if written == "boolean":
        return d.Booleans()
    if written in {"int", "long"}:
        return d.Integers(kind, is_int=written == "int")
    if written in {"float", "double"}:
        return d.Floats(kind, "<f4" if written == "float" else "<f8")
    if pa.types.is_decimal(kind):
        return d.Decimals(kind, writer.get("size"))
    return d.Fixed(writer["size"]) if written == "fixed" else d.Strings(kind)


def _target(writer: Any, reader: Any) -> Any:
    """The type, or the branch of the union, that the reader has for the written type; None if it has no such type."""
    if isinstance(reader, list):
        fits = [each for each in reader if _fits(writer, each)]
        same = [each for each in fits if each["type"] == writer["type"]]
        return (same or fits or [None])[0]
    return reader if _fits(writer, reader) else None


def _fits(writer: Any, reader: Any) -> bool:
    written, wanted = writer["type"], reader["type"]
    if "decimal" in (writer.get("logicalType"), reader.get("logicalType")):
        return written == wanted and _decimal(writer) == _decimal(reader)
    if written == "fixed":
        return bool(wanted == "fixed" and writer["size"] == reader["size"])
    if not _same_meaning(writer, reader):
        return False
    return wanted in _PROMOTIONS.get(written, {written})


def _decimal(avro: Any) -> tuple[Any, ...]:
    return avro.get("logicalType"), avro.get("precision"), avro.get("scale", 0), avro.get("size")


def _same_meaning(writer: Any, reader: Any) -> bool:
    """A time in milliseconds that is read as one in microseconds would be another time, without a word."""
    written, wanted = writer.get("logicalType"), reader.get("logicalType")
    return written is None or wanted is None or written == wanted


def _union(where: str, writer: list[Any], reader: Any, path: str) -> d.Reader:
    branches: list[d.Reader] = []
    kind = arrow_type(where, reader) if not _is_passed_over(writer, reader) else pa.null()
    for each in writer:
        try:
            if each["type"] == "null" and isinstance(reader, list) and {"type": "null"} in reader:
                branches.append(d.Nulls(kind))
            elif _is_passed_over(writer, reader):
                branches.append(reader_of(where, each, each, path))
            else:
                branches.append(reader_of(where, each, reader, path))
        except Incompatible as error:
            branches.append(d.Unfit(str(error)))
    if all(isinstance(branch, d.Unfit) for branch in branches):
        raise Incompatible(f"{_field(path)} is written as {_shown(writer)} and read as {_shown(reader)}")
    return d.Unions(kind, branches)


def _is_passed_over(writer: Any, reader: Any) -> bool:
    """Whether it is only read to get behind it: then the branches need no common type."""
    return writer is reader and sum(each["type"] != "null" for each in writer) > 1


def _record(where: str, writer: Any, reader: Any, path: str) -> d.Records:
    wanted = {each["name"]: number for number, each in enumerate(reader["fields"])}
    for number, each in enumerate(reader["fields"]):
        for alias in each.get("aliases", ()):
            wanted.setdefault(alias, number)
    fields: list[tuple[int | None, d.Reader]] = []
    found: set[int] = set()
    for each in writer["fields"]:
        target = wanted.get(each["name"])
        within = f"{path}.{each['name']}".lstrip(".")
        if target is None or target in found:
            fields.append((None, reader_of(where, each["type"], each["type"], within)))
        else:
            found.add(target)
            wanted_type = reader["fields"][target]["type"]
            fields.append((target, reader_of(where, each["type"], wanted_type, within)))
    added = {
        number: _default(where, each, f"{path}.{each['name']}".lstrip("."))
        for number, each in enumerate(reader["fields"])
        if number not in found
    }
    return d.Records(_type(where, reader), fields, added)


def _type(where: str, avro: Any) -> pa.DataType:
    try:
        return arrow_type(where, avro)
    except PipelineError:
        # The types of the reader's schema were looked at when it was declared: this one is passed over.
        return pa.struct([])


def _default(where: str, field: Any, path: str) -> pa.Array:
    """The default of a field as an array of one: written as Avro, and read like everything else."""
    if "default" not in field:
        raise Incompatible(f"{_field(path)} was not written, and has no default in the reader's schema")
    avro = field["type"]
    written = encoded_default(avro, field["default"])
    data, end = np.frombuffer(written, np.uint8), np.array([len(written)])
    return reader_of(where, avro, avro, path).read(data, np.array([0]), end)[0]


def encoded_default(avro: Any, value: Any) -> bytes:
    import fastavro

    out = io.BytesIO()
    if isinstance(avro, list):
        number = next((n for n, each in enumerate(avro) if (each["type"] == "null") == (value is None)), 0)
        fastavro.schemaless_writer(out, {"type": "long"}, number)
        avro = avro[number]
    if avro["type"] == "record":
        for field in avro["fields"]:
            out.write(encoded_default(field["type"], value.get(field["name"], field.get("default"))))
    else:
        fastavro.schemaless_writer(out, fastavro.parse_schema(_named(avro)), _raw(avro, value))
    return out.getvalue()


def _raw(avro: Any, value: Any) -> Any:
    """JSON has bytes as text, a character for each."""
    return value.encode("latin-1") if avro["type"] in {"bytes", "fixed"} and isinstance(value, str) else value


def _named(avro: Any) -> Any:
    """The type alone, so that nothing that was resolved is defined twice, and numbers are written as they are."""
    return {name: value for name, value in avro.items() if name not in {"logicalType", "__fastavro_parsed__"}}


def _symbol(symbol: str, target: Any) -> str | None:
    return symbol if symbol in target["symbols"] else target.get("default")


def _field(path: str) -> str:
    return f"field '{path}'" if path else "the record"


def _shown(avro: Any) -> str:
    if isinstance(avro, list):
        return f"a union of {', '.join(_shown(each) for each in avro)}"
    return str(avro.get("logicalType") or avro["type"])
