"""Contiguous memory: the slots of a request lie side by side, in one run. (chapter §1)

What serving systems did before paging, made so that everything else here works with it unchanged:

    memory   a pool of ONE block, as large as the whole memory
    run      a block table whose one block is that, and which begins at an offset of its own
    hole     free memory between two runs

Two ways to live without knowing how long an answer becomes:

    reserve="max"    the longest it may become, at once. Nothing ever moves; most of it stays empty.
    reserve="grow"   the tokens so far and some headroom. When that is full, the run grows into the hole
                     behind it, or moves to another hole, and everything stored is copied there.

Either way a request may be refused although enough slots are free: they are not side by side.

A run moves in its own `allocate` and nowhere else, so nobody's slots change behind his back. To choose a
place costs O(holes), to move one O(tokens stored); what is in the pool is copied before the books change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar
from weakref import WeakValueDictionary

from minikv.admission import token_count, writable_range
from minikv.checks import whole_number
from minikv.engine.params import at_least
from minikv.engine.run import Run
from minikv.engine.run_memory import Memory
from minikv.errors import CacheValueError, OutOfBlocksError, StaleTableError
from minikv.invariants import broken
from minikv.news import News
from minikv.protocols import Observer
from minikv.sim.arena import Span

HEADROOM = 16  # slots reserved beyond the tokens so far, where nothing else was said

R = TypeVar("R", bound="Run")


class SlotPool(Protocol):
    """The storage, which is told when slots are copied or let go. `release_slots` must not fail."""

    def copy_slots(self, src: int, dst: int, count: int) -> int: ...
    def release_slots(self, start: int, stop: int) -> None: ...


@dataclass
class _Holding:
    """What the manager keeps of a run beside its place."""

    table: Run
    stored: int = 0  # tokens that note_write was told of; the pool may hold more, written in its name
    words: list[str] = field(default_factory=list)  # of these; only kept while somebody observes


class ContiguousManager:
    """Hands out runs of slots and takes them back. Same methods as KVCacheManager, for tables that are Runs.

    block_size and num_blocks are the pool's shape: one block, the whole memory. With one block there would be
    nothing to count, so figures (num_free_blocks, snapshot and the like) and events count slots: as if each
    slot were a block of one. An observer hears of a "pool" of num_slots such blocks; of an "allocate", or
    a "drop" and a "release", for each slot; and, after slots came back, of a "queue" with the free ones by
    address. A move is told as what it is: everything let go, other slots taken, everything written again.

    Args:
        num_slots: token slots of the memory, at least 1.
        reserve: "max": a request's max_length at once. "grow": its tokens and `headroom`, again and again.
        max_length: the most tokens that a request may hold, unless its table says less; None is num_slots,
            and then reserve="max" runs one request at a time, unless the tables say less.
        headroom: slots beyond the tokens so far, 0 or more; for reserve="grow" only, where None is 16.
        pool: the storage, BlockPool(num_blocks=1, block_size=num_slots, …); None keeps books only.
        observer: called with a dict for every state change; None costs nothing.

    Raises:
        CacheValueError (a ValueError): a number that is too small or too large, another way to reserve, a
            headroom that nobody would use, a pool of another shape. TypeError: a number that is no integer.
    """

    num_blocks = 1

    def __init__(
        self,
        num_slots: int,
        reserve: Literal["max", "grow"] = "max",
        max_length: int | None = None,
        headroom: int | None = None,
        pool: SlotPool | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.block_size = self.num_slots = _fitting(at_least("num_slots", num_slots, 1), pool)
        if reserve not in ("max", "grow"):
            raise CacheValueError(f'reserve is {reserve!r}; it must be "max" or "grow"')
        if reserve == "max" and headroom is not None:
            raise CacheValueError(f'headroom is {headroom}, but reserve="max" never grows; leave it out')
        self.reserve = reserve
        self.max_length = self.num_slots if max_length is None else at_least("max_length", max_length, 1)
        if self.max_length > self.num_slots:
            raise CacheValueError(f"max_length is {max_length}, but memory has only {num_slots} slots")
        self.headroom = HEADROOM if headroom is None else at_least("headroom", headroom, 0)
        self.pool = pool
        self.max_allocated = 0
        self.tokens_moved = 0  # copied by growth and forks since the beginning
        self._memory = Memory(self.num_slots)  # runs by id() of their tables
        self._held: dict[int, _Holding] = {}  # by id() too, in the order taken
        self._stale: WeakValueDictionary[int, Run] = WeakValueDictionary()  # void since release_all
        self._news = News(observer)
        self._news.add("pool", num_blocks=self.num_slots, block_size=1)
        self._news.send()

    # ---- what there is; in slots -----------------------------------------------------------

    @property
    def num_free_blocks(self) -> int:
        """Free slots, side by side or not. That a request of so many fits is not said: see largest_hole."""
        return self._memory.free_slots

    @property
    def largest_hole(self) -> int:
        """Slots of the largest hole: more than that finds no place, however many are free. O(holes)."""
        return self._memory.largest_hole

    @property
    def holes(self) -> list[Span]:
        """The holes as (start, slots), in address order. A copy."""
        return self._memory.holes

    @property
    def allocated_blocks(self) -> int:
        """Slots reserved now, with a token in them or not."""
        return self.num_slots - self._memory.free_slots

    @property
    def utilization(self) -> float:
        """Share of the slots that is reserved now, in [0, 1]."""
        return self.allocated_blocks / self.num_slots

    @property
    def tables(self) -> tuple[Run, ...]:
        """The tables that hold slots now, in the order in which they began."""
        return tuple(holding.table for holding in self._held.values())

    @property
    def observer(self) -> Observer | None:
        return self._news.observer

    @observer.setter
    def observer(self, observer: Observer | None) -> None:
        self._news.observe(observer)

    def snapshot(self) -> dict[str, Any]:
        """KVCacheManager's figures, with slots for blocks; every count is 1. O(slots held)."""
        used = [slot for table in self.tables for slot in _slots(table)]
        return {
            "allocated_blocks": self.allocated_blocks,
            "utilization": self.utilization,
            "max_allocated": self.max_allocated,
            "total_blocks": self.num_slots,
            "free_blocks": self.num_free_blocks,
            "used_blocks": used,
            "ref_counts": dict.fromkeys(used, 1),
        }

    def has_room_for(self, length: int, runs: int = 1) -> bool:
        """Whether so many runs, of max_length `length` each, always find room in a memory that was empty.

        reserve="max": runs * length slots do. "grow": the runs may leave as many holes as there are runs,
        so the one that grows is sure of a place only with (2 * runs - 1) * length slots.
        """
        length, runs = at_least("length", length, 1), at_least("runs", runs, 1)
        return length * (runs if self.reserve == "max" else 2 * runs - 1) <= self.num_slots

    def check(self) -> None:
        """Count everything again. InvariantError names the invariant (I1 or I5) and the slot. O(runs)."""
        _check_cover(self._memory)
        _check_tables(self._memory, self._held)

    # ---- allocate and free -----------------------------------------------------------------

    def allocate(self, table: Run, num_tokens: int) -> bool:
        """See to it that `table` has slots for at least `num_tokens` tokens; its KV may move, and is kept.

        All or nothing: False, and nothing has changed, where no hole takes what is to be reserved (with
        headroom, as far as max_length allows). A request that is alone never hears False for tokens that
        memory can hold. In order of preference a run grows in place, moves to the first hole that is large
        enough, or slides towards lower addresses, over the hole before it.

        Raises:
            ValueError: num_tokens < 0, or above a max_length that was named; a table of another memory.
            StaleTableError: the table's run is not this manager's. TypeError: the table is no Run.
        """
        num_tokens = token_count(num_tokens)
        self._know(table)
        if num_tokens <= table.capacity:
            return True
        size = self._size(table, num_tokens)
        start = self._room(table, size)
        if start is None:
            self._news.add("full", table, needed=size, free=self.num_free_blocks)
        elif id(table) in self._held:
            self._grow(table, start, size)
        else:
            self._begin(_Holding(table), size)
        self._news.send()
        return start is not None

    def free(self, table: Run) -> None:
        """Give the table's slots back and clear it. A table without slots is fine: to free twice is once.

        Raises: as `allocate`.
        """
        self._know(table)
        if id(table) not in self._held:
            return
        start, stop = table.offset, table.offset + table.capacity
        self._tell_gone(table, ((slot - start, slot) for slot in reversed(range(start, stop))))
        table.clear()
        self._memory.free(id(table))
        del self._held[id(table)]
        self._forget_slots(start, stop)
        self._tell_free()
        self._news.send()

    def release_all(self) -> None:
        """Take every run back; tables of before are void."""
        self._stale.update((key, holding.table) for key, holding in self._held.items())
        released = self.snapshot()["used_blocks"]
        for table in self.tables:
            self._memory.free(id(table))
            self._forget_slots(table.offset, table.offset + table.capacity)
        self._held.clear()
        self._news.add("reset", block_ids=released)
        self._tell_free()
        self._news.send()

    # ---- what blocks make cheap ------------------------------------------------------------

    def fork(self, table: R, name: str | None = None) -> R:
        """A second run of the same capacity, and a copy of everything stored: nothing here can be shared.

        Args:
            name: what pictures and event logs call the new table.

        Raises:
            OutOfBlocksError: no hole is large enough, and nothing has changed. Else as `allocate`.
        """
        self._know(table)
        child = type(table)(self.block_size, name, table.max_length)
        if id(table) not in self._held:
            return child
        size, parent = table.capacity, self._held[id(table)]
        start = self._memory.find(size)
        if start is None:
            raise OutOfBlocksError(
                f"the copy takes {size} slots side by side; {self.num_free_blocks} are free, but the largest "
                f"hole has {self.largest_hole}; free a request, then try again"
            )
        self._copy(parent, start)
        self._begin(_Holding(child, parent.stored, list(parent.words)), size)
        self._tell_kept(child)
        self._news.send()
        return child

    def copy_on_write(self, table: Run, position: int) -> None:
        """Nothing to do: every slot has one holder. IndexError: no such position. Else as `allocate`."""
        position = whole_number("position", position)
        self._know(table)
        table.slot(position)

    def drop_front(self, table: Run, num_tokens: int) -> None:
        """Let the oldest tokens go: position 0 is now num_tokens slots further on, those before it are free.

        A run that is too short later grows as ever; in reserve="max" back to max_length, if there is room.

        Raises:
            ValueError: num_tokens < 0 or beyond the table's capacity. Else as `allocate`.
        """
        num_tokens = token_count(num_tokens)
        self._know(table)
        if num_tokens > table.capacity:
            raise CacheValueError(
                f"cannot drop {num_tokens} tokens from a table with a capacity of {table.capacity}"
            )
        if num_tokens == 0:
            return
        if num_tokens == table.capacity:
            self.free(table)
            return
        start, holding = table.offset, self._held[id(table)]
        self._tell_gone(table, ((0, slot) for slot in range(start, start + num_tokens)))
        table.place(start + num_tokens, table.capacity - num_tokens)
        self._memory.place(id(table), table.offset, table.capacity)
        holding.stored = max(0, holding.stored - num_tokens)
        del holding.words[:num_tokens]
        self._forget_slots(start, table.offset)
        self._tell_free()
        self._news.send()

    # ---- writing, as far as it concerns the books ------------------------------------------

    def note_write(self, table: Run, start: int, stop: int, words: Sequence[str] = ()) -> None:
        """Say that K and V of positions start … stop-1 are about to be stored.

        Args:
            words: what the tokens are, one each, or none; only pictures use them.

        Raises:
            InvariantError: I5, the run does not reach that far.
            ValueError: no range of positions, or not one word each. Else as `allocate`.
        """
        start, stop = whole_number("start", start), whole_number("stop", stop)
        self._know(table)
        writable_range(table, start, stop, len(words))
        if start == stop:
            return
        holding = self._held[id(table)]
        holding.stored = max(stop, holding.stored)
        if self._news.wanted:
            shown = list(words) or ["·"] * (stop - start)
            holding.words += ["·"] * (start - len(holding.words))
            holding.words[start:stop] = shown
            self._news.add("write", table, start=start, slots=list(_slots(table)[start:stop]), words=shown)
        self._news.send()

    # ---- where a run goes ------------------------------------------------------------------

    def _know(self, table: Run) -> None:
        """A Run that holds slots of this manager, or none."""
        if not isinstance(table, Run):
            raise TypeError(f"contiguous memory needs tables that are Runs, not {type(table).__name__}")
        if id(table) in self._held:
            return
        if table.block_size != self.block_size:
            raise CacheValueError(
                f"the table's block_size is {table.block_size}, memory has {self.block_size} slots; "
                "make them equal"
            )
        if table.capacity and self._stale.get(id(table)) is table:
            raise StaleTableError(
                "I1 conservation: this table was filled before release_all, its slots may be somebody "
                "else's now; clear() it and allocate anew"
            )
        if table.capacity:
            raise StaleTableError(
                f"I1 conservation: this table holds {table.capacity} slots that this manager did not give "
                "it; use the manager that filled it"
            )

    def _size(self, table: Run, num_tokens: int) -> int:
        """Slots to reserve for a request that has come to so many tokens."""
        limit = self.max_length if table.max_length is None else table.max_length
        if limit > self.max_length:
            raise CacheValueError(f"the table's max_length is {limit}, the manager's is {self.max_length}")
        if num_tokens > limit:
            if limit == self.num_slots:
                return num_tokens  # which no hole has
            raise CacheValueError(
                f"num_tokens is {num_tokens}, but the request was to hold {limit} at most; name a larger "
                "max_length before it begins"
            )
        return limit if self.reserve == "max" else min(num_tokens + self.headroom, limit)

    def _room(self, table: Run, size: int) -> int | None:
        """Where a run of this size can begin; None: nowhere."""
        if id(table) not in self._held:
            return self._memory.find(size)
        first, room = self._memory.around(id(table))
        if table.offset + size <= first + room:
            return table.offset
        hole = self._memory.find(size)
        if hole is not None:
            return hole
        return first if size <= room else None

    def _begin(self, holding: _Holding, size: int) -> None:
        """Give a table without slots its first ones, in the first hole that is large enough."""
        table = holding.table
        start = self._memory.allocate(id(table), size)
        assert start is not None  # the caller has looked
        table.place(start, size)
        self._held[id(table)] = holding
        self._stale.pop(id(table), None)
        self.max_allocated = max(self.max_allocated, self.allocated_blocks)
        self._tell_here(table, 0)

    def _grow(self, table: Run, start: int, size: int) -> None:
        """Make a run longer, from `start` on. If that is another place, take along what is stored."""
        holding, old, held = self._held[id(table)], table.offset, table.capacity
        if start == old:
            table.place(start, size)
            self._memory.place(id(table), start, size)
            self._tell_here(table, held)
        else:
            self._copy(holding, start)
            self._tell_gone(table, ((slot - old, slot) for slot in reversed(range(old, old + held))))
            table.place(start, size)
            self._memory.place(id(table), start, size)
            # A run that slid lies on a part of its old place; the marks there are those of the copy.
            kept = start + held if start < old else old
            self._forget_slots(max(old, kept), old + held)
            self._tell_here(table, 0)
            self._tell_kept(table)
            self._tell_free()
        self.max_allocated = max(self.max_allocated, self.allocated_blocks)

    def _copy(self, holding: _Holding, dst: int) -> None:
        """Copy what is stored of a run to another place. If the pool cannot, nothing has changed.

        Of what the whole run holds: the pool knows better than note_write how far it was written.
        """
        table, moved = holding.table, holding.stored
        if self.pool is not None:
            moved = self.pool.copy_slots(table.offset, dst, table.capacity)
        self.tokens_moved += moved

    def _forget_slots(self, start: int, stop: int) -> None:
        if self.pool is not None and start < stop:
            self.pool.release_slots(start, stop)

    # ---- what an observer hears; each slot a block of one ----------------------------------

    def _tell_here(self, table: Run, first: int) -> None:
        """Entries `first` … of the table are new."""
        if self._news.wanted:
            for index, slot in list(enumerate(_slots(table)))[first:]:
                self._news.add("allocate", table, index=index, block_id=slot, ref_count=1)

    def _tell_gone(self, table: Run, entries: Iterable[tuple[int, int]]) -> None:
        """These entries, as (index, slot), leave the table one by one."""
        if self._news.wanted:
            for index, slot in entries:
                self._news.add("drop", table, index=index, block_id=slot, ref_count=0)
                self._news.add("release", block_id=slot)

    def _tell_kept(self, table: Run) -> None:
        """What is stored was written to new slots."""
        words = self._held[id(table)].words
        if self._news.wanted and words:
            slots = list(_slots(table)[: len(words)])
            self._news.add("write", table, start=0, slots=slots, words=list(words))

    def _tell_free(self) -> None:
        if self._news.wanted:
            free = [slot for start, size in self.holes for slot in range(start, start + size)]
            self._news.add("queue", block_ids=free)


def _slots(table: Run) -> range:
    """The flat slots of a run."""
    return range(table.offset, table.offset + table.capacity)


def _fitting(num_slots: int, pool: SlotPool | None) -> int:
    """num_slots, if the pool is one block of so many."""
    shape = getattr(pool, "num_blocks", 1), getattr(pool, "block_size", num_slots)
    if shape != (1, num_slots):
        raise CacheValueError(
            f"the pool has num_blocks={shape[0]} and block_size={shape[1]}; contiguous memory of {num_slots} "
            f"slots is a pool of one block: BlockPool(num_blocks=1, block_size={num_slots}, …)"
        )
    return num_slots


def _check_cover(memory: Memory) -> None:
    """I1: runs and holes, one after the other, are the whole memory."""
    end = 0
    for start, size in sorted([*memory.spans.values(), *memory.holes]):
        if start < end:
            raise broken("I1", start, f"slot {start} belongs to two runs, or is held and free")
        if start > end:
            raise broken("I1", end, f"slot {end} is neither free nor held")
        end = start + size
    if end != memory.num_slots:
        raise broken("I1", end, f"runs and holes end at slot {end}, memory at {memory.num_slots}")
    if memory.free_slots != (free := sum(size for _, size in memory.holes)):
        raise broken("I1", None, f"{memory.free_slots} slots count as free, but the holes have {free}")


def _check_tables(memory: Memory, held: dict[int, _Holding]) -> None:
    """I1: every run has its table, which says the same. I5: it is as long as what was stored."""
    spans = memory.spans
    for key, (start, _) in spans.items():
        if key not in held:
            raise broken("I1", start, f"the run from slot {start} on is held, but by no table")
    for key, holding in held.items():
        table, span = holding.table, spans.get(key)
        if span != (table.offset, table.capacity) or table.block_ids != (0,):
            raise broken("I1", table.offset, f"{table!r} is not what the books say: {span} as (start, slots)")
        if holding.stored > table.capacity:
            raise broken(
                "I5", table.offset, f"{holding.stored} tokens were stored through a table of {table.capacity}"
            )
