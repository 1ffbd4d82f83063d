"""Block tables as one array, which a loop can keep from step to step instead of building a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

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


def as_tables(tables: Sequence[ReadTable] | TableArray, pool: BlockPool) -> Sequence[ReadTable]:
    """The tables one by one. ValueError for an array of the wrong shape or an offset outside a block."""
    if not isinstance(tables, TableArray):
        return tables
    block_ids, offsets = (np.asarray(x.cpu() if isinstance(x, Tensor) else x) for x in tables)
    if block_ids.ndim != 2 or offsets.shape != block_ids.shape[:1]:
        raise ValueError(
            f"block_ids has shape {list(block_ids.shape)} and offsets {list(offsets.shape)}; "
            "they must be [batch, max_blocks] and [batch]"
        )
    for offset in offsets:
        if not 0 <= offset < pool.block_size:
            raise ValueError(
                f"offset is {offset}; it must be in [0, {pool.block_size}), inside the first block"
            )
    return [_Row(row, int(offset), pool.block_size) for row, offset in zip(block_ids, offsets, strict=True)]
