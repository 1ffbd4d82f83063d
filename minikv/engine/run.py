"""A run: the block table of a request whose slots lie side by side. (chapter §1)"""

from __future__ import annotations

from minikv.block_table import BlockTable
from minikv.engine.params import at_least


class Run(BlockTable):
    """The slots of one request, side by side: a block table of one block, the whole memory.

        flat slot of p  =  offset + p,   0 <= p < capacity

    block_ids is (0,), or () while nothing is reserved. Unlike a block table it ends before its block does:
    a position beyond the reserved run raises IndexError, although the slot exists and is somebody else's.

    Args:
        block_size: slots of the whole memory, at least 1.
        name: what pictures and event logs call the request.
        max_length: the most tokens that this request will ever hold; None: the manager's max_length.

    Raises:
        ValueError: a number below 1. TypeError: no integer.
    """

    __slots__ = ("_capacity", "_max_length")

    def __init__(self, block_size: int, name: str | None = None, max_length: int | None = None) -> None:
        super().__init__(block_size, 0, name)
        self._capacity = 0
        self.max_length = max_length

    @property
    def capacity(self) -> int:
        """Slots reserved for it."""
        return self._capacity

    @property
    def max_length(self) -> int | None:
        """The most tokens that this request will ever hold, or None."""
        return self._max_length

    @max_length.setter
    def max_length(self, max_length: int | None) -> None:
        self._max_length = None if max_length is None else at_least("max_length", max_length, 1)

    # Only the manager calls these two.

    def place(self, start: int, capacity: int) -> None:
        """From now on its slots are [start, start + capacity)."""
        self._block_ids[:] = [0]
        self.offset, self._capacity = start, capacity

    def clear(self) -> None:
        """Forget the run."""
        super().clear()
        self._capacity = 0

    def __repr__(self) -> str:
        return f"Run(slots=[{self.offset}, {self.offset + self.capacity}), block_size={self.block_size})"
