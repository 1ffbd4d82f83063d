"""A second opinion on contiguous memory: one list entry a slot, and every question looks at all of them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from minikv.engine.contiguous import ContiguousManager, Run
from minikv.errors import InvariantError, KVCacheError, OutOfBlocksError, StaleTableError

MAX_TABLES = 5


class SlotList:
    """A pool with anything per slot; None was never written. It fails to copy when told so."""

    def __init__(self, num_slots: int) -> None:
        self.slots: list[Any] = [None] * num_slots
        self.failing = False

    def copy_slots(self, src: int, dst: int, count: int) -> int:
        if self.failing:
            raise RuntimeError("no memory")
        found = self.slots[src : src + count]
        self.slots[dst : dst + count] = found
        return sum(each is not None for each in found)

    def release_slots(self, start: int, stop: int) -> None:
        self.slots[start:stop] = [None] * (stop - start)


class Plain:
    """Contiguous memory, slowly: owners[slot] is a name or None, kv[slot] what is written there."""

    def __init__(self, num_slots: int, reserve: str, max_length: int, headroom: int | None) -> None:
        self.reserve, self.longest, self.headroom = reserve, max_length, headroom or 0
        self.owners: list[str | None] = [None] * num_slots
        self.kv: list[Any] = [None] * num_slots
        self.limits: dict[str, int] = {}
        self.moved = self.peak = 0

    def slots(self, name: str) -> list[int]:
        return [slot for slot, owner in enumerate(self.owners) if owner == name]

    def is_free(self, start: int, size: int, besides: str | None = None) -> bool:
        wanted = self.owners[start : start + size]
        return len(wanted) == size and all(owner in (None, besides) for owner in wanted)

    def first_fit(self, size: int) -> int | None:
        return next((s for s in range(len(self.owners)) if self.is_free(s, size)), None)

    def room(self, name: str, size: int) -> int | None:
        own = self.slots(name)
        if own and self.is_free(own[0], size, name):
            return own[0]
        found = self.first_fit(size)
        if found is None and own:
            first = own[0]
            while first and self.owners[first - 1] is None:
                first -= 1
            found = first if self.is_free(first, size, name) else None
        return found

    def settle(self, name: str, start: int, size: int, source: list[int]) -> None:
        """Take these slots, with what was in `source`; what `name` held before is let go."""
        kept = [self.kv[slot] for slot in source]
        old = self.slots(name)
        if start not in old[:1]:
            self.moved += sum(each is not None for each in kept)
        for slot in old:
            self.owners[slot] = self.kv[slot] = None
        for slot in range(start, start + size):
            self.owners[slot] = name
        self.kv[start : start + len(kept)] = kept
        self.peak = max(self.peak, sum(owner is not None for owner in self.owners))

    def allocate(self, name: str, tokens: int) -> Any:
        own = self.slots(name)
        if tokens <= len(own):
            return True
        limit = self.limits[name]
        if tokens > limit and limit < len(self.owners):
            return ValueError
        size = max(tokens, limit if self.reserve == "max" else min(tokens + self.headroom, limit))
        start = self.room(name, size)
        if start is None:
            return False
        self.settle(name, start, size, own)
        return True

    def fork(self, name: str, child: str) -> Any:
        own = self.slots(name)
        self.limits[child] = self.limits[name]
        start = self.first_fit(len(own)) if own else 0
        if start is None:
            return OutOfBlocksError
        self.settle(child, start, len(own), own)
        return True

    def drop(self, name: str, count: int) -> None:
        for slot in self.slots(name)[:count]:
            self.owners[slot] = self.kv[slot] = None


class Walk:
    """One manager and the plain memory, led through the same operations. AssertionError where they differ."""

    OPS = (
        *("allocate",) * 7,
        *("write",) * 6,
        *("free", "fork", "drop_front", "note_write", "copy_on_write", "fail") * 2,
    )

    def __init__(
        self,
        num_slots: int,
        reserve: Any,
        max_length: int,
        headroom: int | None,
        kind: type[ContiguousManager] = ContiguousManager,
        observer: Any = None,
    ) -> None:
        self.pool = SlotList(num_slots)
        self.manager = kind(num_slots, reserve, max_length, headroom, self.pool, observer)
        self.plain = Plain(num_slots, reserve, max_length, headroom)
        self.tables: dict[str, Run] = {}
        self.born = self.written = 0
        self.seen: Counter[str] = Counter()

    def random_steps(self, steps: int, seed: int) -> None:
        self.chance = random.Random(seed)
        for _ in range(steps):
            getattr(self, self.chance.choice(self.OPS) if self.chance.random() > 0.004 else "release_all")()
            self.compare()
            self.manager.check()

    def compare(self) -> None:
        manager, plain = self.manager, self.plain
        for name, table in self.tables.items():
            own = plain.slots(name)
            assert (table.offset if own else 0, table.capacity) == (own[0] if own else 0, len(own)), name
            assert table.num_blocks == bool(own)
        assert self.pool.slots == plain.kv, "what is in the pool"
        assert manager.num_free_blocks == plain.owners.count(None)
        assert (manager.tokens_moved, manager.max_allocated) == (plain.moved, plain.peak)
        free = [slot for start, size in manager.holes for slot in range(start, start + size)]
        assert free == [slot for slot, owner in enumerate(plain.owners) if owner is None]

    # ---- operations ----

    def pick(self) -> str:
        if not self.tables or (len(self.tables) < MAX_TABLES and self.chance.random() < 0.2):
            self.born += 1
            name = f"T{self.born}"
            longest = self.plain.longest
            own = self.chance.choice([None, None, longest, max(1, longest // 2)])
            self.tables[name] = Run(len(self.plain.owners), name, own)
            self.plain.limits[name] = longest if own is None else own
        return self.chance.choice(list(self.tables))

    def tokens(self, name: str) -> int:
        """Rather a few more than it has; now and then as many as there are."""
        if self.chance.random() < 0.05:
            return self.chance.randrange(len(self.plain.owners) + 3)
        return len(self.plain.slots(name)) + self.chance.randrange(-2, 5) if self.plain.slots(name) else 3

    def allocate(self) -> None:
        name = self.pick()
        tokens, before = max(0, self.tokens(name)), self.plain.moved
        expected = self.plain.allocate(name, tokens)
        got = outcome(self.manager.allocate, self.tables[name], tokens)
        assert got is expected if isinstance(expected, bool) else isinstance(got, expected), (expected, got)
        self.seen["moved"] += self.plain.moved > before
        self.seen["refused"] += expected is False

    def write(self) -> None:
        """Some tokens behind those written; every second time without saying so, as a scheduler may."""
        name = self.pick()
        own = self.plain.slots(name)
        used = next((i for i, slot in enumerate(own) if self.plain.kv[slot] is None), len(own))
        stop = min(len(own), used + self.chance.randrange(1, 5))
        if self.chance.random() < 0.5:
            self.manager.note_write(self.tables[name], used, stop)
        for position in range(used, stop):
            self.written += 1
            self.plain.kv[own[position]] = self.written
            self.pool.slots[self.tables[name].slot(position)] = self.written

    def free(self) -> None:
        name = self.pick()
        table = self.tables.pop(name)
        self.manager.free(table)
        self.plain.drop(name, len(self.plain.owners))
        assert (table.block_ids, table.offset, table.capacity) == ((), 0, 0)

    def fork(self) -> None:
        if len(self.tables) >= MAX_TABLES:
            return
        name = self.pick()
        self.born += 1
        child = f"T{self.born}"
        expected, got = self.plain.fork(name, child), outcome(self.manager.fork, self.tables[name], child)
        if expected is True:
            assert isinstance(got, Run), got
            assert got.max_length == self.tables[name].max_length
            self.tables[child] = got
            self.seen["forked"] += 1
        else:
            assert isinstance(got, expected), got

    def drop_front(self) -> None:
        name = self.pick()
        count = self.chance.randrange(len(self.plain.slots(name)) + 2)
        got = outcome(self.manager.drop_front, self.tables[name], count)
        if count > len(self.plain.slots(name)):
            assert isinstance(got, ValueError)
        else:
            assert got is None, got
            self.plain.drop(name, count)

    def note_write(self) -> None:
        name = self.pick()
        capacity = len(self.plain.slots(name))
        got = outcome(self.manager.note_write, self.tables[name], capacity, capacity + 1)
        assert isinstance(got, InvariantError) and got.invariant == "I5", got

    def copy_on_write(self) -> None:
        name = self.pick()
        position, capacity = self.chance.randrange(-1, 8), len(self.plain.slots(name))
        got = outcome(self.manager.copy_on_write, self.tables[name], position)
        assert got is None if 0 <= position < capacity else isinstance(got, IndexError), got

    def fail(self) -> None:
        """A pool that cannot copy: an operation that needs a copy has not happened, any other has."""
        name = self.pick()
        tokens = max(0, self.tokens(name))
        self.pool.failing = True
        got = outcome(self.manager.allocate, self.tables[name], tokens)
        self.pool.failing = False
        if isinstance(got, RuntimeError):
            self.seen["failed"] += 1
        else:
            self.plain.allocate(name, tokens)

    def release_all(self) -> None:
        void = [table for table in self.tables.values() if table.capacity]
        for name in self.tables:
            self.plain.drop(name, len(self.plain.owners))
        self.tables.clear()
        self.manager.release_all()
        for table in void:
            assert isinstance(outcome(self.manager.allocate, table, 1), StaleTableError)


def outcome(operation: Any, *arguments: Any) -> Any:
    """What it returns, or the error it raises."""
    try:
        return operation(*arguments)
    except (KVCacheError, ValueError, IndexError, RuntimeError) as error:
        return error


def caught(kind: type[ContiguousManager], memories: list[Any]) -> str | None:
    """What the walk says of this manager; None if it finds nothing."""
    for seed, memory in enumerate(memories):
        try:
            Walk(*memory, kind).random_steps(1500, seed)
        except (AssertionError, KVCacheError, ValueError, LookupError) as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return None
