"""Keys of two streams: which types can be equal, which rows have no key, and whether two keys are the same.

Both sides are exchanged by the hash of their key, which does not depend on the width of a number nor on an encoding
(`columnar/hashing.py`). Types whose equal values have other hashes cannot be joined: they would never meet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.fixed_width import null_mask
from penstock.columnar.hashing import word_values
from penstock.columnar.plain import plain, plain_type
from penstock.state.columns import fits_word

Mask = npt.NDArray[np.bool_]


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type that holds the keys of both sides; None if keys of these types are never equal."""
    left, right = plain_type(left), plain_type(right)
    if left == right:
        return left
    for is_kind, choose in (
        (pa.types.is_integer, _common_integer),
        (pa.types.is_floating, _wider),
        (_is_text, lambda *kinds: pa.large_string()),
        (_is_binary, lambda *kinds: pa.large_binary()),
        (pa.types.is_decimal, _common_decimal),
        (pa.types.is_struct, _common_struct),
    ):
        if is_kind(left) and is_kind(right):
            found: pa.DataType | None = choose(left, right)
            return found
    return None


def _common_integer(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if pa.types.is_signed_integer(left) == pa.types.is_signed_integer(right):
        return _wider(left, right)
    unsigned = right if pa.types.is_signed_integer(left) else left
    # Half of the numbers of 64 bits without a sign have no equal among those with one, but a hash.
    return None if unsigned.bit_width == 64 else pa.int64()


def _wider(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    return left if left.bit_width >= right.bit_width else right


def _common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if left.scale != right.scale:
        return None
    return left if left.precision >= right.precision else right


def _common_struct(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if [field.name for field in left] != [field.name for field in right]:
        return None
    kinds = [common_type(ours.type, theirs.type) for ours, theirs in zip(left, right, strict=True)]
    if any(kind is None for kind in kinds):
        return None
    return pa.struct([field.with_type(kind) for field, kind in zip(left, kinds, strict=True)])


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def without_key(columns: Sequence[pa.Array]) -> Mask | None:
    """The rows with a null anywhere in their key, which equals nothing; None if there are none."""
    missing: Mask | None = None
    for column in columns:
        values = plain(column)
        if values.null_count:
            missing = either(missing, null_mask(values))
        if pa.types.is_struct(values.type):
            inner = without_key(values.flatten())
            missing = either(missing, inner)
    return missing


def either(first: Mask | None, second: Mask | None) -> Mask | None:
    """The rows of either mask; None is one without any."""
    if first is None or second is None:
        return second if first is None else first
    return first | second


def hash_is_key(kinds: Sequence[pa.DataType]) -> bool:
    """Whether equal hashes mean equal keys: the hash of a single word can be undone."""
    return len(kinds) == 1 and fits_word(kinds[0])


def equal_keys(left: Sequence[pa.Array], right: Sequence[pa.Array], kinds: Sequence[pa.DataType]) -> Mask:
    """Whether the keys of each pair are the same. There are no nulls."""
    same: Mask | None = None
    for ours, theirs, kind in zip(left, right, kinds, strict=True):
        column = _equal(plain(ours), plain(theirs), kind)
        same = column if same is None else same & column
    assert same is not None
    return same


def _equal(left: pa.Array, right: pa.Array, kind: pa.DataType) -> Mask:
    if pa.types.is_struct(kind):
        return equal_keys(left.flatten(), right.flatten(), [field.type for field in kind])
    ours, theirs = word_values(left), word_values(right)
    if ours is not None and theirs is not None:
        # With one zero and one NaN, as the hash has them.
        same: Mask = ours == theirs
        return same
    equal: Mask = pc.equal(left.cast(kind), right.cast(kind)).to_numpy(zero_copy_only=False)
    return equal
