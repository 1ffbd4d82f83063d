"""Block tables as one array, which a loop can keep from step to step instead of building a list."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from minikv.block_table import BlockTable
from minikv.checks import whole_number
from minikv.pool import BlockPool, ReadTable

MOST = int(np.iinfo(np.int32).max)  # a kernel's block ids have 32 bits


class TableArray(NamedTuple):
    """The tables of a batch.

    Attributes:
        block_ids: integers [batch, max_blocks], best int32; row i lists the blocks of request i in logical
            order. What pads a row is never read, as long as the request's length does not reach it.
        offsets: integers [batch]; slots of each first block that lie before position 0.
    """

    block_ids: np.ndarray | Tensor
    offsets: np.ndarray | Tensor | Sequence[int]


class _Row:
    """One row of a TableArray, read as a block table."""

    def __init__(self, block_ids: np.ndarray, offset: int, pool: BlockPool) -> None:
        self.block_ids, self.offset = block_ids, offset
        self.block_size, self.num_blocks = pool.block_size, pool.num_blocks

    def slots(self, start: int, stop: int) -> np.ndarray:
        capacity = len(self.block_ids) * self.block_size - self.offset
        if not 0 <= start <= stop <= max(0, capacity):
            raise IndexError(
                f"positions [{start}, {stop}) reach outside [0, {capacity}), this row's capacity"
            )
        places = np.arange(self.offset + start, self.offset + stop)
        blocks = self.block_ids[places // self.block_size]
        outside = blocks[(blocks < 0) | (blocks >= self.num_blocks)]
        if len(outside):  # in 64 bits, a huge id times the block size could come out as a slot of the pool
            raise IndexError(f"block {outside[0]} is outside [0, {self.num_blocks})")
        blocks = blocks.astype(np.int64)  # a slot may exceed 32 bits
        return blocks * self.block_size + places % self.block_size


def whole_lengths(lengths: Sequence[int] | np.ndarray | Tensor) -> list[int]:
    """The lengths as plain ints. TypeError, which names the value, for what is no integer: 9.9, also True."""
    given = lengths.tolist() if isinstance(lengths, np.ndarray | Tensor) else lengths
    return [whole_number("length", length) for length in given]


def num_tables(tables: Sequence[ReadTable] | TableArray, pool: BlockPool) -> int:
    """Requests in the batch. Errors of a TableArray as `as_tables`."""
    return len(_checked(tables, pool)[0]) if isinstance(tables, TableArray) else len(tables)


def as_arrays(
    tables: Sequence[ReadTable] | TableArray, lengths: Sequence[int], pool: BlockPool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """block_ids int32 [batch, max_blocks], offsets and lengths int64 [batch], for a kernel to walk.

    Raises:
        TypeError: a table without block_ids and offset; an id, an offset or a length that is no integer.
        ValueError, IndexError: as `read_layer`.
    """
    if isinstance(tables, TableArray):
        block_ids, offsets = _checked(tables, pool)
        capacities = np.maximum(block_ids.shape[1] * pool.block_size - offsets, 0)
    else:
        block_ids, offsets, capacities = _stacked(tables, pool)
        _checked(TableArray(block_ids, offsets), pool)
    ends, most = whole_lengths(lengths), capacities.tolist()
    if len(ends) != len(most) or not all(0 <= end <= room for end, room in zip(ends, most, strict=True)):
        pool.row_slots(as_tables(tables, pool), ends)  # says what is wrong, and raises
        raise IndexError(f"lengths {ends} do not fit tables that hold {most} tokens")
    return (  # side by side and writable: for other arrays a kernel would be compiled anew
        np.require(_narrow(block_ids), np.int32, ["C", "W"]),
        np.require(offsets, np.int64, ["C", "W"]),
        np.array(ends, dtype=np.int64),
    )


def _narrow(block_ids: np.ndarray) -> np.ndarray:
    """The same as int32; an id that has no room there, which no pool has, as -1."""
    if block_ids.dtype == np.int32:
        return block_ids
    fits = (block_ids >= 0) & (block_ids <= MOST)
    return np.where(fits, block_ids, -1).astype(np.int32)


def _stacked(tables: Sequence[Any], pool: BlockPool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """block_ids, padded with 0, offsets, and the tokens that each table can hold."""
    for table in tables:
        if not (hasattr(table, "block_ids") and hasattr(table, "offset")):
            raise TypeError(
                f"{type(table).__name__} has no block_ids and offset, which a kernel walks; "
                'give it these, or read with backend="gather", which asks for slots'
            )
    rows = [_whole_ids(table, pool) for table in tables]
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    block_ids = np.zeros((len(rows), counts.max(initial=0)), dtype=np.int32)
    for row, ids in zip(block_ids, rows, strict=True):
        row[: len(ids)] = ids
    offsets = np.array([whole_number("offset", table.offset) for table in tables], dtype=np.int64)
    capacities = np.maximum(counts * pool.block_size - offsets, 0)
    for i, table in enumerate(tables):
        if isinstance(table, BlockTable):  # which may end before its last block does, as a run does
            capacities[i] = min(capacities[i], max(table.capacity, 0))
    return block_ids, offsets, capacities


def _whole_ids(table: Any, pool: BlockPool) -> array[int]:
    """The block ids of a table, as 32 bits each.

    Raises:
        TypeError: one is no integer. IndexError: one has no room in 32 bits, so that no pool has it.
    """
    try:
        return array("i", table.block_ids)  # at one go: a table may be long
    except (TypeError, OverflowError):
        ids = list(table.block_ids)
    whole = [whole_number("a block id", block_id) for block_id in ids]
    far = next(block_id for block_id in whole if not -MOST - 1 <= block_id <= MOST)
    raise IndexError(f"block {far} is outside [0, {pool.num_blocks})")


def _checked(tables: TableArray, pool: BlockPool) -> tuple[np.ndarray, np.ndarray]:
    """block_ids and offsets as arrays. Errors as `as_tables`."""
    block_ids, offsets = (np.asarray(x.cpu() if isinstance(x, Tensor) else x) for x in tables)
    for name, x in (("block_ids", block_ids), ("offsets", offsets)):
        if x.size and x.dtype.kind not in "iu":
            raise TypeError(f"{name} hold {x.flat[0]}, of type {x.dtype}; they must be of an integer type")
    if block_ids.ndim != 2 or offsets.shape != block_ids.shape[:1]:
        raise ValueError(
            f"block_ids has shape {list(block_ids.shape)} and offsets {list(offsets.shape)}; "
            "they must be [batch, max_blocks] and [batch]"
        )
    if (offsets < 0).any() or (offsets >= pool.block_size).any():
        outside = offsets[(offsets < 0) | (offsets >= pool.block_size)]
        raise ValueError(
            f"offset is {outside[0]}; it must be in [0, {pool.block_size}), inside the first block"
        )
    # Sums with narrow or unsigned offsets would wrap around.
    return block_ids, offsets.astype(np.int64, copy=False)


def as_tables(tables: Sequence[ReadTable] | TableArray, pool: BlockPool) -> Sequence[ReadTable]:
    """The tables one by one.

    Raises:
        ValueError: an array of the wrong shape, or an offset outside a block. TypeError: a block id or an
        offset that is no integer. IndexError: a block id far outside the pool.
    """
    if not isinstance(tables, TableArray):
        for table in tables:
            if isinstance(table, BlockTable):  # of other tables nothing is known but their slots
                _whole_ids(table, pool)
        return tables
    block_ids, offsets = _checked(tables, pool)
    return [_Row(row, int(offset), pool) for row, offset in zip(block_ids, offsets, strict=True)]
