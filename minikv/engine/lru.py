"""Which leaf of a tree was used least recently?

Order: the smallest stamp first. No two leaves have the same stamp: an operation stamps the nodes of one
path from a root, and of these at most the last is a leaf.

The structure is a heap with at most one entry a leaf, and it is lazy. A leaf that is used gets a new
stamp and keeps its old entry; only when that entry comes up is it found out of date, and goes to its
place. So to use a leaf costs O(1), and to find the oldest O(log leaves): an entry that is put back
was made late by some use, and each use is paid for once. A single call may meet all the late ones.

Why not one list in order of use, where the oldest is simply the first? A block becomes a leaf when its
last child goes, and then belongs somewhere in the middle. A list of all blocks would avoid that, but
then each hit has to move every block of its path instead of stamping it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar


class Leaf(Protocol):
    """What may be put aside here, and may have children by the time its turn comes."""

    stamp: int  # when it was last used
    queued: bool  # it has an entry in the heap; only `Leaves` changes it

    @property
    def is_leaf(self) -> bool: ...


L = TypeVar("L", bound=Leaf)


class Leaves(Generic[L]):
    """The leaves of a tree, least recently used first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, L]] = []  # stamps differ, so two leaves are never compared

    def add(self, leaf: L) -> None:
        """Remember a leaf; one that is remembered stays so. O(log leaves)."""
        if not leaf.queued:
            leaf.queued = True
            heappush(self._heap, (leaf.stamp, leaf))

    def take_oldest(self, not_after: int) -> L | None:
        """Take out the leaf with the smallest stamp; None if all stamps are above `not_after`."""
        while self._heap and self._heap[0][0] <= not_after:
            stamp, leaf = heappop(self._heap)
            leaf.queued = False
            if leaf.is_leaf and leaf.stamp == stamp:
                return leaf
            if leaf.is_leaf:  # used since: to its place
                self.add(leaf)
        return None

    def clear(self) -> None:
        """Forget all. A leaf that was in is of no further use: it stays marked as queued."""
        self._heap.clear()
