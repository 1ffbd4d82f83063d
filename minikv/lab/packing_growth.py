"""What one more token costs when memory is full: a longer contiguous run, against one more block, timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from minikv.block_table import BlockTable
from minikv.manager import KVCacheManager

Grow = Callable[[Tensor, int], Tensor]  # (kv [tokens, floats], slots more) -> a longer run, the same in front
_BLOCK = 16


class Growth(NamedTuple):
    """One length."""

    tokens: int  # stored when memory is full
    mebibytes: float  # of K and V, which a contiguous run has to copy
    copied: int  # tokens that lie elsewhere in the longer run
    moved: int  # tokens that lie elsewhere after one more block
    grow: float  # seconds to make the run longer, the best of some
    append: float  # seconds for one more block, the best of some


class GrowthTimes:
    """Some lengths, in rising order. It prints itself as a table; only ratios are worth believing."""

    def __init__(self, rows: Sequence[Growth]) -> None:
        self.rows = list(rows)

    @property
    def grow_ratio(self) -> float:
        """How many times as long growing takes at the last length as at the first."""
        return self.rows[-1].grow / self.rows[0].grow

    @property
    def append_ratio(self) -> float:
        """The same for one more block."""
        return self.rows[-1].append / self.rows[0].append

    def __repr__(self) -> str:
        lines = [
            "        a longer run             one more block",
            "tokens  copied   MiB        ms  copied        ms",
        ]
        for row in self.rows:
            longer = f"{row.copied:6}  {row.mebibytes:4.0f}  {1000 * row.grow:8.3f}"
            lines.append(f"{row.tokens:6}  {longer}  {row.moved:6}  {1000 * row.append:8.4f}")
        return "\n".join(lines)


def growth_times(
    grow: Grow, lengths: Sequence[int], floats_per_token: int = 1024, repeats: int = 10
) -> GrowthTimes:
    """Time `grow` by one block's worth of slots, and one more block for a table that is full.

    Args:
        grow: makes a run longer.
        lengths: tokens stored, multiples of 16.
        floats_per_token: K and V of all layers; the tiny GPT-2 has 4 · 2 · 128.
        repeats: of which the fastest counts; the machine has other things to do, too.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads wait for each other on a busy machine
    try:
        return GrowthTimes([_measure(grow, tokens, floats_per_token, repeats) for tokens in lengths])
    finally:
        torch.set_num_threads(threads)


def _measure(grow: Grow, tokens: int, floats: int, repeats: int) -> Growth:
    kv = torch.ones(tokens, floats)
    longer = grow(kv, _BLOCK)
    copied = 0 if longer.data_ptr() == kv.data_ptr() else tokens
    manager = KVCacheManager(tokens // _BLOCK + 1, _BLOCK)
    table = BlockTable(_BLOCK)

    def append() -> float:
        manager.free(table)
        manager.allocate(table, tokens)
        return _seconds(lambda: manager.allocate(table, tokens + 1))

    manager.allocate(table, tokens)
    before = table.slots(0, tokens)
    manager.allocate(table, tokens + 1)
    moved = int((before != table.slots(0, tokens)).sum())
    return Growth(
        tokens,
        kv.nbytes / 2**20,
        copied,
        moved,
        min(_seconds(lambda: grow(kv, _BLOCK)) for _ in range(repeats)),
        min(append() for _ in range(5 * repeats)),
    )


def _seconds(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start
