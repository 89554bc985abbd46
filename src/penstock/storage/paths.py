"""The only builder of paths in a checkpoint directory, and the only reader of them.

    owner.json                                        who drives this directory
    history.json                                      what its driver has to say at its end, for those who look
    logs/<start of the driver>-<number>.json          its last warnings and errors, and those of its workers
    ui.token                                          for orders through the page; in local directories alone
    control/<order>.request.json                      what is asked of that driver
    control/<order>.answer.json                       what it has answered
    checkpoints/<id>/reserved.json                    the block of ids that begins with it was given out (I5)
    checkpoints/<id>/manifest.json                    its outcome: the manifest, or a tombstone (I3)
    checkpoints/<id>/committed.json                   its sinks were committed (I4)
    checkpoints/<id>/blobs/g<generation>-<chain>-<index>-<content>[-<part>]

An id is written with twenty digits, so that the order of names is the order of ids. A blob names its
generation: a worker of an older one can never write where a newer one does (I6). A savepoint is a store with
its own root and the same layout.

No name in a path begins with a dot: those names belong to the stores, which keep unfinished writes under them.
"""

from __future__ import annotations

import enum
import hashlib
import os
import random
import re
import secrets
import time
from dataclasses import dataclass

from penstock.errors import CorruptBlob, StorageError
from penstock.ids import CheckpointId, Generation, OperatorName, SubtaskId

OWNER = "owner.json"
"""The lease of the driver. Not part of any checkpoint."""

HISTORY = "history.json"
"""The last words of a driver, for those who look at its pipeline later. Not part of any checkpoint."""

LOGS = "logs/"
"""Prefix of the log of the drivers of this directory. Not part of any checkpoint."""

UI_TOKEN = "ui.token"
"""The token for orders through the page. Not part of any checkpoint."""

CHECKPOINTS = "checkpoints/"
"""Prefix of everything that belongs to a checkpoint."""

CONTROL = "control/"
"""Prefix of the orders to a running driver, and of its answers. Not part of any checkpoint."""

PATH_BYTES_MAX = 900
"""Object stores end at 1024 bytes, and the root of the store needs room too."""

NAME_BYTES_MAX = 255
"""What file systems allow between two slashes."""

_ID_DIGITS = 20
_SLUG_READABLE_MAX = 48
_PLAIN_NAME = re.compile(r"[a-z0-9_][a-z0-9_-]{0,63}")
_UNSAFE = re.compile(r"[^a-z0-9_]+")
# Python's \d also matches digits of other scripts, which int() would read happily: two names for one checkpoint.
_CHECKPOINT_PATH = re.compile(rf"checkpoints/([0-9]{{{_ID_DIGITS}}})/(.+)")
_BLOB_NAME = re.compile(
    r"blobs/g(0|[1-9][0-9]*)-([a-z0-9_-]+(?:\.[0-9a-f]{24})?)-(0|[1-9][0-9]*)-(state|channels)(?:-([1-9][0-9]*))?"
)
_CONTROL_PATH = re.compile(r"control/([0-9a-f]{32})\.(request|answer)\.json")
_TEMPORARY = re.compile(r"\.tmp-([0-9]{13,})-[0-9a-f]+")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
# Names must differ and need not be secret, so the system is asked for chance only once in each process.
_chance = random.Random()
os.register_at_fork(after_in_child=_chance.seed)


class PathKind(enum.Enum):
    """What a path holds."""

    OWNER = "owner"
    RESERVED = "reserved"
    MANIFEST = "manifest"
    COMMITTED = "committed"
    BLOB = "blob"
    CONTROL_REQUEST = "control request"
    CONTROL_ANSWER = "control answer"


class BlobContent(enum.Enum):
    """What a blob holds: state and in-flight data are read by different people at different times."""

    STATE = "state"
    CHANNELS = "channels"


@dataclass(frozen=True, slots=True)
class BlobName:
    """What the path of a blob says. The chain's own name cannot be had back from its slug."""

    checkpoint: CheckpointId
    generation: Generation
    slug: str
    index: int
    content: BlobContent
    part: int = 0


def checkpoint_prefix(checkpoint: CheckpointId) -> str:
    """Prefix of everything that belongs to `checkpoint`, and of nothing that belongs to another."""
    if not 1 <= checkpoint < 10**_ID_DIGITS:
        raise ValueError(f"{checkpoint} is not the id of a checkpoint: ids start at 1 and have at most 20 digits")
    return f"{CHECKPOINTS}{checkpoint:0{_ID_DIGITS}d}/"


def reserved(checkpoint: CheckpointId) -> str:
    """Created first: whoever creates it owns the block of ids that begins with this one."""
    return checkpoint_prefix(checkpoint) + "reserved.json"


def manifest(checkpoint: CheckpointId) -> str:
    """Created once and never replaced: the outcome, a manifest or a tombstone."""
    return checkpoint_prefix(checkpoint) + "manifest.json"


def committed(checkpoint: CheckpointId) -> str:
    """Created when every sink has committed what the manifest names."""
    return checkpoint_prefix(checkpoint) + "committed.json"


def blob_prefix(checkpoint: CheckpointId) -> str:
    """Prefix of the blobs of `checkpoint`, of every generation."""
    return checkpoint_prefix(checkpoint) + "blobs/"


def blob(
    checkpoint: CheckpointId, generation: Generation, subtask: SubtaskId, content: BlobContent, part: int = 0
) -> str:
    """Path of the `part`-th blob that a subtask writes for a checkpoint."""
    if generation < 0 or subtask.index < 0 or part < 0:
        raise ValueError(f"a blob has no negative numbers: generation {generation}, {subtask}, part {part}")
    suffix = f"-{part}" if part else ""
    return f"{blob_prefix(checkpoint)}g{generation}-{slug(subtask.chain)}-{subtask.index}-{content.value}{suffix}"


def control_id() -> str:
    """A fresh name for an order to a driver, and for its answer."""
    return secrets.token_hex(16)


def control_request(order: str) -> str:
    """Created by whoever gives the order, removed by the driver that takes it."""
    return _control_path(order, "request")


def control_answer(order: str) -> str:
    """Created by the driver, removed by whoever gave the order."""
    return _control_path(order, "answer")


def log(started_ms: int, number: int) -> str:
    """Path of a segment of the log of the driver that started then. The order of names is the order of time."""
    return f"{LOGS}{started_ms:014d}-{number:08d}.json"


def slug(name: OperatorName) -> str:
    """A name that every file system and bucket takes, different for different operators.

    Short names of plain lower-case characters stay as they are. All others keep what is readable of them and get
    a hash: "Map" and "map" must differ where the file system does not tell upper from lower case. Without a
    percent sign, because some stores decode it on the way.
    """
    if _PLAIN_NAME.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    readable = _UNSAFE.sub("_", name.lower())[:_SLUG_READABLE_MAX] or "_"
    return f"{readable}.{digest}"


def checkpoint_of(path: str) -> CheckpointId | None:
    """The checkpoint that `path` belongs to; None where it belongs to none."""
    match = _CHECKPOINT_PATH.fullmatch(path)
    if match is None or int(match[1]) == 0:
        return None
    return CheckpointId(int(match[1]))


def kind_of(path: str) -> PathKind | None:
    """What `path` holds; None for a file that Penstock did not put there."""
    if path == OWNER:
        return PathKind.OWNER
    if control := _CONTROL_PATH.fullmatch(path):
        return PathKind.CONTROL_REQUEST if control[2] == "request" else PathKind.CONTROL_ANSWER
    checkpoint = checkpoint_of(path)
    if checkpoint is None:
        return None
    match path.removeprefix(checkpoint_prefix(checkpoint)):
        case "reserved.json":
            return PathKind.RESERVED
        case "manifest.json":
            return PathKind.MANIFEST
        case "committed.json":
            return PathKind.COMMITTED
        case name:
            return PathKind.BLOB if _BLOB_NAME.fullmatch(name) else None


def control_of(path: str) -> str | None:
    """The order that `path` asks or answers; None where it is neither."""
    match = _CONTROL_PATH.fullmatch(path)
    return match[1] if match else None


def parse_blob(path: str) -> BlobName | None:
    """The parts of a blob's path; None if it is not one."""
    checkpoint = checkpoint_of(path)
    if checkpoint is None:
        return None
    match = _BLOB_NAME.fullmatch(path.removeprefix(checkpoint_prefix(checkpoint)))
    if match is None:
        return None
    generation, chain, index, content, part = match.groups()
    return BlobName(
        checkpoint, Generation(int(generation)), chain, int(index), BlobContent(content), int(part) if part else 0
    )


def require_valid(path: str) -> None:
    """Refuse a path that could lead out of the store or to an unfinished write.

    Paths also come out of manifests, and a manifest may be hostile: every store checks before it does anything.
    """
    reason = _invalid(path)
    if reason:
        raise StorageError(f"refused path {_shown(path)}: {reason}. Paths in a store are relative, like {OWNER!r}.")


def require_valid_prefix(prefix: str) -> None:
    """As `require_valid`, for a prefix: it may be empty, end with a slash, or end in the middle of a name."""
    whole = prefix.removesuffix("/")
    reason = _invalid(whole) if whole else ("it is absolute" if prefix else None)
    if reason:
        raise StorageError(f"refused prefix {_shown(prefix)}: {reason}.")


def is_valid(path: str) -> bool:
    """Whether a listing may show `path`."""
    return _invalid(path) is None


def require_range(path: str, offset: int, length: int | None) -> None:
    """Refuse a range that no file can have. To fsspec and Python a negative one would mean something."""
    if offset < 0 or (length is not None and length < 0):
        raise StorageError(f"refused to read {length} bytes at {offset} of {path!r}: a range cannot be negative")


def short_read(path: str, offset: int, length: int | None, size: int) -> CorruptBlob:
    """The error for a range that ends behind the end of the file."""
    wanted = "the rest" if length is None else f"{length} bytes"
    return CorruptBlob(f"{path!r} has only {size} bytes: cannot read {wanted} at {offset}. It was cut short.")


def temporary_name() -> str:
    """A fresh name for an unfinished write, with its time of birth: not every store knows how old a file is."""
    return f".tmp-{time.time_ns() // 1_000_000:013d}-{_chance.getrandbits(64):016x}"


def temporary_born_ms(name: str) -> int | None:
    """When a name was given out by `temporary_name`; None if it was not."""
    match = _TEMPORARY.fullmatch(name)
    return int(match[1]) if match else None


def _control_path(order: str, part: str) -> str:
    path = f"{CONTROL}{order}.{part}.json"
    if _CONTROL_PATH.fullmatch(path) is None:
        raise ValueError(f"{order!r} is not the id of an order: those have 32 hexadecimal digits")
    return path


def _invalid(path: str) -> str | None:
    if not path:
        return "it is empty"
    if path.startswith("/"):
        return "it is absolute"
    if _FORBIDDEN.search(path):
        return "it has a backslash or a control character"
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it is not Unicode text"
    if len(encoded) > PATH_BYTES_MAX:
        return f"it is longer than {PATH_BYTES_MAX} bytes"
    for name in encoded.split(b"/"):
        if not name:
            return "it has an empty name between slashes"
        if name.startswith(b"."):
            return "a name in it begins with a dot"
        if len(name) > NAME_BYTES_MAX:
            return f"a name in it is longer than {NAME_BYTES_MAX} bytes"
    return None


def _shown(path: str) -> str:
    return repr(path if len(path) <= 200 else path[:200] + "…")
