"""What follows from the state, kept up to date so that no event costs more than the blocks it touches.

Nothing here is in the state: a reader of the patches can count it all again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

# tokens, unused, before the offset, lost (slots); held, saved (blocks)
Split = tuple[int, int, int, int, int, int]


class Books:
    """Who lists each block, how often it is queued, and the memory split with its running totals."""

    def __init__(self, state: dict[str, Any]) -> None:
        blocks = range(state["num_blocks"])
        self._state = state
        self.listed_by: list[Counter[int]] = [Counter() for _ in blocks]  # request number → table entries
        self.queued = [1 for _ in blocks]  # times in the free queue
        self.waiting = state["num_blocks"]  # length of the free queue
        self._splits: list[Split] = [(0, 0, 0, 0, 0, 0) for _ in blocks]
        self._totals = [0, 0, 0, 0, 0, 0]
        self._peak = 0

    def entries(self, block: int) -> int:
        """Table entries that list `block`."""
        return self.listed_by[block].total()

    def list_block(self, request: int, block: int) -> None:
        """A table of `request` lists `block` once more."""
        self.listed_by[block][request] += 1

    def unlist_block(self, request: int, block: int) -> None:
        """A table of `request` lists `block` once less."""
        self.listed_by[block][request] -= 1
        if self.listed_by[block][request] == 0:
            del self.listed_by[block][request]

    def join_queue(self, block: int) -> None:
        """`block` is in the free queue once more."""
        self.queued[block] += 1
        self.waiting += 1

    def leave_queue(self, block: int) -> None:
        """`block` is in the free queue once less."""
        self.queued[block] -= 1
        self.waiting -= 1

    def requeue(self, waiting: Sequence[int]) -> set[int]:
        """Make these the free queue; gives back those in it more or less often than before. O(num_blocks)."""
        queued = Counter(waiting)
        changed = {block for block, times in enumerate(self.queued) if queued[block] != times}
        self.queued = [queued[block] for block in range(len(self.queued))]
        self.waiting = len(waiting)
        return changed

    def measure(self, blocks: set[int], on_its_way: int | None = None) -> dict[str, int]:
        """The memory split after these blocks may have changed.

        `on_its_way` has just lost its last holder and is free, though its release is the next event.
        """
        for block in blocks:
            new = self._split(block, lost=self.queued[block] == 0 and block != on_its_way)
            for place, (now, was) in enumerate(zip(new, self._splits[block], strict=True)):
                self._totals[place] += now - was
            self._splits[block] = new
        tokens, unused, before, lost, held, saved = self._totals
        self._peak = max(self._peak, held)
        slots = self._state["num_blocks"] * self._state["block_size"]
        split = {
            "tokens": tokens,
            "unused": unused,
            "before": before,
            "lost": lost,
            "free": slots - tokens - unused - before - lost,
        }
        return {**split, "held": held, "peak": self._peak, "saved": saved}

    def _split(self, block: int, lost: bool) -> Split:
        """`lost`: nobody can get this block, unless somebody holds it."""
        words, count = self._state["words"][block], self._state["ref"][block]
        if count <= 0:
            return (0, 0, 0, len(words) if lost else 0, 0, 0)
        saved = max(0, min(self.entries(block), count) - 1)  # an entry that is not counted saves nothing
        before = self._dead_slots(block)
        tokens = sum(word is not None for word in words[before:])
        return (tokens, len(words) - before - tokens, before, 0, 1, saved)

    def _dead_slots(self, block: int) -> int:
        """Leading slots that lie before the offset for everybody who holds the block."""
        if self._state["other"][block] > 0 or not self.listed_by[block]:
            return 0
        offsets = []
        for number in self.listed_by[block]:
            request = self._state["requests"][number]
            offsets.append(request["offset"] if request["blocks"][0] == block else 0)
        return min(offsets)
