"""Types of Protobuf messages: from text, compared with each other, and the frames in front of messages."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest

from penstock.connectors.kafka.framing import message_indexes, unframed, values_joined
from penstock.connectors.kafka.protobuf.evolution import incompatibility
from penstock.connectors.kafka.protobuf.message_types import files_of_text, message_type, named
from penstock.connectors.kafka.protobuf.messages import indexes_of
from penstock.connectors.kafka.protobuf.proto_text import ProtoSyntaxError
from penstock.errors import PipelineError

EVERYTHING = """
/* A file with
   everything that describes data. */
syntax = "proto3";
package shop.v1;
import public "google/protobuf/timestamp.proto";
option java_package = "com.example"; option (custom).deep = { a: 1 b { c: "}" } };
message Outer {
  reserved 9, 20 to 30; reserved "gone";
  option deprecated = true;
  message Inner { sint64 z = 1 [json_name = "zz", (my) = { x: [1, 2] }]; enum E { ZERO = 0; ONE = 0x1; } E e = 2; }
  Inner inner = 1;                       // by a relative name
  .shop.v1.Outer.Inner absolute = 2;
  oneof choice { string text = 3; int32 number = 4; }
  optional double amount = 5;
  map<string, Inner> by_name = 6;
  repeated fixed32 packed_ones = 7 [packed = false];
  google.protobuf.Timestamp at = 8;
  string message = 10; string option = 11; bytes reserved = 12; ; }
enum Top { option allow_alias = true; A = 0; B = 1; C = 1; D = -1; }
service Shop { rpc Buy (Outer) returns (Outer) { option x = { get: "/" }; } }
"""


def of(fields: str, syntax: str = "proto3", name: str | None = None) -> Any:
    return message_type("test", name, f'syntax = "{syntax}"; message M {{ {fields} }}').descriptor


def test_a_file_is_parsed_with_everything_that_describes_data() -> None:
    outer = pickle.loads(pickle.dumps(message_type("test", "Outer", EVERYTHING)))
    assert outer.name == "shop.v1.Outer"
    fields = {each.name: each for each in outer.descriptor.fields}
    assert [each.number for each in outer.descriptor.fields] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12]
    assert fields["inner"].message_type is fields["absolute"].message_type
    assert fields["text"].containing_oneof.name == "choice" and fields["amount"].has_presence
    assert fields["by_name"].message_type.GetOptions().map_entry
    assert not fields["packed_ones"].is_packed
    assert fields["at"].message_type.full_name == "google.protobuf.Timestamp"
    assert outer.schema.field("at").type.unit == "us"
    inner = named(outer.files, "shop.v1.Outer.Inner")
    assert [value.number for value in inner.descriptor.fields_by_name["e"].enum_type.values] == [0, 1]


def test_proto2_has_defaults_and_required_fields() -> None:
    found = of(
        'required int32 a = 1; optional string b = 2 [default = "x\\"y"]; optional bool c = 3 [default=true];', "proto2"
    )
    assert found.fields_by_name["a"].is_required
    assert found.fields_by_name["b"].default_value == 'x"y'
    assert found.fields_by_name["c"].default_value is True


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("message M { int32 a 1; }", "line 1: '=' is missing, at '1'"),
        ("message M {\n int32 a = x; }", "line 2: a number is missing, at 'x'"),
        ("message M { int32 a = 1;", "ends too early"),
        ("massage M {}", "a message, enum, import, option or service is expected, at 'massage'"),
        ("message M { optional group G = 1 {} }", "groups are not supported"),
        ('edition = "2023"; message M {}', "editions are not supported"),
        ("message M { int32 a = 1; } §", "'§' is not expected"),
        ('import "other.proto"; message M {}', "imports 'other.proto', which is neither among its references"),
        ("message M { Lost a = 1; }", "Lost"),
        ("enum E { A = 0; }", "has no message"),
    ],
)
def test_text_that_cannot_be_read_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(PipelineError, match=reason):
        message_type("test", None, f'syntax = "proto3"; {text}')
    with pytest.raises(PipelineError, match="no message 'N'; the messages are M"):
        message_type("test", "N", 'syntax = "proto3"; message M {}')
    with pytest.raises(PipelineError, match="needs message=, a generated class"):
        message_type("test", None, None)


def test_files_refer_to_each_other_and_never_to_themselves() -> None:
    text = 'syntax = "proto3"; import "a.proto"; message M { A a = 1; }'
    files = files_of_text(text, {"a.proto": 'syntax = "proto3"; message A { int32 x = 1; }'})
    assert named(files, "M").descriptor.fields[0].message_type.name == "A"
    with pytest.raises(ProtoSyntaxError, match=r"'a.proto' imports itself"):
        files_of_text(text, {"a.proto": 'syntax = "proto3"; import "a.proto";'})


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        ("int32 a = 1;", "int64 a = 1;", ""),
        ("int32 a = 1; string b = 2;", "int32 renamed = 1; bool c = 3;", ""),
        ("int64 a = 1;", "int32 a = 1;", "written as int64 and read as int32"),
        ("int32 a = 1;", "sint32 a = 1;", "written as int32 and read as sint32"),
        ("string a = 1;", "bytes a = 1;", ""),
        ("bytes a = 1;", "string a = 1;", "written as bytes and read as string"),
        ("int32 a = 1;", "repeated int32 a = 1;", "written as int32 and read as repeated int32"),
        ("message I { int32 x = 1; } I a = 1;", "message I { string x = 1; } I a = 1;", r"field 'a\.x' \(number 1\)"),
        ("M a = 1; int32 b = 2;", "M a = 1; bool b = 2;", "field 'b'"),
        ("enum E { Z = 0; A = 1; } E e = 1;", "enum E { Z = 0; B = 1; } E e = 1;", "number 1 was 'A' and is 'B'"),
        ("enum E { Z = 0; A = 1; } E e = 1;", "enum E { Z = 0; } E e = 1;", ""),
    ],
)
def test_a_type_may_grow_and_nothing_is_read_as_something_else(writer: str, reader: str, reason: str) -> None:
    found = incompatibility(of(writer), of(reader))
    assert re.search(reason, found) if reason else found == ""


def test_the_place_of_a_message_is_written_as_it_is_read() -> None:
    text = 'syntax = "proto3"; message Z { message Y { } message X { message W { } } } message A { }'
    places = {"Z": [0], "A": [1], "Z.X": [0, 1], "Z.X.W": [0, 1, 0]}
    assert indexes_of(message_type("test", "Z", text)) == b"\0"
    for name, place in places.items():
        value = b"\0\0\0\x01\x02" + indexes_of(message_type("test", name, text)) + b"rest"
        ids, behind = unframed(values_joined([value]))
        found, behind = message_indexes(behind)
        assert ids.tolist() == [0x102] and found[0].tolist() == place
        assert behind.data[behind.at[0] :].tobytes() == b"rest"


@pytest.mark.parametrize("value", [b"", b"\0\0\0\1", b"\1\0\0\0\1", b"{}      "])
def test_a_message_without_a_frame_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="does not begin with a zero byte"):
        unframed(values_joined([b"\0\0\0\0\1x", value]))
    with pytest.raises(ValueError, match="the index of its message type"):
        message_indexes(values_joined([b"\xfe\x01"]))
    assert np.array_equal(values_joined([None, b"a", None]).rows, [1])
