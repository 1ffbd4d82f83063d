"""Engines that handle a time-out wrongly: the blocks come back never, or twice. Other ends are as ever."""

from __future__ import annotations

from functools import partial
from typing import Any

from minikv.engine.request import Request
from minikv.lab.switches.counts import _FreeingTwice, _Miscounting
from minikv.lab.switches.switch import Switch, Undo
from minikv.manager import KVCacheManager
from minikv.protocols import Table


class _NeverGivingBack(_Miscounting):
    """It empties the table, and forgets to take the references back."""

    def free(self, table: Table) -> None:
        entries = list(enumerate(table.block_ids))
        table.clear()
        for index, block_id in reversed(entries):
            count = self.blocks[block_id].ref_count
            self._news.add("drop", table, index=index, block_id=block_id, ref_count=count)
        self._forget(table)
        self._news.send()


def _at_time_outs(manager_class: type[_Miscounting], experiment: Any) -> Undo:
    """Let a request that is given up (one that is removed while it holds blocks) end through this manager."""
    scheduler = experiment.engine.scheduler
    honest: KVCacheManager = scheduler.manager
    careless = manager_class(honest)
    remove = scheduler.remove

    def remove_carelessly(request: Request) -> None:
        scheduler.manager = careless
        try:
            remove(request)
        finally:
            scheduler.manager = honest

    scheduler.remove = remove_carelessly

    def undo() -> None:
        scheduler.remove = remove

    return undo


SWITCHES: dict[str, Switch] = {
    "time-out-leaks": Switch(
        "I2 ref-count",
        "a request that times out loses its table, but its blocks keep their ref counts",
        partial(_at_time_outs, _NeverGivingBack),
    ),
    "time-out-frees-twice": Switch(
        "I1 conservation",
        "a time-out is handled twice, and the blocks join the free queue twice",
        partial(_at_time_outs, _FreeingTwice),
    ),
}
