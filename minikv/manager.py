"""MANAGEMENT layer: who holds which block? (chapter §2.3-2.5)

Every block is either free, waiting in one queue, or held by somebody, and its ref count says
by how many. Holders are the block tables that list it and the caches that took a reference
with `inc_ref`. The manager hands out blocks from the head of the queue and takes them back
at its tail (FIFO). It never looks at a key or a value; no tensor lives here.

The invariants, by the names used everywhere:

    I1 conservation     every block is free or held, never both, never neither
    I2 ref-count        ref_count == number of holders (tables + caches); free exactly when 0
    I3 no-repeat        a table never lists a block twice
    I4 no-shared-write  nobody writes a slot of a block whose ref_count > 1
    I5 capacity         a table's capacity covers every token stored through it
    I6 written-first    no slot that was never written reaches an attention output

Every operation costs O(blocks it touches), however large the pool: the queue is a deque that
only loses its head and grows its tail, and the used set is a dict, which forgets a block in
O(1) where a list would scan.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from operator import index as as_int
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from minikv.errors import InvariantError, OutOfBlocksError, RefCountError, StaleTableError

Observer = Callable[[dict[str, Any]], None]


class Table(Protocol):
    """What the manager needs of a block table, so that a learner's own can stand in.

    `replace_block` and `drop_blocks` are called by copy-on-write and sliding windows only.
    """

    block_size: int
    offset: int

    def __init__(self, block_size: int, offset: int = 0) -> None: ...
    @property
    def block_ids(self) -> tuple[int, ...]: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    def slot(self, position: int) -> int: ...
    def slots(self, start: int, stop: int) -> Any: ...
    def append_block(self, block_id: int) -> None: ...
    def replace_block(self, index: int, block_id: int) -> None: ...
    def drop_blocks(self, count: int, offset: int) -> None: ...
    def clear(self) -> None: ...


T = TypeVar("T", bound=Table)


class Pool(Protocol):
    """What the manager needs of the storage: to be told when a block is copied or let go."""

    def copy_block(self, src: int, dst: int) -> None: ...
    def release(self, block_id: int) -> None: ...


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


class KVCacheManager:
    """Hands out blocks, counts their holders, and takes them back.

    Args:
        num_blocks: blocks in the pool, at least 1 (16,384 in the chapter).
        block_size: slots in a block, at least 1 (16 in the chapter).
        pool: the storage, told of copies and releases; None keeps books only.
        observer: called with a dict for every state change; None costs nothing.

    Raises:
        ValueError, TypeError: num_blocks or block_size below 1, or not an integer.
    """

    def __init__(
        self,
        num_blocks: int = 16384,
        block_size: int = 16,
        pool: Pool | None = None,
        observer: Observer | None = None,
    ) -> None:
        num_blocks, block_size = as_int(num_blocks), as_int(block_size)
        if num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks}; a pool has at least 1 block")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; a block has at least 1 slot")
        for name, own in (("num_blocks", num_blocks), ("block_size", block_size)):
            if getattr(pool, name, own) != own:
                raise ValueError(
                    f"{name} is {own} but the pool was made with {getattr(pool, name)}; make them equal"
                )
        self.block_size = block_size
        self.pool = pool
        self.observer = observer
        self.blocks = [KVBlock(i) for i in range(num_blocks)]
        self.max_allocated = 0
        self._free = deque(range(num_blocks))
        self._used: dict[int, None] = {}  # a set that remembers the order
        self._tables: dict[int, Table] = {}  # by id(): the tables that hold blocks
        self._stored: dict[int, int] = {}  # by id(): tokens written through a table
        self._cached: Counter[int] = Counter()  # references held by something that is no table
        self._stale: WeakValueDictionary[int, Table] = WeakValueDictionary()  # void since release_all
        self._labels: dict[int, tuple[Table, str]] = {}  # by id(): labels of tables without a name
        self._tell("pool", num_blocks=num_blocks, block_size=block_size)

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

    # ---- allocate and free (chapter §2.3) ------------------------------------------------

    def allocate(self, table: Table, num_tokens: int) -> bool:
        """Grow `table` until its capacity is at least `num_tokens`.

        All or nothing: without enough free blocks the answer is False, nothing has changed,
        and the caller evicts, preempts or reports. O(new blocks).

        Raises:
            ValueError: num_tokens < 0, or the table has another block size.
            StaleTableError: the table's blocks are not this manager's to extend.
        """
        self._admit(table)
        num_tokens = self._count("num_tokens", num_tokens)
        needed = -(-(table.offset + num_tokens) // self.block_size) - table.num_blocks
        if num_tokens == 0 or needed <= 0:
            return True
        if needed > len(self._free):
            self._tell("full", table, needed=needed, free=len(self._free))
            return False
        if table.num_blocks == 0 and table.offset:
            self._tell("offset", table, offset=table.offset)
        for _ in range(needed):
            block_id = self._take()
            table.append_block(block_id)
            self._tell("allocate", table, index=table.num_blocks - 1, block_id=block_id, ref_count=1)
        self._keep(table)
        return True

    def free(self, table: Table) -> None:
        """Drop the table's references, last block first, and clear it. O(its blocks).

        Last first, so that the head of a sequence, which others may share, is handed out last.

        Raises:
            StaleTableError, RefCountError: the table's blocks are not this manager's to free.
        """
        self._admit(table)
        self._require_held(table)
        for index, block_id in reversed(list(enumerate(table.block_ids))):
            self._drop(table, index, block_id)
        table.clear()
        self._forget(table)

    # ---- ref counts (chapter §2.4) -------------------------------------------------------

    def inc_ref(self, block_id: int) -> None:
        """One more holder of a held block. Raises RefCountError on a free one, IndexError on no block."""
        block = self._block(block_id)
        if block.is_free:
            raise RefCountError(
                f"I2 ref-count: block {block_id} is free, so nobody can share it; "
                "allocate hands out free blocks"
            )
        block.ref_count += 1
        self._cached[block.block_id] += 1
        self._tell("inc_ref", block_id=block.block_id, ref_count=block.ref_count)

    def dec_ref(self, block_id: int) -> None:
        """One holder less; the last one to leave frees the block. Raises RefCountError on a free block."""
        block = self._block(block_id)
        if block.is_free:
            raise RefCountError(
                f"I2 ref-count: block {block_id} is free, its count is 0 and cannot go below; "
                "some holder gave its reference back twice"
            )
        if self._cached[block.block_id] > 1:
            self._cached[block.block_id] -= 1
        else:
            del self._cached[block.block_id]  # Counter: no error when it is not there
        block.ref_count -= 1
        self._tell("dec_ref", block_id=block.block_id, ref_count=block.ref_count)
        self._release_if_unheld(block)

    # ---- sharing (vLLM's fork and copy-on-write; chapter §3.1) ----------------------------

    def fork(self, table: T, name: str | None = None) -> T:
        """A second table over the same blocks, each with one reference more. No data moves. O(its blocks)."""
        self._admit(table)
        self._require_held(table)
        child = type(table)(table.block_size, table.offset)
        if name is not None:
            self._label(child, name)
        if child.offset:
            self._tell("offset", child, offset=child.offset)
        for index, block_id in enumerate(table.block_ids):
            block = self.blocks[block_id]
            block.ref_count += 1
            child.append_block(block_id)
            if self.observer is not None:
                self._tell(
                    "share",
                    child,
                    index=index,
                    block_id=block_id,
                    ref_count=block.ref_count,
                    source=self._name(table),
                )
        self._keep(child, self._stored.get(id(table), 0))
        return child

    def copy_on_write(self, table: Table, position: int) -> tuple[int, int] | None:
        """Give `table` a block of its own at `position`, if the one there is shared.

        Returns (source, copy), or None when the block was the table's own. O(1) blocks.

        Raises:
            IndexError: no such position. OutOfBlocksError: no free block for the copy.
        """
        self._admit(table)
        source = table.slot(position) // self.block_size
        if self.blocks[source].ref_count < 2:
            return None
        if not self._free:
            raise OutOfBlocksError(
                f"block {source} is shared by {self.blocks[source].ref_count} and no block is free "
                "for a copy; free a request or evict, then try again"
            )
        if self.pool is not None:
            self.pool.copy_block(source, self._free[0])  # first, so that a failure changes nothing
        copy = self._take()
        index = (table.offset + position) // self.block_size
        table.replace_block(index, copy)
        self.blocks[source].ref_count -= 1
        self._tell(
            "copy",
            table,
            index=index,
            block_id=copy,
            source=source,
            ref_count=1,
            source_ref_count=self.blocks[source].ref_count,
        )
        return source, copy

    def drop_front(self, table: Table, num_tokens: int) -> None:
        """Let the oldest tokens go: whole blocks are dropped, the offset takes up what is left over.

        Raises:
            ValueError: num_tokens < 0 or beyond the table's capacity.
        """
        self._admit(table)
        num_tokens = self._count("num_tokens", num_tokens)
        if num_tokens > max(0, table.capacity):
            raise ValueError(
                f"cannot drop {num_tokens} tokens from a table with a capacity of {table.capacity}"
            )
        self._require_held(table)
        whole, offset = divmod(table.offset + num_tokens, self.block_size)
        for block_id in table.block_ids[:whole]:
            self._drop(table, 0, block_id)
        table.drop_blocks(whole, offset)
        self._tell("offset", table, offset=offset)
        if id(table) in self._stored:
            self._stored[id(table)] = max(0, self._stored[id(table)] - num_tokens)
        if table.num_blocks == 0:
            self._forget(table)

    def release_all(self) -> None:
        """Take every block back, in the order handed out; tables of before are void. O(held blocks)."""
        released = list(self._used)
        for block_id in released:
            self.blocks[block_id].ref_count = 0
            self._free.append(block_id)
            if self.pool is not None:
                self.pool.release(block_id)
        self._stale.update(self._tables)
        self._used.clear()
        self._tables.clear()
        self._stored.clear()
        self._cached.clear()
        self._tell("reset", block_ids=released)

    # ---- writing, as far as it concerns the books ----------------------------------------

    def note_write(self, table: Table, start: int, stop: int, words: Sequence[str] = ()) -> None:
        """Say that K and V of positions start … stop-1 are about to be stored. O(blocks written).

        Whoever writes calls this first: it is here that a shared block or a missing one is noticed.

        Args:
            words: what the tokens are, one each; only pictures use them.

        Raises:
            InvariantError: I4, a block there is shared; I5, the table does not reach that far.
        """
        self._admit(table)
        if not 0 <= start <= stop:
            raise ValueError(f"positions [{start}, {stop}) are no range of positions")
        if stop > max(0, table.capacity):
            raise InvariantError(
                "I5", None, f"capacity: position {stop - 1} is beyond the table's {table.capacity} tokens"
            )
        for position in range(start, stop, self.block_size):
            self._require_own(table, position)
        if stop > start:
            self._require_own(table, stop - 1)
        self._stored[id(table)] = max(stop, self._stored.get(id(table), 0))
        if self.observer is not None:
            slots = [int(slot) for slot in table.slots(start, stop)]  # those that will be written
            self._tell("write", table, start=start, slots=slots, words=list(words) or ["·"] * len(slots))

    def _require_own(self, table: Table, position: int) -> None:
        block_id = table.slot(position) // self.block_size
        if self.blocks[block_id].ref_count > 1:
            raise InvariantError(
                "I4",
                block_id,
                f"no-shared-write: position {position} lies in block {block_id}, held by "
                f"{self.blocks[block_id].ref_count}; call copy_on_write first",
            )

    # ---- the invariants ------------------------------------------------------------------

    def check(self) -> None:
        """Verify I1, I2, I3 and I5 from scratch. O(num_blocks + table entries): for tests and for looking.

        I4 leaves no trace to find afterwards; `note_write` raises it at the moment of the write.

        Raises:
            InvariantError: with the invariant's name and the block.
        """
        self._check_conservation()
        self._check_ref_counts()
        for table in self._tables.values():
            stored = self._stored.get(id(table), 0)
            if stored > max(0, table.capacity):
                last = table.block_ids[-1] if table.num_blocks else None
                raise InvariantError(
                    "I5", last, f"capacity: {stored} tokens stored through a table of {table.capacity}"
                )

    def _check_conservation(self) -> None:
        queued = Counter(self._free)
        for block in self.blocks:
            times = queued[block.block_id] + (block.block_id in self._used)
            if times != 1:
                state = "both free and held or queued twice" if times > 1 else "neither free nor held"
                raise InvariantError("I1", block.block_id, f"conservation: block {block.block_id} is {state}")
            if block.is_free != (block.block_id in queued):
                raise InvariantError(
                    "I2",
                    block.block_id,
                    f"ref-count: block {block.block_id} has count {block.ref_count} but is "
                    + ("in the free queue" if block.block_id in queued else "not in the free queue"),
                )

    def _check_ref_counts(self) -> None:
        holders = Counter(self._cached)
        for table in self._tables.values():
            seen: set[int] = set()
            for block_id in table.block_ids:
                if block_id in seen:
                    raise InvariantError("I3", block_id, f"no-repeat: a table lists block {block_id} twice")
                seen.add(block_id)
            holders.update(seen)
        for block_id in holders.keys() | self._used.keys():
            if not 0 <= block_id < len(self.blocks):
                raise InvariantError(
                    "I1", block_id, f"conservation: a table lists block {block_id}, which does not exist"
                )
            count = self.blocks[block_id].ref_count
            if count != holders[block_id]:
                raise InvariantError(
                    "I2",
                    block_id,
                    f"ref-count: block {block_id} has count {count} and {holders[block_id]} holders",
                )

    # ---- plumbing ------------------------------------------------------------------------

    def _take(self) -> int:
        block_id = self._free.popleft()
        self.blocks[block_id].ref_count = 1
        self._used[block_id] = None
        self.max_allocated = max(self.max_allocated, len(self._used))
        return block_id

    def _drop(self, table: Table, index: int, block_id: int) -> None:
        block = self.blocks[block_id]
        block.ref_count -= 1
        self._tell("drop", table, index=index, block_id=block_id, ref_count=block.ref_count)
        self._release_if_unheld(block)

    def _release_if_unheld(self, block: KVBlock) -> None:
        if block.ref_count == 0:
            del self._used[block.block_id]
            self._free.append(block.block_id)
            if self.pool is not None:
                self.pool.release(block.block_id)
            self._tell("release", block_id=block.block_id)

    def _keep(self, table: Table, stored: int = 0) -> None:
        if table.num_blocks and id(table) not in self._tables:
            self._tables[id(table)] = table
            self._stored[id(table)] = stored

    def _forget(self, table: Table) -> None:
        self._tables.pop(id(table), None)
        self._stored.pop(id(table), None)

    def _admit(self, table: Table) -> None:
        """Accept a table of ours, an empty one, or one filled by hand with blocks taken by inc_ref."""
        if self._tables.get(id(table)) is table:
            return
        if table.block_size != self.block_size:
            raise ValueError(
                f"the table's block_size is {table.block_size}, the manager's {self.block_size}; "
                "make them equal"
            )
        if table.num_blocks == 0:
            self._stale.pop(id(table), None)
            return
        if self._stale.get(id(table)) is table:
            raise StaleTableError(
                "I1 conservation: this table was filled before release_all, its blocks may be "
                "somebody else's now; clear() it and allocate anew"
            )
        claims = Counter(table.block_ids)
        for block_id, times in claims.items():
            if self._cached[block_id] < times:
                raise StaleTableError(
                    f"I2 ref-count: this table lists block {block_id}, which this manager did not give it; "
                    "use the manager that filled it, or take the block with inc_ref first"
                )
        self._cached -= claims  # these references are the table's from now on
        self._keep(table)

    def _require_held(self, table: Table) -> None:
        for block_id in table.block_ids:
            if self._block(block_id).is_free:
                raise RefCountError(
                    f"I2 ref-count: block {block_id} is free although a table still lists it; "
                    "its reference was given back by dec_ref"
                )

    def _block(self, block_id: int) -> KVBlock:
        block_id = as_int(block_id)
        if not 0 <= block_id < len(self.blocks):
            raise IndexError(
                f"block {block_id} does not exist; the pool has blocks 0 to {len(self.blocks) - 1}"
            )
        return self.blocks[block_id]

    @staticmethod
    def _count(name: str, value: int) -> int:
        value = as_int(value)
        if value < 0:
            raise ValueError(f"{name} is {value}; it counts tokens, so it is 0 or more")
        return value

    def _tell(self, op: str, table: Table | None = None, **facts: Any) -> None:
        if self.observer is not None:
            request = {} if table is None else {"request": self._name(table)}
            self.observer({"op": op, **request, **facts})

    def _name(self, table: Table) -> str:
        """The table's own name, or the letter it was given when an observer first saw it."""
        name = getattr(table, "name", None)
        if name is None and id(table) in self._labels:
            name = self._labels[id(table)][1]
        return name or self._label(table, letters(len(self._labels)))

    def _label(self, table: Table, label: str) -> str:
        self._labels[id(table)] = (table, label)  # holds the table, so that its id() stays its own
        return label


def letters(number: int) -> str:
    """A, B, …, Z, AA, AB, … for 0, 1, 2, …"""
    label = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        label = chr(ord("A") + rest) + label
    return label
