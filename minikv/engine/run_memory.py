"""Where runs lie: the arena of minikv.sim, which can be asked before anything changes."""

from __future__ import annotations

from bisect import bisect_right

from minikv.sim.arena import Arena, Owner, Span


class Memory(Arena):
    """An arena that can be asked before anything changes, and in which a run may change its place."""

    def find(self, size: int) -> int | None:
        """Where `allocate` would put so many slots now; None: nowhere."""
        index = self._find_hole(size)
        return None if index is None else self._holes[index][0]

    def around(self, owner: Owner) -> Span:
        """The owner's run together with the holes before and behind it: (start, size)."""
        start, size = self._spans[owner]
        index = self._hole_at(start)
        if index + 1 < len(self._holes) and self._holes[index + 1][0] == start + size:
            size += self._holes[index + 1][1]
        if index >= 0 and sum(self._holes[index]) == start:
            start, size = self._holes[index][0], size + self._holes[index][1]
        return start, size

    def place(self, owner: Owner, start: int, size: int) -> None:
        """Let the owner hold [start, start + size), free or its own so far, in place of what it held."""
        self._release(*self._spans[owner])
        hole, room = self._holes[index := self._hole_at(start)]
        left = [(hole, start - hole), (start + size, hole + room - start - size)]
        self._holes[index : index + 1] = [piece for piece in left if piece[1]]
        self._spans[owner] = (start, size)
        self.free_slots -= size

    def _hole_at(self, start: int) -> int:
        """Index of the last hole that begins at or before this slot; -1: there is none."""
        return bisect_right(self._holes, (start, self.num_slots)) - 1
