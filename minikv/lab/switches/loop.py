"""A decode loop that is careless about its batch: it keeps the list of tables when a request has left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from minikv.attention import gather
from minikv.block_table import BlockTable
from minikv.lab.switches.reading import _Unguarded
from minikv.lab.switches.switch import Switch, Undo
from minikv.lab.workbench import Workbench
from minikv.pool import BlockPool


class _Rows:
    """The block tables of a batch, row by row, copied when it is full and not when somebody leaves it."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench
        self._rows: list[BlockTable] = []

    def __call__(
        self,
        q: Tensor,
        pool: BlockPool,
        layer: int,
        tables: Sequence[Any],
        lengths: Sequence[int],
        scale: float,
    ) -> Tensor:
        """The gather, through the rows as they were noted."""
        if layer == 0:
            if len(tables) >= len(self._rows):
                self._rows = [_copied(table) for table in tables]
            for table, row, length in zip(tables, self._rows, lengths, strict=False):
                slots = [int(slot) for slot in row.slots(0, length)]
                self._bench.log({"op": "read", "request": table.name, "length": length, "slots": slots})
        return gather.attend(q, _Unguarded(pool), layer, self._rows[: len(tables)], lengths, scale)


def _copied(table: Any) -> BlockTable:
    copy = BlockTable(table.block_size, table.offset)
    for block_id in table.block_ids:
        copy.append_block(block_id)
    return copy


def _keep_rows(bench: Workbench) -> Undo:
    honest, told = bench.loop.backend, bench.loop.observer

    def tell(event: dict[str, Any]) -> None:
        if event["op"] != "read":  # the loop tells of the read it asked for, not of the one that was done
            bench.log(event)

    bench.loop.backend, bench.loop.observer = _Rows(bench), tell

    def undo() -> None:
        bench.loop.backend, bench.loop.observer = honest, told

    return undo


SWITCHES: dict[str, Switch] = {
    "stale-rows": Switch(
        "I6 written-first",
        "when a request leaves the batch, the rows of block tables stay as they were",
        _keep_rows,
    ),
}
