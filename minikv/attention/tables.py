"""Block tables as one array, which a loop can keep from step to step instead of building a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from minikv.block_table import BlockTable
from minikv.pool import BlockPool, ReadTable


class TableArray(NamedTuple):
    """The tables of a batch.

    Attributes:
        block_ids: int32 [batch, max_blocks]; row i lists the blocks of request i in logical order. What
            pads a row is never read, as long as the request's length does not reach it.
        offsets: int [batch]; slots of each first block that lie before position 0.
    """

    block_ids: np.ndarray | Tensor
    offsets: np.ndarray | Tensor | Sequence[int]


class _Row:
    """One row of a TableArray, read as a block table."""

    def __init__(self, block_ids: np.ndarray, offset: int, block_size: int) -> None:
        self.block_ids, self.offset, self.block_size = block_ids, offset, block_size

    def slots(self, start: int, stop: int) -> np.ndarray:
        capacity = len(self.block_ids) * self.block_size - self.offset
        if not 0 <= start <= stop <= max(0, capacity):
            raise IndexError(
                f"positions [{start}, {stop}) reach outside [0, {capacity}), this row's capacity"
            )
        places = np.arange(self.offset + start, self.offset + stop)
        blocks = self.block_ids[places // self.block_size].astype(np.int64)  # a slot may exceed 32 bits
        return blocks * self.block_size + places % self.block_size


def num_tables(tables: Sequence[ReadTable] | TableArray, pool: BlockPool) -> int:
    """Requests in the batch. ValueError for an array of the wrong shape or an offset outside a block."""
    return len(_checked(tables, pool)[0]) if isinstance(tables, TableArray) else len(tables)


def as_arrays(
    tables: Sequence[ReadTable] | TableArray, lengths: Sequence[int], pool: BlockPool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """block_ids int32 [batch, max_blocks], offsets and lengths int64 [batch], for a kernel to walk.

    Raises:
        TypeError: a table without block_ids and offset. ValueError, IndexError: as `read_layer`.
    """
    if isinstance(tables, TableArray):
        block_ids, offsets = _checked(tables, pool)
        capacities = np.maximum(block_ids.shape[1] * pool.block_size - offsets, 0)
    else:
        block_ids, offsets, capacities = _stacked(tables, pool.block_size)
        _checked(TableArray(block_ids, offsets), pool)
    ends = np.asarray(lengths, dtype=np.int64).reshape(-1)
    if len(ends) != len(block_ids) or (ends < 0).any() or (ends > capacities).any():
        pool.row_slots(as_tables(tables, pool), lengths)  # says what is wrong, and raises
        raise IndexError(f"lengths {ends.tolist()} do not fit tables that hold {capacities.tolist()} tokens")
    return _narrow(block_ids), offsets.astype(np.int64, copy=False), ends


def _narrow(block_ids: np.ndarray) -> np.ndarray:
    """The same as int32; an id that has no room there, which no pool has, as -1."""
    if block_ids.dtype == np.int32:
        return block_ids
    fits = (block_ids >= 0) & (block_ids <= np.iinfo(np.int32).max)
    return np.where(fits, block_ids, -1).astype(np.int32)


def _stacked(tables: Sequence[Any], block_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """block_ids, padded with 0, offsets, and the tokens that each table can hold."""
    for table in tables:
        if not (hasattr(table, "block_ids") and hasattr(table, "offset")):
            raise TypeError(
                f"{type(table).__name__} has no block_ids and offset, which a kernel walks; "
                'give it these, or read with backend="gather", which asks for slots'
            )
    rows = [table.block_ids for table in tables]
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    block_ids = np.zeros((len(rows), counts.max(initial=0)), dtype=np.int32)
    for row, ids in zip(block_ids, rows, strict=True):
        row[: len(ids)] = ids
    offsets = np.array([table.offset for table in tables], dtype=np.int64)
    capacities = np.maximum(counts * block_size - offsets, 0)
    for i, table in enumerate(tables):
        if isinstance(table, BlockTable):  # which may end before its last block does, as a run does
            capacities[i] = min(capacities[i], max(table.capacity, 0))
    return block_ids, offsets, capacities


def _checked(tables: TableArray, pool: BlockPool) -> tuple[np.ndarray, np.ndarray]:
    """block_ids and offsets as arrays. ValueError for a wrong shape, or an offset outside a block."""
    block_ids, offsets = (np.asarray(x.cpu() if isinstance(x, Tensor) else x) for x in tables)
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
    return block_ids, offsets


def as_tables(tables: Sequence[ReadTable] | TableArray, pool: BlockPool) -> Sequence[ReadTable]:
    """The tables one by one. ValueError for an array of the wrong shape or an offset outside a block."""
    if not isinstance(tables, TableArray):
        return tables
    block_ids, offsets = _checked(tables, pool)
    return [_Row(row, int(offset), pool.block_size) for row, offset in zip(block_ids, offsets, strict=True)]
