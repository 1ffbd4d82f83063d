"""One physical block, as the management layer sees it."""

from __future__ import annotations


class KVBlock:
    """What is known about one block: its id and how many hold it. The data is in the pool."""

    __slots__ = ("block_id", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0

    @property
    def is_free(self) -> bool:
        return self.ref_count == 0

    def __repr__(self) -> str:
        return f"KVBlock(block_id={self.block_id}, ref_count={self.ref_count})"
