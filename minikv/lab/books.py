"""What follows from the state, kept up to date so that no event costs more than the blocks it touches.

Nothing here is in the state: a reader of the patches can count it all again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

Split = tuple[int, int, int, int, int]  # tokens, unused, before the offset (slots); held, saved (blocks)


class Books:
    """Who lists each block, how often it is queued, and the memory split with its running totals."""

    def __init__(self, state: dict[str, Any]) -> None:
        blocks = range(state["num_blocks"])
        self._state = state
        self.listed_by: list[Counter[int]] = [Counter() for _ in blocks]  # request number → table entries
        self.queued = [1 for _ in blocks]  # times in the free queue
        self.waiting = state["num_blocks"]  # length of the free queue
        self._splits: list[Split] = [(0, 0, 0, 0, 0) for _ in blocks]
        self._totals = [0, 0, 0, 0, 0]
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

    def measure(self, blocks: set[int]) -> dict[str, int]:
        """The memory split after these blocks may have changed."""
        for block in blocks:
            new = self._split(block)
            for place, (now, was) in enumerate(zip(new, self._splits[block], strict=True)):
                self._totals[place] += now - was
            self._splits[block] = new
        tokens, unused, before, held, saved = self._totals
        self._peak = max(self._peak, held)
        slots = self._state["num_blocks"] * self._state["block_size"]
        split = {
            "tokens": tokens,
            "unused": unused,
            "before": before,
            "free": slots - tokens - unused - before,
        }
        return {**split, "held": held, "peak": self._peak, "saved": saved}

    def _split(self, block: int) -> Split:
        entries = self.entries(block)
        saved = max(0, entries - 1)
        if self._state["ref"][block] <= 0:
            return (0, 0, 0, 0, saved)
        words = self._state["words"][block]
        before = self._dead_slots(block)
        tokens = sum(word is not None for word in words[before:])
        return (tokens, len(words) - before - tokens, before, 1, saved)

    def _dead_slots(self, block: int) -> int:
        """Leading slots that lie before the offset for everybody who holds the block."""
        if self._state["other"][block] > 0 or not self.listed_by[block]:
            return 0
        offsets = []
        for number in self.listed_by[block]:
            request = self._state["requests"][number]
            offsets.append(request["offset"] if request["blocks"][0] == block else 0)
        return min(offsets)
