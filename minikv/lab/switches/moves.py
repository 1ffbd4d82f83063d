"""Moves gone wrong: a run that grows elsewhere and does not take all of its KV along."""

from __future__ import annotations

from typing import Any

from minikv.engine.contiguous import Run
from minikv.lab.modes_bench import RunBench
from minikv.lab.switches.switch import Switch, Undo
from minikv.lab.workbench import Workbench
from minikv.pool import BlockPool

PIECE = 8  # slots that are copied at once


class _ForgettingThePiece:
    """The pool, but a copy goes by whole pieces from the end on, and never makes the last, shorter one.

    The marks are set all the same: the pool believes that everything has come along.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.forgotten = 0  # slots that the last copy left behind, at the front

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def copy_slots(self, src: int, dst: int, count: int) -> int:
        stored = int(self._pool.written(0)[src : src + count].sum())
        self.forgotten = lost = stored % PIECE
        self._pool.copy_slots(src + lost, dst + lost, count - lost)
        for layer in range(self._pool.num_layers):
            self._pool.written(layer)[dst : dst + lost] = True
        return stored


def _short_move(bench: RunBench | Workbench) -> Undo:
    """Let the runs of `bench` move through such a pool. What has moved before stays as it is."""
    if not isinstance(bench, RunBench):
        raise ValueError(f"{bench!r} has no runs that move; make a RunBench")
    manager: Any = bench.manager
    honest, careless = bench.pool, _ForgettingThePiece(bench.pool)
    manager.pool = careless

    def tell_kept(table: Run) -> None:
        """The log hears of what was copied, and of nothing else."""
        words, lost = manager._held[id(table)].words, careless.forgotten
        if manager._news.wanted and words[lost:]:
            slots = list(range(table.offset + lost, table.offset + len(words)))
            manager._news.add("write", table, start=lost, slots=slots, words=words[lost:])

    manager._tell_kept = tell_kept

    def undo() -> None:
        manager.pool = honest
        del manager._tell_kept  # the method of its class shows again

    return undo


SWITCHES: dict[str, Switch] = {
    "short-move": Switch(
        "I6 written-first",
        f"a run that moves is copied in pieces of {PIECE} slots, from its end on, and what is left is not",
        _short_move,
    ),
}
