"""Managers that count wrong: a block goes too early, or twice, or gets a holder that nobody counted."""

from __future__ import annotations

from functools import partial

from minikv.lab.switches.switch import Switch, Undo
from minikv.lab.workbench import Workbench
from minikv.manager import KVCacheManager
from minikv.protocols import Table


class _Miscounting(KVCacheManager):
    """The same manager, books, queue and all; a subclass gets one thing wrong."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.__dict__ = manager.__dict__


class _WithoutRefCounts(_Miscounting):
    """Whoever ends takes every block of its table along, whoever else may list it."""

    def _drop(self, table: Table, index: int, block_id: int) -> None:
        self.blocks[block_id].ref_count = 1  # the one reference that this table knows of
        super()._drop(table, index, block_id)


class _FreeingTwice(_Miscounting):
    """What a table leaves unheld joins the free queue, and then once more."""

    def free(self, table: Table) -> None:
        block_ids = table.block_ids
        super().free(table)
        for block_id in reversed(block_ids):
            if self.blocks[block_id].is_free:
                self._free.append(block_id)
                self._news.add("release", block_id=block_id)
        self._news.send()


class _SharingUncounted(_Miscounting):
    """A fork lists its parent's blocks, and their counts stay as they were."""

    def _share(self, table: Table, index: int, block_id: int, source: Table | None) -> None:
        self.blocks[block_id].ref_count -= 1
        super()._share(table, index, block_id, source)


def _put_in(manager_class: type[_Miscounting], bench: Workbench) -> Undo:
    """Let `bench` run on a miscounting manager. The books are the same: what it spoils stays spoilt."""
    honest = bench.manager
    bench.manager = bench.loop.manager = manager_class(honest)

    def undo() -> None:
        bench.manager = bench.loop.manager = honest

    return undo


SWITCHES: dict[str, Switch] = {
    "no-ref-counts": Switch(
        "I2 ref-count",
        "nobody counts holders: whoever ends first frees the blocks it shares",
        partial(_put_in, _WithoutRefCounts),
    ),
    "double-free": Switch(
        "I1 conservation",
        "a request's end is handled twice, and its blocks join the free queue twice",
        partial(_put_in, _FreeingTwice),
    ),
    "missing-inc": Switch(
        "I2 ref-count",
        "fork shares the blocks but forgets to count the new holder",
        partial(_put_in, _SharingUncounted),
    ),
}
