"""Ways to set memory aside for requests whose length nobody knows. (chapter §1, §2.6, §5.1)

    OrcaMax       for the longest output there may be           contiguous
    OrcaPow2      for the output, rounded up to 2, 4, 8, 16 …   contiguous
    OrcaOracle    for exactly the output, which no server knows contiguous
    GrowAndMove   for the tokens so far and some; then it grows contiguous, and copies what must move
    Paged         for the tokens so far, block by block         anywhere

The first three are those that the PagedAttention paper compares with (Kwon et al., SOSP 2023, §6.1).
"""

from __future__ import annotations

from typing import Literal

from minikv.block_table import BlockTable
from minikv.checks import whole_number
from minikv.manager import KVCacheManager
from minikv.sim.arena import Arena, BuddyArena
from minikv.sim.policy import Books, Holding
from minikv.sim.workload import Request


class Orca(Books):
    """Reserves everything at once, on the buddy allocator that the paper assumes for Orca.

    What the allocator rounds up is of no use to the request, and counts as external: "& others" in Fig. 2.

    Args:
        num_slots: token slots.
        max_length: tokens of the longest request, input and output.

    Raises:
        ValueError: memory has no piece of max_length slots. TypeError: a number that is no integer.
    """

    label = ""

    def __init__(self, num_slots: int, max_length: int = 2048) -> None:
        self.arena = BuddyArena(num_slots)
        if not 1 <= whole_number("max_length", max_length) <= self.arena.largest_hole:
            raise ValueError(
                f"max_length is {max_length}; the largest power of two in {num_slots} slots is "
                f"{self.arena.largest_hole}: choose 1 to that, or more slots"
            )
        super().__init__(self.label, self.arena.num_slots, max_length)

    def reservation(self, request: Request) -> int:
        """Slots to reserve for this request."""
        raise NotImplementedError

    def _place(self, holding: Holding, request: Request, tokens: int) -> bool:
        free, size = self.arena.free_slots, self.reservation(request)
        if self.arena.allocate(holding.key, size) is None:
            return False
        self._book(holding, size, free - self.arena.free_slots)
        return True

    def grow(self, key: int) -> bool:
        """Never: all that a request needs was reserved, so it does not ask."""
        return False

    def _release(self, holding: Holding) -> None:
        self.arena.free(holding.key)


class OrcaMax(Orca):
    """Reserves the longest a request may become."""

    label = "Orca (Max)"

    def reservation(self, request: Request) -> int:
        """The same for every request."""
        return self.longest


class OrcaPow2(Orca):
    """Reserves at most twice the output: a good guess. An output of 25 tokens gets 32."""

    label = "Orca (Pow2)"

    def reservation(self, request: Request) -> int:
        """The prompt, and the next power of two of the output."""
        return min(request.input_tokens + (1 << (request.output_tokens - 1).bit_length()), self.longest)


class OrcaOracle(Orca):
    """Reserves exactly what the request will fill. An upper bound, for no server knows it."""

    label = "Orca (Oracle)"

    def reservation(self, request: Request) -> int:
        """What it will fill."""
        return request.slots


class GrowAndMove(Books):
    """Reserves the tokens so far and some; then grows in place, or moves to another hole and copies.

    Args:
        num_slots: token slots.
        fit: which hole to take, "first" or "best".
        headroom: slots to reserve beyond the tokens so far, at the start and again at each growth.

    Raises:
        ValueError: a number below 1, or another fit. TypeError: a number that is no integer.
    """

    def __init__(self, num_slots: int, fit: Literal["first", "best"] = "first", headroom: int = 64) -> None:
        self.headroom = whole_number("headroom", headroom)
        if self.headroom < 1:
            raise ValueError(f"headroom is {headroom}; a request needs at least 1 slot to grow")
        self.arena = Arena(num_slots, fit)
        super().__init__(f"grow and move ({fit} fit)", self.arena.num_slots, self.arena.num_slots)

    def _place(self, holding: Holding, request: Request, tokens: int) -> bool:
        size = min(tokens + self.headroom, self.num_slots)
        if self.arena.allocate(holding.key, size) is None:
            return False
        self._book(holding, size, size)
        return True

    def grow(self, key: int) -> bool:
        """Some more slots, in place or elsewhere. False, and no change, if there is no hole."""
        holding = self._holdings[key]
        size = min(holding.capacity + self.headroom, self.num_slots)
        growth = self.arena.grow(key, size)
        if growth is None:
            return False
        self.tokens_copied += growth.tokens_copied
        self._book(holding, size, size)
        return True

    def _release(self, holding: Holding) -> None:
        self.arena.free(holding.key)


class Paged(Books):
    """Takes a block when the tokens so far have filled the last one. Manager and tables are the real ones.

    Args:
        num_blocks: blocks in the pool.
        block_size: slots in a block.

    Raises:
        ValueError: a number below 1. TypeError: one that is no integer.
    """

    contiguous = False

    def __init__(self, num_blocks: int = 16384, block_size: int = 16) -> None:
        self.manager = KVCacheManager(num_blocks, block_size)
        self.tables: dict[int, BlockTable] = {}  # of the running requests
        slots = self.manager.num_blocks * self.manager.block_size
        super().__init__(f"paged (block {self.manager.block_size})", slots, slots)

    def _place(self, holding: Holding, request: Request, tokens: int) -> bool:
        table = BlockTable(self.manager.block_size)
        if not self.manager.allocate(table, tokens):
            return False
        self.tables[holding.key] = table
        self._book(holding, table.capacity, table.capacity)
        return True

    def grow(self, key: int) -> bool:
        """One block more. False, and no change, if none is free."""
        holding = self._holdings[key]
        if not self.manager.allocate(self.tables[key], holding.capacity + 1):
            return False
        capacity = holding.capacity + self.manager.block_size
        self._book(holding, capacity, capacity)
        return True

    def _release(self, holding: Holding) -> None:
        self.manager.free(self.tables.pop(holding.key))
