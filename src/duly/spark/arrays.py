"""
Small steps with Arrow columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duly.codec import MAX_DEPTH, check_json
from duly.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_raws = msgspec.json.Decoder(list[msgspec.Raw])
_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def json_flags(texts: pa.BinaryArray) -> NDArray[np.bool_]:
    """
    Which of the texts are JSON that workers can read.

    All are read as one array: where each item is as long as its text, each text is one item.
    """
    brackets = pc.add(pc.count_substring(texts, "["), pc.count_substring(texts, "{"))
    may_be_deep = len(texts) and pc.max(brackets).as_py() > MAX_DEPTH
    try:
        whole = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), b",")[0].as_buffer()
        text = b"[%b]" % whole.to_pybytes()
        _anything.decode(text)
        items = _raws.decode(text)
        lengths = np.fromiter(map(_length, items), np.int64, len(items))
        if not may_be_deep and np.array_equal(lengths, pc.binary_length(texts).to_numpy()):
            return np.ones(len(texts), bool)
    except (ValueError, RecursionError):
        pass
    return np.fromiter((_is_json(text) for text in texts.to_pylist()), bool, len(texts))


def _length(item: msgspec.Raw) -> int:
    return memoryview(item).nbytes


def _is_json(text: bytes) -> bool:
    try:
        read_json(text)
    except UsageError:
        return False
    return True


def read_json(text: str | bytes) -> bytes:
    """
    Read JSON text only to see that workers can.

    Raises:
        UsageError: They cannot.
    """
    try:
        data = text.encode() if isinstance(text, str) else text
    except ValueError as error:
        raise UsageError(f"payload is no JSON: {error}") from error
    check_json(data)
    return data


def dicts(batch: pa.RecordBatch) -> list[Any]:
    """
    Rows as dicts; in the place of one that cannot be read, why.
    """
    try:
        rows: list[Any] = batch.to_pylist(maps_as_pydicts="strict")
    except UnicodeDecodeError:
        rows = [_dict(batch.slice(at, 1)) for at in range(batch.num_rows)]
    return rows


def _dict(row: pa.RecordBatch) -> Any:
    try:
        return row.to_pylist(maps_as_pydicts="strict")[0]
    except UnicodeDecodeError as error:
        return error


def texts(column: pa.Array) -> pa.StringArray:
    """
    A column as text; nulls where it is of a type that has no plain one.
    """
    if pa.types.is_string(column.type):
        return column
    if pa.types.is_integer(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    # Of another type: null, so that each row is looked at by itself and told what is wrong.
    return pa.nulls(len(column), pa.string())


def binary(texts: pa.Array) -> pa.BinaryArray:
    """
    The bytes of texts, none for null.
    """
    return texts.cast(pa.binary()).fill_null(b"")


def digits(numbers: pa.Array) -> pa.BinaryArray:
    """
    Numbers as they are written.
    """
    return numbers.cast(pa.string()).cast(pa.binary())


def fixed(table: NDArray[np.uint8]) -> pa.BinaryArray:
    """
    Each line of a table as bytes.
    """
    size, width = table.shape
    kind = pa.binary(width)
    return pa.Array.from_buffers(kind, size, [None, pa.py_buffer(np.ascontiguousarray(table))]).cast(
        pa.binary()
    )


def join(*parts: Any) -> pa.BinaryArray:
    """
    Put arrays and constants side by side.
    """
    return pc.binary_join_element_wise(
        *(pa.scalar(part) if isinstance(part, bytes) else part for part in parts), b""
    )


def flags(mask: pa.BooleanArray) -> NDArray[np.bool_]:
    """
    A mask for numpy; null is False.
    """
    found: NDArray[np.bool_] = mask.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003  # Arrow's
    return found
