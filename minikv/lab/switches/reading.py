"""Readers that look in the wrong place: the tables or what is read through them are wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from minikv.attention import gather
from minikv.lab.switches.switch import Switch, Undo
from minikv.lab.workbench import Workbench
from minikv.pool import BlockPool


class _WithoutOffset:
    """A table read as if its first token lay at the start of the first block."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def slots(self, start: int, stop: int) -> np.ndarray:
        block_size, places = self._table.block_size, np.arange(start, stop)
        return np.array(self._table.block_ids)[places // block_size] * block_size + places % block_size


class _Unguarded(BlockPool):
    """The same pool, but it lets slots be read that were never written (I6 is off)."""

    def __init__(self, pool: BlockPool) -> None:
        self.__dict__ = pool.__dict__

    def require_written(self, layer: int, slots: Tensor) -> None:
        """Look away."""


def _read_through(bench: Workbench, view: Callable[[Any], Any] = lambda table: table) -> Undo:
    """Let every read go through `view(table)`, and tell the log which slots were really read."""
    honest, told = bench.loop.backend, bench.loop.observer

    def read(
        q: Tensor, pool: BlockPool, layer: int, tables: Sequence[Any], lengths: Sequence[int], scale: float
    ) -> Tensor:
        viewed = [view(table) for table in tables]
        if layer == 0:
            for table, seen, length in zip(tables, viewed, lengths, strict=True):
                slots = [int(slot) for slot in seen.slots(0, length)]
                bench.log({"op": "read", "request": table.name, "length": length, "slots": slots})
        return gather.attend(q, _Unguarded(pool), layer, viewed, lengths, scale)

    def tell(event: dict[str, Any]) -> None:
        if event["op"] != "read":  # the loop tells of the read it asked for, not of the one that was done
            bench.log(event)

    bench.loop.backend, bench.loop.observer = read, tell

    def undo() -> None:
        bench.loop.backend, bench.loop.observer = honest, told

    return undo


def _ignore_offset(bench: Workbench) -> Undo:
    return _read_through(bench, _WithoutOffset)


def _swap_entries(bench: Workbench, table: Any, first: int, second: int) -> Undo:
    def swap() -> None:
        a, b = table.block_ids[first], table.block_ids[second]
        table.replace_block(first, b)
        table.replace_block(second, a)

    swap()
    honest_read = _read_through(bench)

    def undo() -> None:
        swap()
        honest_read()

    return undo


def _foreign_block(bench: Workbench, table: Any, index: int, block_id: int) -> Undo:
    own = table.block_ids[index]
    table.replace_block(index, block_id)
    honest_read = _read_through(bench)

    def undo() -> None:
        table.replace_block(index, own)
        honest_read()

    return undo


SWITCHES: dict[str, Switch] = {
    "ignored-offset": Switch(
        "I6 written-first",
        "the reader ignores the offset and begins at the block's first slot",
        _ignore_offset,
    ),
    "swapped-entries": Switch(
        "I5 capacity", "two entries of a block table change places behind the manager's back", _swap_entries
    ),
    "foreign-block": Switch(
        "I2 ref-count", "a table lists another request's block, and no count knows of it", _foreign_block
    ),
}
