"""What a process really takes of the machine's memory when a pool is reserved, and when it is written.

found = reserve_and_write(num_blocks=16_384, blocks_written=200)
print(found)
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch

from minikv.lab.read_costs import one_thread
from minikv.pool import BlockPool

NUM_LAYERS, NUM_HEADS, HEAD_DIM = 12, 12, 64  # GPT-2 small, 124 M parameters
BLOCK_SIZE = 16
_STATM = Path("/proc/self/statm")


class Reserved(NamedTuple):
    """What came of it, in bytes and seconds. What the process grew by is None where it cannot be measured."""

    asked_for: int  # blocks
    num_blocks: int  # of the pool; fewer than asked for if the machine refused so many
    reserved: int
    grown_by_reserving: int | None
    written: int  # as the pool counts it: bytes_committed
    grown_by_writing: int | None
    seconds_to_reserve: float
    seconds_to_write: float

    @property
    def measured(self) -> bool:
        """Whether this system tells how much memory a process has."""
        return self.grown_by_reserving is not None and self.grown_by_writing is not None

    def __repr__(self) -> str:
        rows = (
            ("reserved", self.reserved, self.seconds_to_reserve, self.grown_by_reserving),
            ("written", self.written, self.seconds_to_write, self.grown_by_writing),
        )
        lines = [
            f"{name:8} {_mb(size)} in {1000 * seconds:6.1f} ms; the process grew by {_mb(grown)}"
            for name, size, seconds, grown in rows
        ]
        blocks = f"{self.num_blocks:,} blocks"
        if self.num_blocks < self.asked_for:
            blocks += f": the machine refused {self.asked_for:,}, so the pool was halved until it did not"
        source = (
            f"measured with {_STATM.as_posix()}"
            if self.measured
            else f"this system has no {_STATM.as_posix()} to measure it with"
        )
        return "\n".join([blocks, *lines, f"({source})"])


def resident_bytes() -> int | None:
    """Memory that this process really has; None where the system does not tell in /proc."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") or None


def reserve(num_blocks: int) -> BlockPool:
    """A pool in GPT-2 small's shape, in float32; half the blocks, as often as the machine refuses so many.

    Raises:
        RuntimeError: not even one block.
    """
    try:
        return BlockPool(num_blocks, BLOCK_SIZE, NUM_LAYERS, NUM_HEADS, HEAD_DIM)
    except (RuntimeError, MemoryError):  # torch raises the first of them for want of memory
        if num_blocks < 2:
            raise
    return reserve(num_blocks // 2)


def reserve_and_write(num_blocks: int, blocks_written: int) -> Reserved:
    """Reserve a pool, write its first blocks in all layers, and look at the process's memory each time.

    Raises:
        ValueError: no block to be written, or more than there are.
    """
    if not 1 <= blocks_written <= num_blocks:
        raise ValueError(f"blocks_written is {blocks_written}; it must be in [1, {num_blocks}]")
    start, before = perf_counter(), resident_bytes()
    pool = reserve(num_blocks)
    reserving, between = perf_counter() - start, resident_bytes()
    blocks = range(min(blocks_written, pool.num_blocks))
    start = perf_counter()
    kv = torch.ones(BLOCK_SIZE, NUM_HEADS, HEAD_DIM)
    with one_thread():
        for layer in range(pool.num_layers):
            for block_id in blocks:
                pool.write(layer, range(block_id * BLOCK_SIZE, (block_id + 1) * BLOCK_SIZE), kv, kv)
    writing, after = perf_counter() - start, resident_bytes()
    return Reserved(
        num_blocks,
        pool.num_blocks,
        pool.nbytes,
        _growth(before, between),
        pool.bytes_committed,
        _growth(between, after),
        reserving,
        writing,
    )


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _mb(size: int | None) -> str:
    return "(not measured)" if size is None else f"{size / 1e6:8,.1f} MB"
