"""MANAGEMENT layer: who holds which block? (chapter §2.3-2.5)

Every block is either free, waiting in one queue, or held by somebody, and its ref count says
by how many. Holders are the block tables that list it and the caches that took a reference
with `inc_ref`. The manager hands out blocks from the head of the queue and takes them back
at its tail (FIFO). It never looks at a key or a value; no tensor lives here.

What must always hold has names, I1 to I6: see minikv/invariants.py. Every operation costs
O(blocks it touches), however large the pool: the queue is a deque that only loses its head and
grows its tail, and the used set is a dict, which forgets a block in O(1) where a list would scan.

Every operation first looks at what it was given (minikv/admission.py) and raises before anything
has changed; then it changes the table, which may be a learner's and fail, and the books, which
cannot; then the observer hears of it (minikv/news.py).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from minikv import admission
from minikv.checks import whole_number
from minikv.errors import CacheValueError, OutOfBlocksError
from minikv.invariants import check_invariants
from minikv.kv_block import KVBlock
from minikv.news import News, letters
from minikv.protocols import Observer, Pool, T, Table

__all__ = ["KVBlock", "KVCacheManager", "Observer", "Pool", "Table", "letters"]


class KVCacheManager:
    """Hands out blocks, counts their holders, and takes them back.

    Args:
        num_blocks: blocks in the pool, at least 1 (16,384 in the chapter).
        block_size: slots in a block, at least 1 (16 in the chapter).
        pool: the storage, told of copies and releases; None keeps books only.
        observer: called with a dict for every state change, when the operation that made it is
            over; None costs nothing.

    Raises:
        CacheValueError (a ValueError): num_blocks or block_size below 1, or not the pool's own.
        TypeError: one of them is not an integer.
    """

    def __init__(
        self,
        num_blocks: int = 16384,
        block_size: int = 16,
        pool: Pool | None = None,
        observer: Observer | None = None,
    ) -> None:
        num_blocks = admission.pool_size("num_blocks", num_blocks, pool)
        self.block_size = admission.pool_size("block_size", block_size, pool)
        self.pool = pool
        self.blocks = [KVBlock(i) for i in range(num_blocks)]
        self.max_allocated, self.num_resets = 0, 0  # resets: how often release_all made tables void
        self._free = deque(range(num_blocks))
        self._used: dict[int, None] = {}  # a set that remembers the order
        self._tables: dict[int, Table] = {}  # by id(): the tables that hold blocks
        self._stored: dict[int, int] = {}  # by id(): tokens written through each of them
        self._cached: Counter[int] = Counter()  # references held by something that is no table
        self._stale: WeakValueDictionary[int, Table] = WeakValueDictionary()  # void since release_all
        self._news = News(observer)
        self._news.add("pool", num_blocks=num_blocks, block_size=self.block_size)
        self._news.send()

    # ---- what there is -------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    @property
    def allocated_blocks(self) -> int:
        """Blocks held now."""
        return len(self._used)

    @property
    def utilization(self) -> float:
        """Share of the blocks that is held now, in [0, 1]."""
        return len(self._used) / len(self.blocks)

    @property
    def free_queue(self) -> tuple[int, ...]:
        """Ids of the free blocks, next to be handed out first. A copy: O(free blocks)."""
        return tuple(self._free)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables that hold blocks now."""
        return tuple(self._tables.values())

    @property
    def observer(self) -> Observer | None:
        return self._news.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._news.observe(observer)

    def snapshot(self) -> dict[str, Any]:
        """The figures a serving system reports; `used_blocks` in the order taken. O(held blocks)."""
        return {
            "allocated_blocks": self.allocated_blocks,
            "utilization": self.utilization,
            "max_allocated": self.max_allocated,
            "total_blocks": self.num_blocks,
            "free_blocks": self.num_free_blocks,
            "used_blocks": list(self._used),
            "ref_counts": {b: self.blocks[b].ref_count for b in self._used},
        }

    def check(self) -> None:
        """Count everything again. InvariantError names the invariant (I1, I2, I3, I5) and the block."""
        check_invariants(self)

    # ---- allocate and free (chapter §2.3) ------------------------------------------------

    def allocate(self, table: Table, num_tokens: int) -> bool:
        """Grow `table` until its capacity is at least `num_tokens`.

        All or nothing: without enough free blocks the answer is False, nothing has changed,
        and the caller evicts, preempts or reports. O(new blocks).

        Raises:
            ValueError: num_tokens < 0, or the table has another block size.
            StaleTableError: the table's blocks are not this manager's to extend.
        """
        num_tokens = admission.token_count(num_tokens)
        admission.known_table(self, table)
        blocks = -(-(table.offset + num_tokens) // self.block_size) if num_tokens else 0
        needed = max(0, blocks - table.num_blocks)
        if needed > len(self._free):
            self._news.add("full", table, needed=needed, free=len(self._free))
            self._news.send()
            return False
        self._adopt(table)
        if needed and table.num_blocks == 0 and table.offset:
            self._news.add("offset", table, offset=table.offset)
        for _ in range(needed):
            table.append_block(self._free[0])
            block_id = self._take()
            if self._news.wanted:
                self._news.add("allocate", table, index=table.num_blocks - 1, block_id=block_id, ref_count=1)
        self._keep(table)
        self._news.send()
        return True

    def free(self, table: Table) -> None:
        """Drop the table's references, last block first, and clear it. O(its blocks).

        Last first, so that the head of a sequence, which others may share, is handed out last.
        A table without blocks is fine, so to free twice is to free once.

        Raises:
            StaleTableError, RefCountError: the table's blocks are not this manager's to free.
        """
        admission.known_table(self, table)
        admission.own_entries(self, table.block_ids)
        self._adopt(table)
        entries = list(enumerate(table.block_ids))
        table.clear()
        for index, block_id in reversed(entries):
            self._drop(table, index, block_id)
        self._forget(table)
        self._news.send()

    # ---- ref counts (chapter §2.4) -------------------------------------------------------

    def inc_ref(self, block_id: int) -> None:
        """One more holder of a held block. Raises RefCountError on a free one, IndexError on no block."""
        block = admission.held_block(self, block_id, "only a held block can be shared")
        block.ref_count += 1
        self._cached[block.block_id] += 1
        self._news.add("inc_ref", block_id=block.block_id, ref_count=block.ref_count)
        self._news.send()

    def dec_ref(self, block_id: int) -> None:
        """One holder less; the last one to leave frees the block. Raises RefCountError on a free block."""
        block = admission.held_block(self, block_id, "some holder gave its reference back twice")
        self._hand_back(block)
        self._release_if_unheld(block)
        self._news.send()

    # ---- sharing (vLLM's fork and copy-on-write; chapter §3.1) ----------------------------

    def fork(self, table: T, name: str | None = None) -> T:
        """A second table over the same blocks, each with one reference more. No data moves. O(its blocks).

        Args:
            name: what pictures and event logs call the new table.
        """
        admission.known_table(self, table)
        admission.own_entries(self, table.block_ids)
        child = type(table)(table.block_size, table.offset)
        if name is not None:
            child.name = name  # type: ignore[attr-defined]  # a learner's table need not know of names
        for block_id in table.block_ids:
            child.append_block(block_id)
        self._adopt(table)
        if child.offset:
            self._news.add("offset", child, offset=child.offset)
        for index, block_id in enumerate(table.block_ids):
            self._share(child, index, block_id, source=table)
        self._keep(child, self._stored.get(id(table), 0))
        self._news.send()
        return child

    def copy_on_write(self, table: Table, position: int) -> tuple[int, int] | None:
        """Give `table` a block of its own at `position`, if the one there is shared.

        Returns (source, copy), or None when the block was the table's own. O(1) blocks.

        Raises:
            IndexError: no such position. OutOfBlocksError: no free block for the copy.
        """
        position = whole_number("position", position)
        admission.known_table(self, table)
        source = table.slot(position) // self.block_size
        if self.blocks[source].ref_count < 2:
            return None
        if not self._free:
            raise OutOfBlocksError(
                f"I4 no-shared-write: block {source} is shared by {self.blocks[source].ref_count} and no "
                "block is free for a copy; free a request or evict, then try again"
            )
        self._adopt(table)
        index = (table.offset + position) // self.block_size
        table.replace_block(index, self._free[0])
        try:
            if self.pool is not None:
                self.pool.copy_block(source, self._free[0])
        except Exception:
            table.replace_block(index, source)
            raise
        copy = self._take()
        self.blocks[source].ref_count -= 1
        counts = {"ref_count": 1, "source_ref_count": self.blocks[source].ref_count}
        self._news.add("copy", table, index=index, block_id=copy, source=source, **counts)
        self._news.send()
        return source, copy

    def drop_front(self, table: Table, num_tokens: int) -> None:
        """Let the oldest tokens go: whole blocks are dropped, the offset takes up what is left over.

        Raises:
            ValueError: num_tokens < 0 or beyond the table's capacity.
        """
        num_tokens = admission.token_count(num_tokens)
        admission.known_table(self, table)
        if num_tokens > max(0, table.capacity):
            raise CacheValueError(
                f"cannot drop {num_tokens} tokens from a table with a capacity of {table.capacity}"
            )
        whole, offset = divmod(table.offset + num_tokens, self.block_size)
        dropped = table.block_ids[:whole]
        admission.own_entries(self, dropped)
        self._adopt(table)
        table.drop_blocks(whole, offset)
        for block_id in dropped:
            self._drop(table, 0, block_id)
        self._news.add("offset", table, offset=offset)
        if id(table) in self._stored:
            self._stored[id(table)] = max(0, self._stored[id(table)] - num_tokens)
        if table.num_blocks == 0:
            self._forget(table)
        self._news.send()

    def share(self, table: Table, block_ids: Iterable[int]) -> None:
        """Let `table` grow by blocks that somebody holds, each with one reference more. O(its blocks).

        So a prefix cache gives a new request what it found. No data moves, no free block is taken.

        Raises:
            RefCountError, UnknownBlockError: a block is free, or there is none such.
            InvariantError: I3, the table would list a block twice. StaleTableError: as in `allocate`.
        """
        admission.known_table(self, table)
        free = "only a held block can be shared"
        found = [admission.held_block(self, block_id, free).block_id for block_id in block_ids]
        first = table.num_blocks
        admission.own_entries(self, (*table.block_ids, *found))
        self._adopt(table)
        for block_id in found:
            table.append_block(block_id)
        if found and first == 0 and table.offset:
            self._news.add("offset", table, offset=table.offset)
        for index, block_id in enumerate(found, first):
            self._share(table, index, block_id, source=None)
        self._keep(table)
        self._news.send()

    def release_all(self) -> None:
        """Take every block back, in the order handed out; tables of before are void. O(held blocks)."""
        self._stale.update(self._tables)
        released = list(self._used)
        for block_id in released:
            self.blocks[block_id].ref_count = 0
            self._release(block_id)
        self._tables.clear()
        self._stored.clear()
        self._cached.clear()
        self.num_resets += 1
        self._news.add("reset", block_ids=released)
        self._news.send()

    # ---- writing, as far as it concerns the books ----------------------------------------

    def note_write(self, table: Table, start: int, stop: int, words: Sequence[str] = ()) -> None:
        """Say that K and V of positions start … stop-1 are about to be stored. O(blocks written).

        Whoever writes calls this first: it is here that a shared block or a missing one is noticed.

        Args:
            words: what the tokens are, one each, or none; only pictures use them.

        Raises:
            InvariantError: I4, a block there is shared; I5, the table does not reach that far.
            ValueError: no range of positions, or not one word each.
        """
        start, stop = whole_number("start", start), whole_number("stop", stop)
        admission.known_table(self, table)
        admission.writable_range(table, start, stop, len(words))
        if start == stop:
            return
        for position in (*range(start, stop, self.block_size), stop - 1):
            admission.own_block(self, table, position)
        # Those that will be written, as the table gives them; asked first, for a learner's may raise.
        slots = [] if self.observer is None else [int(slot) for slot in table.slots(start, stop)]
        self._adopt(table)
        self._stored[id(table)] = max(stop, self._stored[id(table)])
        self._news.add("write", table, start=start, slots=slots, words=list(words) or ["·"] * len(slots))
        self._news.send()

    # ---- plumbing --------------------------------------------------------------------------

    def _take(self) -> int:
        """Take the block at the head of the free queue, for one holder."""
        block_id = self._free.popleft()
        self.blocks[block_id].ref_count = 1
        self._used[block_id] = None
        if len(self._used) > self.max_allocated:
            self.max_allocated = len(self._used)
        return block_id

    def _release(self, block_id: int) -> None:
        """Put a block that nobody holds at the tail of the free queue."""
        del self._used[block_id]
        self._free.append(block_id)
        if self.pool is not None:
            self.pool.release(block_id)

    def _release_if_unheld(self, block: KVBlock) -> None:
        if not block.ref_count:
            self._release(block.block_id)
            if self._news.wanted:
                self._news.add("release", block_id=block.block_id)

    def _share(self, table: Table, index: int, block_id: int, source: Table | None) -> None:
        """One more reference to a held block, for entry `index` of `table`."""
        block = self.blocks[block_id]
        block.ref_count += 1
        lender = None if source is None or self.observer is None else self._news.name(source)
        facts = {"index": index, "block_id": block_id, "ref_count": block.ref_count}
        self._news.add("share", table, **facts, source=lender)

    def _drop(self, table: Table, index: int, block_id: int) -> None:
        """One reference to a held block less, as entry `index` of `table` lets it go."""
        block = self.blocks[block_id]
        block.ref_count -= 1
        if self._news.wanted:
            self._news.add("drop", table, index=index, block_id=block_id, ref_count=block.ref_count)
        self._release_if_unheld(block)

    def _hand_back(self, block: KVBlock) -> None:
        """One reference less of those that inc_ref gave. If there is none, a table's is meant."""
        if self._cached[block.block_id] > 1:
            self._cached[block.block_id] -= 1
        else:
            del self._cached[block.block_id]  # Counter: no error when it is not there
        block.ref_count -= 1
        self._news.add("dec_ref", block_id=block.block_id, ref_count=block.ref_count)

    def _keep(self, table: Table, stored: int = 0) -> None:
        """From now on this table, unless it is empty, is a holder."""
        if id(table) not in self._tables and table.num_blocks:
            self._tables[id(table)] = table
            self._stored[id(table)] = stored
            self._stale.pop(id(table), None)

    def _forget(self, table: Table) -> None:
        self._tables.pop(id(table), None)
        self._stored.pop(id(table), None)

    def _adopt(self, table: Table) -> None:
        """A table filled by hand becomes a holder; what inc_ref took for it is its own from now on."""
        if id(table) in self._tables or table.num_blocks == 0:
            return
        if table.offset:
            self._news.add("offset", table, offset=table.offset)
        for index, block_id in enumerate(table.block_ids):
            self._share(table, index, block_id, source=None)
            self._hand_back(self.blocks[block_id])
        self._keep(table)
