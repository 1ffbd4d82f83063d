"""A second opinion on the manager: the same operations, done the slow and obvious way.

`Books` is a list of free blocks, a list per table and a list of cached references; a count is
counted, never kept. `Walk` does each operation on both and compares everything that can be seen.
"""

from __future__ import annotations

import random
from typing import Any

from minikv.block_table import BlockTable
from minikv.errors import InvariantError, KVCacheError, OutOfBlocksError, RefCountError, StaleTableError
from minikv.manager import KVCacheManager

MAX_TABLES = 5


class Books:
    """Free list, tables, cached references. A wrong request raises what the manager should raise."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free = list(range(num_blocks))
        self.used: list[int] = []  # in the order taken
        self.tables: dict[str, list[int]] = {}
        self.offsets: dict[str, int] = {}
        self.cached: list[int] = []
        self.most_used = 0
        self.pool_calls: list[tuple[str, *tuple[int, ...]]] = []

    def count(self, block: int) -> int:
        return sum(table.count(block) for table in self.tables.values()) + self.cached.count(block)

    def capacity(self, name: str) -> int:
        return max(0, len(self.tables[name]) * self.block_size - self.offsets[name])

    def entry(self, name: str, position: int) -> int:
        if not 0 <= position < self.capacity(name):
            raise IndexError
        return (self.offsets[name] + position) // self.block_size

    def open(self, name: str, offset: int) -> None:
        self.tables[name], self.offsets[name] = [], offset

    def allocate(self, name: str, num_tokens: int) -> bool:
        if num_tokens < 0:
            raise ValueError
        wanted = list(self.tables[name])
        while num_tokens and len(wanted) * self.block_size - self.offsets[name] < num_tokens:
            wanted.append(-1)
        needed = len(wanted) - len(self.tables[name])
        if needed > len(self.free):
            return False
        for _ in range(needed):
            self.tables[name].append(self._take())
        return True

    def free_table(self, name: str) -> None:
        while self.tables[name]:
            self._settle(self.tables[name].pop())
        del self.tables[name], self.offsets[name]

    def fork(self, name: str, child: str) -> None:
        self.tables[child], self.offsets[child] = list(self.tables[name]), self.offsets[name]

    def copy_on_write(self, name: str, position: int) -> tuple[int, int] | None:
        index = self.entry(name, position)
        source = self.tables[name][index]
        if self.count(source) == 1:
            return None
        if not self.free:
            raise OutOfBlocksError
        copy = self.tables[name][index] = self._take()
        self.pool_calls.append(("copy", source, copy))
        return source, copy

    def drop_front(self, name: str, num_tokens: int) -> None:
        if not 0 <= num_tokens <= self.capacity(name):
            raise ValueError
        for _ in range(num_tokens):
            self.offsets[name] += 1
            if self.offsets[name] == self.block_size:
                self.offsets[name] = 0
                self._settle(self.tables[name].pop(0))

    def inc_ref(self, block: int) -> None:
        self._look(block)
        self.cached.append(block)

    def dec_ref(self, block: int) -> None:
        self._look(block)
        self.cached.remove(block)
        self._settle(block)

    def by_hand(self, name: str, blocks: list[int], offset: int) -> None:
        for block in blocks:
            self.cached.remove(block)
        self.tables[name], self.offsets[name] = list(blocks), offset

    def note_write(self, name: str, start: int, stop: int) -> None:
        if not 0 <= start <= stop:
            raise ValueError
        if stop > self.capacity(name):
            raise InvariantError("I5", None, "")
        for position in range(start, stop):
            block = self.tables[name][self.entry(name, position)]
            if self.count(block) > 1:
                raise InvariantError("I4", block, "")

    def release_all(self) -> None:
        self.tables, self.offsets, self.cached = {}, {}, []
        for block in list(self.used):
            self._settle(block)

    def _take(self) -> int:
        block = self.free.pop(0)
        self.used.append(block)
        self.most_used = max(self.most_used, len(self.used))
        return block

    def _settle(self, block: int) -> None:
        if self.count(block) == 0:
            self.used.remove(block)
            self.free.append(block)
            self.pool_calls.append(("release", block))

    def _look(self, block: int) -> None:
        if not 0 <= block < self.num_blocks:
            raise IndexError
        if self.count(block) == 0:
            raise RefCountError


class ListeningPool:
    """A pool that only remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, *tuple[int, ...]]] = []

    def copy_block(self, src: int, dst: int) -> None:
        self.calls.append(("copy", src, dst))

    def release(self, block_id: int) -> None:
        self.calls.append(("release", block_id))


class Walk:
    """One manager and its books, led through the same operations. AssertionError where they differ.

    Each operation takes three numbers, and finds something to do with whatever they are: now and
    then something that is not allowed.
    """

    OPS = (
        *("allocate",) * 6,
        *("free", "fork", "copy_on_write", "drop_front", "inc_ref", "dec_ref", "note_write") * 2,
        "by_hand",
    )

    def __init__(
        self,
        num_blocks: int = 8,
        block_size: int = 4,
        kind: type[KVCacheManager] = KVCacheManager,
        observer: Any = None,
    ) -> None:
        self.pool = ListeningPool()
        self.manager = kind(num_blocks, block_size, self.pool, observer)
        self.books = Books(num_blocks, block_size)
        self.tables: dict[str, BlockTable] = {}
        self.born = 0

    def step(self, op: str, a: int, b: int, c: int) -> None:
        """One operation on both, then everything compared and checked."""
        getattr(self, op)(a, b, c)
        self.compare()
        self.manager.check()

    def random_steps(self, steps: int, seed: int) -> None:
        """A long way, the same for the same seed. `release_all` comes about every hundred steps."""
        chance = random.Random(seed)
        for _ in range(steps):
            op = chance.choice(self.OPS) if chance.random() > 0.01 else "release_all"
            number = chance.getrandbits(48)
            self.step(op, number & 0xFFFF, number >> 16 & 0xFFFF, number >> 32)

    def compare(self) -> None:
        manager, books = self.manager, self.books
        assert manager.free_queue == tuple(books.free), "the free queue"
        assert [block.ref_count for block in manager.blocks] == [
            books.count(block) for block in range(books.num_blocks)
        ], "the ref counts"
        assert list(manager.snapshot()["used_blocks"]) == books.used
        assert manager.max_allocated == books.most_used
        assert self.pool.calls == books.pool_calls, "what the pool was told"
        self.pool.calls.clear()
        books.pool_calls.clear()
        for name, table in self.tables.items():
            assert table.block_ids == tuple(books.tables[name]), f"table {name}"
            assert table.offset == books.offsets[name], f"the offset of {name}"

    def _both(self, op: str, ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> Any:
        """The same outcome from both: the same answer or the same kind of error."""
        expected = _outcome(getattr(self.books, "free_table" if op == "free" else op), theirs)
        got = _outcome(getattr(self.manager, op), ours)
        if isinstance(expected, Exception):
            assert isinstance(got, type(expected)), f"{op}{theirs}: {expected!r} was due, not {got!r}"
            if isinstance(expected, InvariantError):
                assert isinstance(got, InvariantError) and got.invariant == expected.invariant
        else:
            assert not isinstance(got, Exception), f"{op}{theirs}: {got!r}"
        return expected, got

    def _pick(self, number: int) -> str:
        """One of the tables; every fifth time, or if there is none, a new one."""
        names = list(self.tables)
        if not names or (number % 5 == 0 and len(names) < MAX_TABLES):
            return self._new(BlockTable(self.books.block_size, number // 5 % self.books.block_size))
        return names[number // 5 % len(names)]

    def _new(self, table: BlockTable) -> str:
        self.born += 1
        name = table.name = f"T{self.born}"
        self.tables[name] = table
        self.books.open(name, table.offset)
        return name

    def allocate(self, a: int, b: int, c: int) -> None:
        name, tokens = (
            self._pick(a),
            b % (self.books.num_blocks * self.books.block_size + 3) // (1 + c % 3) - 1,
        )
        expected, got = self._both("allocate", (self.tables[name], tokens), (name, tokens))
        if not isinstance(expected, Exception):
            assert got is expected, f"allocate {tokens}: {expected} was due"

    def free(self, a: int, b: int, c: int) -> None:
        name = self._pick(a)
        table = self.tables.pop(name)
        self._both("free", (table,), (name,))
        assert (table.block_ids, table.offset) == ((), 0)

    def fork(self, a: int, b: int, c: int) -> None:
        if len(self.tables) >= MAX_TABLES:
            return
        name = self._pick(a)
        self.born += 1
        child = f"T{self.born}"
        self.tables[child] = self.manager.fork(self.tables[name], child)
        self.books.fork(name, child)

    def copy_on_write(self, a: int, b: int, c: int) -> None:
        name = self._pick(a)
        position = b % (self.books.capacity(name) + 2) - 1
        expected, got = self._both("copy_on_write", (self.tables[name], position), (name, position))
        if not isinstance(expected, Exception):
            assert got == expected, f"copy_on_write: {expected} was due, not {got}"

    def drop_front(self, a: int, b: int, c: int) -> None:
        name = self._pick(a)
        tokens = b % (self.books.capacity(name) + 3) - 1
        self._both("drop_front", (self.tables[name], tokens), (name, tokens))

    def inc_ref(self, a: int, b: int, c: int) -> None:
        block = a % (self.books.num_blocks + 2) - 1
        if len(self.books.cached) < 4 or self.books.free.count(block):
            self._both("inc_ref", (block,), (block,))

    def dec_ref(self, a: int, b: int, c: int) -> None:
        candidates = [*self.books.cached, *self.books.free[:1], -1, self.books.num_blocks]
        block = candidates[a % len(candidates)]
        self._both("dec_ref", (block,), (block,))

    def by_hand(self, a: int, b: int, c: int) -> None:
        """What a prefix cache does: references by inc_ref, a table filled by hand, handed over in use."""
        blocks = sorted(set(self.books.cached))[: 1 + a % 3]
        if not blocks or len(self.tables) >= MAX_TABLES:
            return
        name = self._new(BlockTable(self.books.block_size, b % self.books.block_size))
        for block in blocks:
            self.tables[name].append_block(block)
        self.books.by_hand(name, blocks, self.tables[name].offset)
        assert self.manager.allocate(self.tables[name], 0)

    def note_write(self, a: int, b: int, c: int) -> None:
        name = self._pick(a)
        room = self.books.capacity(name) + 2
        start, stop = b % room - (c % 7 == 0), c % room
        self._both("note_write", (self.tables[name], start, stop), (name, start, stop))

    def release_all(self, a: int, b: int, c: int) -> None:
        void = [table for table in self.tables.values() if table.num_blocks]
        self.tables.clear()
        self.manager.release_all()
        self.books.release_all()
        for table in void:
            got = _outcome(self.manager.allocate, (table, 1))
            assert isinstance(got, StaleTableError), f"a table of before release_all was let in: {got!r}"


def _outcome(operation: Any, arguments: tuple[Any, ...]) -> Any:
    """What it returns, or the error it raises."""
    try:
        return operation(*arguments)
    except (KVCacheError, ValueError, IndexError) as error:
        return error
