"""Defects of the connectors for Kafka. Only a broker shows them: their own tests must notice."""

from __future__ import annotations

from tests.mutants.mutant import OWN, Mutant

_SOURCE = ("tests/kafka/test_source.py",)
_SINK = ("tests/kafka/test_sink.py",)
_REGISTRY = ("tests/kafka/test_registry.py",)
_AVRO = ("tests/unit/connectors/kafka/test_avro.py",)
_PROTOBUF = ("tests/unit/connectors/kafka/test_protobuf.py",)


def _mutant(name: str, file: str, old: str, new: str, why: str, tests: tuple[str, ...]) -> Mutant:
    return Mutant(name, OWN, f"connectors/kafka/{file}", old, new, why, seeds=0, tests=tests)


MUTANTS = (
    _mutant(
        "A position in Kafka is that of the last record and not of the next",
        "source.py",
        "int(entry.offsets[end - 1]) + 1",
        "int(entry.offsets[end - 1])",
        "I1: a record is in front of the cut and is read again.",
        _SOURCE,
    ),
    _mutant(
        "A position in Kafka is behind all that was fetched",
        "source.py",
        "self._row, self._next = end, int(entry.offsets[end - 1]) + 1",
        "self._row, self._next = end, entry.end",
        "I1: records that were not returned yet are lost after a failure.",
        _SOURCE,
    ),
    _mutant(
        "A partition that appeared while the pipeline was down begins at its end",
        "source.py",
        "begin = BEGINNING if self._is_restored else",
        "begin = BEGINNING if False else",
        "Its first records are never read.",
        _SOURCE,
    ),
    _mutant(
        "A partition counts as caught up before its end was seen",
        "fetcher.py",
        "        self.is_caught_up = False\n",
        "        self.is_caught_up = True\n",
        "While a broker is slow the partition is idle, and its records are late.",
        _SOURCE,
    ),
    _mutant(
        "Messages behind one that failed are returned",
        "fetcher.py",
        "        if self.failed is not None:\n",
        "        if False:\n",
        "I1: the position passes over records that nobody has decoded.",
        _SOURCE,
    ),
    _mutant(
        "Several JSON objects in a message are several records",
        "formats.py",
        "if batch.num_rows != len(values):",
        "if batch.num_rows < len(values):",
        "I1: rows and offsets are not those of the same message.",
        _SOURCE,
    ),
    _mutant(
        "Output that was published is published again",
        "publisher.py",
        "if self._marker is not None and self._marker.digest == wanted.digest:",
        "if False:",
        "I4: a crash between transaction and removal repeats the output.",
        _SINK,
    ),
    _mutant(
        "Checkpoints with a lower number than the marker's count as published",
        "publisher.py",
        "if self._marker is not None and self._marker.digest == wanted.digest:",
        "if self._marker is not None and self._marker.checkpoint >= wanted.checkpoint:",
        "A pipeline that starts anew loses all of its output in silence.",
        _SINK,
    ),
    _mutant(
        "The marker is not part of the transaction",
        "publisher.py",
        "        producer.produce(sink.marker_topic, marker.encoded(), sink.transactional_id.encode(), partition=0)\n",
        "",
        "I4: nobody can tell after a crash whether the output was published.",
        _SINK,
    ),
    _mutant(
        "Staged files stay after they were published",
        "publisher.py",
        '        for file in files:\n            self._place.remove(file["staged"])\n',
        "",
        "I6: an older driver finds them, and publishes them again.",
        _SINK,
    ),
    _mutant(
        "Markers are read as far as the first open transaction",
        "publisher.py",
        "                    if message.offset() >= end:\n",
        "                    if True:\n",
        "I4: the marker behind it is overlooked, and the output comes twice.",
        _SINK,
    ),
    _mutant(
        "A restart reads with the newest schema",
        "source.py",
        "self._schema_id or by_registry.id",
        "by_registry.id",
        "The columns change in the middle of a stream, without a word.",
        _REGISTRY,
    ),
    _mutant(
        "Positions do not name the schema that they were read with",
        "source.py",
        '({} if schema is None else {"schema": schema})',
        "{}",
        "After a restart of the driver the columns are others.",
        _REGISTRY,
    ),
    _mutant(
        "Rows of several schemas stay in the order of the schemas",
        "framing.py",
        'order = np.argsort(np.concatenate(parts), kind="stable")',
        "order = np.arange(len(keys))",
        "I1: rows and offsets are not those of the same message.",
        _REGISTRY,
    ),
    _mutant(
        "A registry that refuses is asked for ever",
        "registry.py",
        "if error.http_status_code < 500 and error.http_status_code != 429:",
        "if False:",
        "The pipeline stands still, and the user waits for a permission that nobody was told of.",
        _REGISTRY,
    ),
    _mutant(
        "A registry that is down is an error of the message",
        "registry.py",
        "            if self._is_over(silent):\n",
        '            if True:\n                raise ValueError("not now")\n            if self._is_over(silent):\n',
        "With on_error='skip' an outage of the registry loses records.",
        _REGISTRY,
    ),
    _mutant(
        "A thread that is closed goes on asking the registry",
        "registry.py",
        "            if self._is_over(silent):\n",
        "            if False:\n",
        "Each restart during an outage leaves a thread behind.",
        _REGISTRY,
    ),
    _mutant(
        "A cursor of Avro runs into the next message",
        "avro/decoding.py",
        "(lengths > end - at).any()",
        "(lengths > len(data) - at).any()",
        "A damaged message is completed with bytes of its neighbour.",
        _AVRO,
    ),
    _mutant(
        "An Avro record need not end with its message",
        "avro/decoding.py",
        "wrong = np.flatnonzero(behind != end)",
        "wrong = np.flatnonzero(behind > end)",
        "Messages of another schema become rows, wherever it begins alike.",
        _AVRO,
    ),
    _mutant(
        "An Avro long is read as an int",
        "avro/resolution.py",
        '"long": {"long", "float", "double"},',
        '"long": {"int", "long", "float", "double"},',
        "Numbers lose their upper half.",
        _AVRO,
    ),
    _mutant(
        "Milliseconds are read as microseconds",
        "avro/resolution.py",
        "return written is None or wanted is None or written == wanted",
        "return True",
        "Every time is near 1970.",
        _AVRO,
    ),
    _mutant(
        "A column that Avro has no field for is left out in silence",
        "avro/encoding.py",
        "    if unknown:\n",
        "    if False:\n",
        "Output is missing, and nothing says so.",
        _AVRO,
    ),
    _mutant(
        "A Protobuf field whose type has changed is read",
        "protobuf/evolution.py",
        'return "" if after in _WIDENED.get(before, ()) else told',
        'return ""',
        "Protobuf makes the default of it, or another number.",
        _PROTOBUF,
    ),
    _mutant(
        "An enum whose numbers have changed names is read",
        "protobuf/evolution.py",
        "if known.get(value.number, value.name) != value.name:",
        "if False:",
        "One symbol is taken for another.",
        _PROTOBUF,
    ),
    _mutant(
        "The first message of a schema stands for all",
        "framing.py",
        "found[rows, number], at[rows] = longs(values.data, at[rows], values.end[rows])",
        "_, at[rows] = longs(values.data, at[rows], values.end[rows])",
        "A message is compared with another one of its file.",
        _PROTOBUF,
    ),
    Mutant(
        "A split that is not caught up becomes idle",
        OWN,
        "worker/sources/source_stage.py",
        "if self._readers[name].is_caught_up:",
        "if True:",
        "Records that a slow broker delivers are late.",
        seeds=0,
        tests=("tests/unit/worker/sources/test_source_stage.py",),
    ),
)
