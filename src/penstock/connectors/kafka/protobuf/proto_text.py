"""Parses the text of a `.proto` file into its descriptor.

A schema registry holds Protobuf schemas as text, and neither protobuf nor its Python package has a parser at run time.
This one reads what describes data: messages, enums, fields, oneofs, maps, imports. Services and custom options are
passed over. What it does not know is an error with its line, never a guess: groups, editions, extensions of messages.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<word>\.?[A-Za-z_][\w.]*)
      | (?P<number>[+-]?(?:0[xX][0-9a-fA-F]+|\d[\w.]*(?:[eE][+-]?\d+)?|\.\d[\w.]*))
      | (?P<symbol>[{}()\[\]<>=;,:+-])""",
    re.VERBOSE | re.DOTALL,
)
FIELD_TYPES: Final = (
    *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group"),
    *("message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
"""By their numbers in a descriptor, from 1."""
_LABELS = {"optional": 1, "required": 2, "repeated": 3}
_MESSAGE = FIELD_TYPES.index("message") + 1


class ProtoSyntaxError(ValueError):
    """The text is no `.proto` file that can be read here; says where and why."""


def parsed_proto(name: str, text: str) -> Any:
    """The `FileDescriptorProto` of a text. Raises `ProtoSyntaxError`."""
    return _Parser(name, text).file()


class _Parser:
    def __init__(self, name: str, text: str) -> None:
        descriptors: Any = importlib.import_module("google.protobuf.descriptor_pb2")
        self._file = descriptors.FileDescriptorProto(name=name)
        self._tokens = list(_tokens(name, text))
        self._at = 0

    # --- tokens ---

    @property
    def _next(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self._next
        if not token or (expected and token != expected):
            self._fail(f"'{expected}' is missing" if expected else "the text ends too early")
        self._at += 1
        return token

    def _fail(self, reason: str) -> NoReturn:
        line = self._tokens[min(self._at, len(self._tokens) - 1)][1] if self._tokens else 1
        raise ProtoSyntaxError(f"{self._file.name}, line {line}: {reason}, at '{self._next}'")

    def _string(self) -> str:
        token = self._take()
        if token[0] not in "\"'":
            self._fail("a text in quotes is missing")
        return token[1:-1].encode().decode("unicode_escape")

    def _number(self) -> int:
        try:
            return int(self._take(), 0)
        except ValueError:
            self._at -= 1
            self._fail("a number is missing")

    def _pass_statement(self) -> None:
        """Up to the semicolon, over everything in braces."""
        depth = 0
        while True:
            token = self._take()
            depth += (token in "{[") - (token in "}]")
            if depth == 0 and token in ";}":
                return

    # --- files ---

    def file(self) -> Any:
        while self._next:
            word = self._take()
            if word == "syntax":
                self._take("=")
                self._file.syntax = self._string()
                self._take(";")
            elif word == "edition":
                self._fail("editions are not supported here: give the descriptor set")
            elif word == "package":
                self._file.package = self._take()
                self._take(";")
            elif word == "import":
                self._import()
            elif word == "message":
                self._message(self._file.message_type.add())
            elif word == "enum":
                self._enum(self._file.enum_type.add())
            elif word in {"option", "service", "extend"}:
                self._pass_statement()
            elif word != ";":
                self._at -= 1
                self._fail("a message, enum, import, option or service is expected")
        return self._file

    def _import(self) -> None:
        if self._next in {"public", "weak"}:
            kind = self._take()
            if kind == "public":
                self._file.public_dependency.append(len(self._file.dependency))
        self._file.dependency.append(self._string())
        self._take(";")

    # --- messages ---

    def _message(self, message: Any) -> None:
        message.name = self._take()
        self._take("{")
        optional: list[Any] = []
        while self._next != "}":
            word = self._next
            if word == "message":
                self._take()
                self._message(message.nested_type.add())
            elif word == "enum":
                self._take()
                self._enum(message.enum_type.add())
            elif word == "oneof":
                self._oneof(message)
            elif word in {"option", "extend", "extensions", "reserved"}:
                self._take()
                self._pass_statement()
            elif word == ";":
                self._take()
            else:
                self._field(message, optional)
        self._take("}")
        # As the compiler does: an optional field of proto3 is alone in a oneof, behind the real ones.
        for field in optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")

    def _oneof(self, message: Any) -> None:
        self._take("oneof")
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._take())
        self._take("{")
        while self._next != "}":
            if self._next == "option":
                self._take()
                self._pass_statement()
            elif self._next == ";":
                self._take()
            else:
                self._field(message, []).oneof_index = index
        self._take("}")

    def _field(self, message: Any, optional: list[Any]) -> Any:
        label = self._take() if self._next in _LABELS else ""
        kind = self._take()
        field = message.field.add(label=_LABELS[label or "optional"])
        if kind == "group":
            self._fail("groups are not supported here: give the descriptor set")
        if kind == "map" and self._next == "<":
            self._map(message, field)
        else:
            self._typed(field, kind)
            field.name = self._take()
        self._take("=")
        field.number = self._number()
        self._options(field)
        self._take(";")
        if label == "optional" and self._file.syntax == "proto3":
            field.proto3_optional = True
            optional.append(field)
        return field

    @staticmethod
    def _typed(field: Any, kind: str) -> None:
        if kind in FIELD_TYPES and kind not in {"message", "enum", "group"}:
            field.type = FIELD_TYPES.index(kind) + 1
        else:
            # Whether it is a message or an enum is known when all files are there.
            field.type_name = kind

    def _map(self, message: Any, field: Any) -> None:
        self._take("<")
        key = self._take()
        self._take(",")
        value = self._take()
        self._take(">")
        field.name = self._take()
        entry = message.nested_type.add(name=f"{_camel(field.name)}Entry")
        entry.options.map_entry = True
        self._typed(entry.field.add(name="key", number=1, label=1), key)
        self._typed(entry.field.add(name="value", number=2, label=1), value)
        field.label, field.type, field.type_name = _LABELS["repeated"], _MESSAGE, entry.name

    def _options(self, field: Any) -> None:
        if self._next != "[":
            return
        first = self._at
        depth = 0
        while depth or self._at == first:
            token = self._take()
            depth += (token == "[") - (token == "]")
            if depth == 1 and self._next == "=" and token in {"default", "packed"}:
                self._take()
                if token == "packed":
                    field.options.packed = self._next == "true"
                else:
                    field.default_value = self._string() if self._next[0] in "\"'" else self._next

    def _enum(self, enum: Any) -> None:
        enum.name = self._take()
        self._take("{")
        while self._next != "}":
            if self._next in {"option", "reserved"} and self._tokens[self._at + 1][0] != "=":
                is_alias = self._tokens[self._at + 1][0] == "allow_alias"
                self._pass_statement()
                enum.options.allow_alias = enum.options.allow_alias or is_alias
            elif self._next == ";":
                self._take()
            else:
                value = enum.value.add(name=self._take())
                self._take("=")
                value.number = self._number()
                if self._next == "[":
                    self._options(value)
                self._take(";")
        self._take("}")


def _tokens(name: str, text: str) -> Iterator[tuple[str, int]]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ProtoSyntaxError(f"{name}, line {line}: '{text[at]}' is not expected")
        if match.lastgroup != "space":
            yield match.group(), line
        line += match.group().count("\n")
        at = match.end()


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))
