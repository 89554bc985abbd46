"""Commit messages of PySpark's stream writers as JSON, so that none is ever unpickled from a checkpoint.

Spark pickles a `WriterCommitMessage`. A manifest is read from a directory that others may write to, and to unpickle is
to run code, so here a message is written as the fields of its dataclass and the name of the class. It is rebuilt only
if the name belongs to one of the classes that the data source itself brings along; everything else is refused.
"""

from __future__ import annotations

import base64
import dataclasses
import types
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.errors import StorageError, UserCodeError

_PLAIN = (str, int, float, bool, type(None))
_HEAP_TYPE = 1 << 9
"""A class that was made in Python, and not in C."""


def name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def message_classes(data_source: type, others: Iterable[type] = ()) -> dict[str, type]:
    """The classes of which messages may be, by name: the given ones, and all that can be seen from the data source.

    These are the dataclasses and the subclasses of `WriterCommitMessage` among the attributes of the data source, of
    the module that it was written in, and of the modules of the stream writers in there.
    """
    from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

    seen = _seen_from(data_source)
    for writer in [kind for kind in seen if issubclass(kind, DataSourceStreamWriter)]:
        seen |= _seen_from(writer)
    messages = [kind for kind in seen if dataclasses.is_dataclass(kind) or issubclass(kind, WriterCommitMessage)]
    return {name_of(kind): kind for kind in [WriterCommitMessage, *messages, *others]}


def _seen_from(start: type) -> set[type]:
    """Classes that the code of a class can name; what PySpark's own code can see does not count."""
    found: set[type] = set()
    for kind in start.__mro__:
        if kind.__module__.partition(".")[0] in ("builtins", "abc", "pyspark"):
            continue
        functions = [each for each in vars(kind).values() if isinstance(each, types.FunctionType)]
        # Not by the name of the module: that of a script or a notebook may be another one by now.
        for namespace in [dict(vars(kind)), *(function.__globals__ for function in functions)]:
            found |= {value for value in list(namespace.values()) if isinstance(value, type)}
    return found


def encode_message(message: Any, allowed: Iterable[str], where: str) -> Any:
    """What JSON can hold of a message. Raises `UserCodeError`, in the worker, before anything depends on it."""
    from pyspark.sql.datasource import WriterCommitMessage

    if message is not None and not isinstance(message, WriterCommitMessage):
        raise UserCodeError(f"{where}: write returned {message!r}, not a WriterCommitMessage")
    return _Encoder(frozenset(allowed), where).encode(message, "the commit message")


class _Encoder:
    def __init__(self, allowed: frozenset[str], where: str) -> None:
        self._allowed = allowed
        self._where = where

    def encode(self, value: Any, what: str) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            return [self.encode(each, what) for each in value]
        if kind is tuple:
            return {"tuple": [self.encode(each, what) for each in value]}
        if kind is dict:
            return {"dict": [[self.encode(key, what), self.encode(each, what)] for key, each in value.items()]}
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        return self._fields(value, kind, what)

    def _fields(self, value: Any, kind: type, what: str) -> dict[str, Any]:
        name = name_of(kind)
        names = [field.name for field in _fields_of(kind)]
        if not _is_all_fields(value, set(names)):
            raise UserCodeError(
                f"{self._where}: {what} has a {name} in it. Checkpoints hold messages as JSON: make it a dataclass "
                f"without other attributes, or one of str, int, float, bool, None, bytes, list, tuple and dict"
            )
        if name not in self._allowed:
            raise UserCodeError(
                f"{self._where}: {what} is of the class {name}, which is not in the module of the data source or of "
                f"its writer. Name it: SparkSink(…, messages=[{kind.__name__}])"
            )
        fields = {each: self.encode(getattr(value, each), f"'{each}' of {name}") for each in names}
        return {"class": name, "fields": fields}


def decode_message(encoded: Any, classes: Mapping[str, type], where: str) -> Any:
    """The message again. Raises `StorageError` for everything that `encode_message` cannot have written."""
    if type(encoded) in _PLAIN:
        return encoded
    if isinstance(encoded, list):
        return [decode_message(each, classes, where) for each in encoded]
    match encoded:
        case {"tuple": list(values), **rest} if not rest:
            return tuple(decode_message(each, classes, where) for each in values)
        case {"dict": list(pairs), **rest} if not rest:
            return {decode_message(key, classes, where): decode_message(each, classes, where) for key, each in pairs}
        case {"bytes": str(text), **rest} if not rest:
            return base64.b64decode(text, validate=True)
        case {"class": str(name), "fields": dict(fields), **rest} if not rest:
            decoded = {str(key): decode_message(each, classes, where) for key, each in fields.items()}
            return _rebuilt(name, decoded, classes, where)
        case _:
            raise StorageError(f"{where}: the checkpoint holds {encoded!r}, which is not a commit message")


def _rebuilt(name: str, values: Mapping[str, Any], classes: Mapping[str, type], where: str) -> Any:
    """An object of one of our classes with these fields. Like unpickling, it does not run the class's `__init__`."""
    kind = classes.get(name)
    if kind is None:
        raise StorageError(
            f"{where}: the checkpoint holds a message of the class {name}, which does not belong to this data source. "
            f"If it was renamed or moved, put it back until this checkpoint is published, or name it in messages=[…]"
        )
    known = {field.name: field for field in _fields_of(kind)}
    missing = [each for each, field in known.items() if each not in values and _is_required(field)]
    if missing or not values.keys() <= known.keys():
        raise StorageError(
            f"{where}: the checkpoint holds a message of the class {name} with the fields {', '.join(values)}; now "
            f"the class has {', '.join(known)}: put it back as it was until this checkpoint is published"
        )
    message: Any = object.__new__(kind)
    for each, field in known.items():
        object.__setattr__(message, each, values[each] if each in values else _default_of(field))
    return message


def _is_all_fields(value: Any, names: set[str]) -> bool:
    """Whether nothing of an object would be lost that is made anew from its fields."""
    own = [kind for kind in type(value).__mro__ if kind.__flags__ & _HEAP_TYPE]
    if [*own, object] != list(type(value).__mro__):
        # A kind of int, of date or of another type that keeps what it has to itself.
        return False
    slots = [vars(kind).get("__slots__", ()) for kind in own]
    slotted = {name for each in slots for name in ([each] if isinstance(each, str) else each)}
    return slotted | vars(value).keys() <= names if hasattr(value, "__dict__") else slotted <= names


def _fields_of(kind: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
