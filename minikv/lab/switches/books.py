"""Managers whose books are wrong: a block is free and held at once, or neither (I1)."""

from __future__ import annotations

from collections import deque

from minikv.lab.switches.switch import Switch, Undo
from minikv.lab.workbench import Workbench
from minikv.manager import KVCacheManager
from minikv.protocols import Table


class _Careless(KVCacheManager):
    """The same manager, books and all; a subclass gets one thing wrong."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.__dict__ = manager.__dict__

    def _tell_queue(self) -> None:
        """What was done to the queue behind the books' back, for the log."""
        self._news.add("queue", block_ids=list(self._free))
        self._news.send()

    def mend(self) -> None:
        """The free queue as it must be: each free block once, those that were lost at the end."""
        queue = [block_id for block_id in dict.fromkeys(self._free) if self.blocks[block_id].is_free]
        lost = [b.block_id for b in self.blocks if b.is_free and b.block_id not in set(queue)]
        if queue + lost != list(self._free):
            self._free = deque(queue + lost)
            self._tell_queue()


class _LeavesInQueue(_Careless):
    """The last block that a table gets is not taken off the queue: the next table gets it, too."""

    def allocate(self, table: Table, num_tokens: int) -> bool:
        held = table.num_blocks
        answer = super().allocate(table, num_tokens)
        if table.num_blocks > held:
            self._free.appendleft(table.block_ids[-1])
            self._tell_queue()
        return answer


class _LosesOnRefusal(_Careless):
    """It takes block after block, finds too few, answers False, and forgets those it had in hand."""

    def allocate(self, table: Table, num_tokens: int) -> bool:
        answer = super().allocate(table, num_tokens)
        if not answer and self._free:
            self._free.clear()
            self._tell_queue()
        return answer


def _put_in(bench: Workbench, manager_class: type[_Careless]) -> Undo:
    honest, careless = bench.manager, manager_class(bench.manager)
    bench.manager = bench.loop.manager = careless

    def undo() -> None:
        bench.manager = bench.loop.manager = honest
        careless.mend()

    return undo


SWITCHES: dict[str, Switch] = {
    "left-in-queue": Switch(
        "I1 conservation",
        "the last block that a table gets stays at the head of the free queue",
        lambda bench: _put_in(bench, _LeavesInQueue),
    ),
    "lost-on-refusal": Switch(
        "I1 conservation",
        "the blocks taken for a request that is then refused belong to nobody",
        lambda bench: _put_in(bench, _LosesOnRefusal),
    ),
}
