"""LOGICAL layer: where does position p of a request live? (chapter §2.2)

A request sees its tokens in one row, positions 0, 1, 2 … Memory is cut into blocks of
`block_size` slots, and the request holds some of them, in any physical order. The block
table is the whole mapping between the two: a list of block ids in logical order, and the
offset of the first token within the first block.

    flat slot of p  =  block_ids[(offset + p) // block_size] * block_size + (offset + p) % block_size

A table decides nothing: the manager hands out blocks and calls the methods that change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minikv.checks import whole_number

if TYPE_CHECKING:
    import numpy as np


class BlockTable:
    """The blocks of one request, in logical order.

    Args:
        block_size: slots in a block, at least 1.
        offset: slots of the first block that lie before position 0, in [0, block_size).
            A prefix that begins inside a block, or a window that slides, makes it non-zero.
        name: what pictures and event logs call the request; None lets them choose a letter.

    Raises:
        ValueError: block_size < 1, or offset outside [0, block_size).
        TypeError: one of them is not an integer.
    """

    __slots__ = ("__weakref__", "_block_ids", "block_size", "name", "offset")

    def __init__(self, block_size: int, offset: int = 0, name: str | None = None) -> None:
        block_size, offset = whole_number("block_size", block_size), whole_number("offset", offset)
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; a block has at least 1 slot")
        if not 0 <= offset < block_size:
            raise ValueError(f"offset is {offset}; it must be in [0, {block_size}), inside the first block")
        self.block_size = block_size
        self.offset = offset
        self.name = name
        self._block_ids: list[int] = []

    @property
    def block_ids(self) -> tuple[int, ...]:
        """Physical block ids in logical order. A copy: O(blocks)."""
        return tuple(self._block_ids)

    @property
    def num_blocks(self) -> int:
        return len(self._block_ids)

    @property
    def capacity(self) -> int:
        """Tokens it can hold: num_blocks * block_size - offset. Below 0 while an offset awaits a block."""
        return len(self._block_ids) * self.block_size - self.offset

    def slot(self, position: int) -> int:
        """Flat slot of one position; IndexError outside [0, capacity). O(1)."""
        if not 0 <= position < self.capacity:
            raise IndexError(f"position {position} is outside [0, {self.capacity}), this table's capacity")
        index, place = divmod(self.offset + position, self.block_size)
        return self._block_ids[index] * self.block_size + place

    def slots(self, start: int, stop: int) -> np.ndarray:
        """Flat slots of positions start … stop-1, int64 [stop - start]; IndexError outside the capacity."""
        import numpy as np  # here, so that reading the logic of a table needs no array library

        if not 0 <= start <= stop <= max(0, self.capacity):
            raise IndexError(
                f"positions [{start}, {stop}) reach outside [0, {self.capacity}), this table's capacity"
            )
        places = np.arange(self.offset + start, self.offset + stop)
        first = (self.offset + start) // self.block_size
        used = self._block_ids[first : -(-(self.offset + stop) // self.block_size)]
        blocks = np.array(used, dtype=np.int64)[places // self.block_size - first]
        return blocks * self.block_size + places % self.block_size

    # What follows changes the table. Only the manager calls these: a block that a table
    # lists without holding a reference is a block that may be given to somebody else.

    def append_block(self, block_id: int) -> None:
        """Grow by one block; nothing that is already stored moves. O(1)."""
        self._block_ids.append(block_id)

    def replace_block(self, index: int, block_id: int) -> None:
        """Let entry `index` point to another block (copy-on-write)."""
        self._block_ids[index] = block_id

    def drop_blocks(self, count: int, offset: int) -> None:
        """Forget the first `count` blocks; position 0 is now `offset` slots into the new first one."""
        del self._block_ids[:count]
        self.offset = offset

    def clear(self) -> None:
        """Forget every block, and the offset."""
        self._block_ids.clear()
        self.offset = 0

    def __repr__(self) -> str:
        return f"BlockTable(block_ids={self._block_ids}, offset={self.offset}, capacity={self.capacity})"
