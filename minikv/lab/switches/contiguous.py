"""A contiguous reservation whose end nobody looks at: what outgrows it is written into its neighbour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from minikv.attention import gather
from minikv.decode import Manager, Request
from minikv.lab.switches.switch import Switch, Undo
from minikv.lab.workbench import Workbench
from minikv.pool import BlockPool


class _StraightOn:
    """A table read as one run of slots that begins with its first block and has no end."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def slots(self, start: int, stop: int) -> np.ndarray:
        return self._table.block_ids[0] * self._table.block_size + np.arange(start, stop)


class _Trusting:
    """The manager, but it believes that such a run always has room; the log hears what is written."""

    def __init__(self, manager: Manager, bench: Workbench) -> None:
        self.block_size, self.free = manager.block_size, manager.free
        self._manager, self._bench = manager, bench

    def allocate(self, table: Any, num_tokens: int) -> bool:
        return isinstance(table, _StraightOn) or self._manager.allocate(table, num_tokens)

    def copy_on_write(self, table: Any, position: int) -> tuple[int, int] | None:
        return None if isinstance(table, _StraightOn) else self._manager.copy_on_write(table, position)

    def note_write(self, table: Any, start: int, stop: int, words: Sequence[str] = ()) -> None:
        if not isinstance(table, _StraightOn):
            self._manager.note_write(table, start, stop, words)
            return
        slots = table.slots(start, stop).tolist()
        self._bench.log(
            {"op": "write", "request": table.name, "start": start, "slots": slots, "words": list(words)}
        )


def _outgrow(bench: Workbench, request: Request) -> Undo:
    """Let `request`, which holds its blocks, write on beyond them."""
    honest = (bench.loop.manager, bench.loop.backend, bench.loop.observer, request.table)
    if not request.table.num_blocks:
        raise ValueError(f"request {request.name} holds no block yet; prefill it first")

    def read(
        q: Tensor, pool: BlockPool, layer: int, tables: Sequence[Any], lengths: Sequence[int], scale: float
    ) -> Tensor:
        if layer == 0:
            for table, length in zip(tables, lengths, strict=True):
                slots = [int(slot) for slot in table.slots(0, length)]
                bench.log({"op": "read", "request": table.name, "length": length, "slots": slots})
        return gather.attend(q, pool, layer, tables, lengths, scale)

    def tell(event: dict[str, Any]) -> None:
        if event["op"] != "read":  # the loop tells of the read it asked for, not of the one that was done
            bench.log(event)

    bench.loop.manager, bench.loop.backend, bench.loop.observer = _Trusting(bench.manager, bench), read, tell
    request.table = _StraightOn(request.table)

    def undo() -> None:
        bench.loop.manager, bench.loop.backend, bench.loop.observer, request.table = honest

    return undo


SWITCHES: dict[str, Switch] = {
    "outgrown": Switch(
        "I5 capacity", "a request that has filled its reservation writes straight on", _outgrow
    ),
}
