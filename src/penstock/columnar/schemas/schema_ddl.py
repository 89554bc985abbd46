"""Schemas in the words of users: a `pyarrow.Schema`, a DDL string or a `StructType`. Spark is not asked, nor a JVM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.errors import PipelineError

SchemaLike: TypeAlias = Any
"""`pyarrow.Schema`, DDL string, or a `StructType` of PySpark."""

_ATOMS: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal": pa.decimal128(10, 0),
    "void": pa.null(),
}
_TOKEN = re.compile(r"\s*(`[^`]+`|\w+|[<>(),:])")


def as_schema(schema: SchemaLike) -> pa.Schema:
    """The Arrow schema that is meant. Raises `PipelineError` if it is not a schema."""
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        return _Ddl(schema).schema()
    if hasattr(schema, "jsonValue"):
        kind = _type_of_json(schema.jsonValue())
        if pa.types.is_struct(kind):
            return pa.schema(list(kind))
    if isinstance(schema, Mapping):
        return pa.schema(list(schema.items()))
    raise PipelineError(
        f"{schema!r} is not a schema: write a pyarrow.Schema, a DDL string such as 'name string, n bigint', "
        f"or a StructType of PySpark"
    )


class _Ddl:
    """A parser of Spark's `name type, …` strings."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        place = 0
        while place < len(text.rstrip()):
            match = _TOKEN.match(text, place)
            if match is None:
                raise self._error(f"'{text[place:].strip()[:10]}' does not belong there")
            self._tokens.append(match[1])
            place = match.end()
        self._next = 0

    def schema(self) -> pa.Schema:
        if self._peek().lower() == "struct" and self._tokens[1:2] == ["<"]:
            schema = pa.schema(list(self._type()))
        else:
            schema = pa.schema(self._fields(""))
        if self._peek():
            raise self._error(f"'{self._peek()}' is left over")
        return schema

    def _fields(self, closing: str) -> list[pa.Field]:
        fields: list[pa.Field] = []
        while self._peek() != closing:
            name = self._take().strip("`")
            if self._peek() == ":":
                self._take()
            kind, nullable = self._type(), True
            if self._peek().lower() == "not":
                self._take()
                if self._take().lower() != "null":
                    raise self._error("NOT is followed by NULL")
                nullable = False
            fields.append(pa.field(name, kind, nullable))
            if self._peek() != ",":
                break
            self._take()
        return fields

    def _type(self) -> pa.DataType:
        name = self._take().lower()
        if self._peek() == "<":
            return self._nested(name)
        numbers: list[int] = []
        if self._peek() == "(":
            self._take()
            while self._peek() not in (")", ""):
                token = self._take()
                if token.isdigit():
                    numbers.append(int(token))
            self._expect(")")
        if name == "decimal" and numbers:
            return pa.decimal128(*numbers)
        if name not in _ATOMS:
            raise self._error(f"there is no type '{name}'")
        return _ATOMS[name]

    def _nested(self, name: str) -> pa.DataType:
        self._expect("<")
        if name == "struct":
            kind: pa.DataType = pa.struct(self._fields(">"))
        elif name == "array":
            kind = pa.list_(self._type())
        elif name == "map":
            key = self._type()
            self._expect(",")
            kind = pa.map_(key, self._type())
        else:
            raise self._error(f"there is no type '{name}<…>'")
        self._expect(">")
        return kind

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        if not token:
            raise self._error("it ends too early")
        self._next += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise self._error(f"'{token}' is missing")

    def _error(self, what: str) -> PipelineError:
        return PipelineError(f"the schema '{self._text}' cannot be parsed: {what}")


def _type_of_json(value: Any) -> pa.DataType:
    """The type behind what PySpark's `jsonValue` returns."""
    if isinstance(value, str):
        return _Ddl(f"it {value}").schema().field(0).type
    match value.get("type"):
        case "struct":
            fields = [(field["name"], _type_of_json(field["type"]), field["nullable"]) for field in value["fields"]]
            return pa.struct([pa.field(*field) for field in fields])
        case "array":
            return pa.list_(_type_of_json(value["elementType"]))
        case "map":
            return pa.map_(_type_of_json(value["keyType"]), _type_of_json(value["valueType"]))
        case other:
            raise PipelineError(f"a state or an output cannot have the type {other!r}")
