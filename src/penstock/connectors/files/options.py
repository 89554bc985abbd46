"""Options of the formats, by the names that Spark's `DataFrameReader` has for them.

An option that Spark has and Penstock has not is refused with a sentence about it, and one that nobody has with the name
that comes nearest. Nothing is ignored in silence.
"""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv

from penstock.errors import PipelineError

UTF8 = "utf-8"


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """How the bytes of a file become records. The defaults are Penstock's: see docs/connectors/files.md."""

    sep: str = ","
    quote: str = '"'
    escape: str = '"'
    """Equal to `quote`: a quote within quotes is doubled."""
    header: bool = True
    encoding: str = UTF8
    null_value: str | None = None
    multi_line: bool = False
    infer_schema: bool = True
    """False: columns of a CSV file without a declared schema are strings."""
    timestamp_format: str | None = None
    """For strptime, or `pyarrow.csv.ISO8601`."""
    date_format: str | None = None

    @property
    def is_cut_by_bytes(self) -> bool:
        """Whether a line break is the byte 10, and that byte nothing else. Not so for UTF-16."""
        return self.encoding == UTF8 or "\n{}".encode(self.encoding) == b"\n{}"


_SPARK_COMMON = "pathGlobFilter recursiveFileLookup modifiedBefore modifiedAfter compression ignoreCorruptFiles"
_SPARK: dict[str, str] = {
    "csv": "comment charToEscapeQuoteEscaping ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace nanValue positiveInf "
    "negativeInf enableDateTimeParsingFallback maxColumns maxCharsPerColumn mode lineSep "
    "columnNameOfCorruptRecord samplingRatio enforceSchema emptyValue locale unescapedQuoteHandling preferDate",
    "jsonl": "primitivesAsString prefersDecimal allowComments allowUnquotedFieldNames allowSingleQuotes lineSep mode "
    "allowNumericLeadingZero allowBackslashEscapingAnyCharacter columnNameOfCorruptRecord dateFormat timestampFormat "
    "timestampNTZFormat allowUnquotedControlChars samplingRatio dropFieldIfAllNull locale allowNonNumericNumbers "
    "enableDateTimeParsingFallback",
    "text": "wholetext lineSep",
    "parquet": "mergeSchema datetimeRebaseMode int96RebaseMode",
}
"""Options that Spark has, by format, and Penstock has not."""
_INSTEAD = {
    "mode": 'set on_error="fail", "skip" or "dead_letter"',
    "columnnameofcorruptrecord": 'set on_error="dead_letter" and read dead_letters()',
    "ignorecorruptfiles": 'set on_error="skip"',
    "pathglobfilter": "write a pattern such as '*.csv' as the path",
    "recursivefilelookup": "write a pattern with '**' as the path",
    "compression": "the end of a file's name says it: .gz, .bz2, .zst, .lz4 or .xz",
    "linesep": "lines end with \\n or \\r\\n",
    "enforceschema": "columns are found by their names in the header, without a header by their places",
    "timestampformat": "timestamps in JSON are those of ISO 8601; declare a string column, and convert it in a map",
    "dateformat": "dates in JSON are strings; declare a string column, and convert it in a map",
    "samplingratio": "a schema is taken from the first megabyte; declare one",
    "mergeschema": "declare a schema",
}


def format_options(format: str, given: Mapping[str, Any], *, has_schema: bool) -> FormatOptions:
    """The options of a format. Raises `PipelineError` for one that is unknown, or has a value that cannot work."""
    known = {name.lower(): (name, field, convert) for name, field, convert in _OPTIONS[format]}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name.lower() not in known:
            raise PipelineError(_unknown(format, name))
        spelled, field, convert = known[name.lower()]
        try:
            values[field] = convert(value)
        except ValueError as error:
            raise PipelineError(f"FileSource: {spelled} is {value!r}: {error}") from error
    options = FormatOptions(**values)
    _check(options, has_schema)
    return options


def _check(options: FormatOptions, has_schema: bool) -> None:
    if options.multi_line and options.escape != options.quote:
        raise PipelineError(
            "FileSource: multiLine=True needs escape to be the quote, because quotes decide where a record ends"
        )
    if options.date_format is not None and not has_schema:
        raise PipelineError("FileSource: dateFormat needs a declared schema: it says which columns are dates")


def _unknown(format: str, name: str) -> str:
    spark = [*_SPARK[format].split(), *_SPARK_COMMON.split()]
    ours = [spelled for spelled, _, _ in _OPTIONS[format]]
    if name.lower() in {each.lower() for each in spark}:
        instead = _INSTEAD.get(name.lower())
        cure = f": {instead}" if instead else f". Options of the format {format} are: {', '.join(ours) or 'none'}"
        return f"FileSource: Spark has the option {name}, and Penstock has not{cure}"
    arguments = ["schema", "watch", "stable_for", "on_change", "on_error", "on_missing", "moved_from"]
    near = difflib.get_close_matches(name.lower(), [each.lower() for each in (*ours, *arguments)], 1, 0.5)
    meant = next((each for each in (*ours, *arguments) if near and each.lower() == near[0]), None)
    elsewhere = [other for other in _OPTIONS if any(name.lower() == each.lower() for each, _, _ in _OPTIONS[other])]
    if elsewhere:
        return f"FileSource: {name} is an option of the format {' and '.join(elsewhere)}, not of {format}"
    hint = f"did you mean {meant}?" if meant else f"options of the format {format} are: {', '.join(ours) or 'none'}"
    return f"FileSource: there is no option {name}: {hint}"


# --- values ---


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("it must be True or False")


def _character(value: object) -> str:
    if isinstance(value, str) and len(value) == 1 and value.isascii() and value not in "\r\n":
        return value
    raise ValueError("it must be one ASCII character")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("it must be a string")


def _encoding(value: object) -> str:
    try:
        name = codecs.lookup(_text(value)).name
    except LookupError:
        raise ValueError("unknown encoding; examples are utf-8, latin1, cp1252 and utf-16") from None
    return UTF8 if name == "utf-8-sig" else name


def _only(wanted: bool, why: str) -> Callable[[object], bool]:
    def convert(value: object) -> bool:
        if _boolean(value) is not wanted:
            raise ValueError(why)
        return wanted

    return convert


_ISO = "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]"
_TOKENS = {"yyyy": "%Y", "yy": "%y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_TOKEN = re.compile(r"'(?P<quoted>[^']*)'|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z'])")


def _pattern(value: object) -> str:
    """A pattern of Java's, as Spark takes it, for strptime."""
    text = _text(value)
    if text == _ISO:
        return str(pa.csv.ISO8601)
    made = ""
    place = 0
    while place < len(text):
        token = _TOKEN.match(text, place)
        letters = token["letters"] if token is not None else None
        if token is None or (letters is not None and letters not in _TOKENS) or token["other"] in ("[", "]"):
            bad = letters or text[place:]
            raise ValueError(f"{bad!r} is not supported; {', '.join(_TOKENS)} and quoted text are")
        literal = token["quoted"] if token["quoted"] is not None else token["other"]
        made += _TOKENS[letters] if letters is not None else (literal or "'").replace("%", "%%")
        place = token.end()
    return made


_ENCODING = (("encoding", "encoding", _encoding), ("charset", "encoding", _encoding))
_NO_MULTI_LINE = _only(False, "JSON must have one object per line")
_OPTIONS: dict[str, tuple[tuple[str, str, Callable[[object], Any]], ...]] = {
    "parquet": (),
    "jsonl": (*_ENCODING, ("multiLine", "multi_line", _NO_MULTI_LINE)),
    "text": _ENCODING,
    "csv": (
        *_ENCODING,
        ("sep", "sep", _character),
        ("delimiter", "sep", _character),
        ("quote", "quote", _character),
        ("escape", "escape", _character),
        ("header", "header", _boolean),
        ("inferSchema", "infer_schema", _boolean),
        ("nullValue", "null_value", _text),
        ("multiLine", "multi_line", _boolean),
        ("timestampFormat", "timestamp_format", _pattern),
        ("timestampNTZFormat", "timestamp_format", _pattern),
        ("dateFormat", "date_format", _pattern),
    ),
}
"""Options by format: Spark's name, the field, and the conversion, which raises `ValueError`."""
