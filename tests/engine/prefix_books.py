"""A second opinion on the prefix caches, and requests that use them.

`CacheBooks` is a dict from whole prefixes to blocks; what is least recently used is looked for among all.
`CacheWalk` leads requests through a cache. Each stores fingerprints for KV: the number of its prefix, the
same number for the same tokens only. After each operation everything that can be seen is compared.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from minikv.block_table import BlockTable
from minikv.engine.prefix_cache import PrefixCache
from minikv.errors import OutOfBlocksError
from minikv.manager import KVCacheManager

Place = tuple[str | None, tuple[int, ...]]  # salt, and all tokens up to the end of the block
MAX_REQUESTS = 4
SALTS = (None, "", "None", "a")
LETTERS = (-1, -2)  # Python's hash is the same for both


class CacheBooks:
    """Every cached prefix with its block, and when it was last used.

    Args:
        key: of a place; no two places with one key can be cached. None: all keys differ.
    """

    def __init__(self, block_size: int, key: Callable[[Place], object] | None = None) -> None:
        self.block_size, self.key = block_size, key
        self.blocks: dict[Place, int] = {}
        self.used: dict[Place, int] = {}
        self.clock = self.asked = self.hit = 0

    def places(self, tokens: Sequence[int], salt: str | None) -> list[Place]:
        size = self.block_size
        return [(salt, tuple(tokens[:stop])) for stop in range(size, len(tokens) + 1, size)]

    def longest(self, tokens: Sequence[int], salt: str | None) -> list[Place]:
        found = []
        for place in self.places(tokens, salt):
            if place not in self.blocks:
                break
            found.append(place)
        return found

    def use(self, places: list[Place]) -> None:
        self.clock += 1
        for place in places:
            self.used[place] = self.clock

    def acquire(self, tokens: Sequence[int], salt: str | None) -> list[int]:
        found = self.longest(tokens[:-1], salt)
        self.use(found)
        self.asked += len(tokens)
        self.hit += len(found) * self.block_size
        return [self.blocks[place] for place in found]

    def insert(self, tokens: Sequence[int], block_ids: Sequence[int], salt: str | None) -> int:
        self.use(self.longest(tokens, salt))
        new = 0
        for place, block_id in zip(self.places(tokens, salt), block_ids, strict=False):
            if place in self.blocks:
                continue
            if self.key is not None and self.key(place) in map(self.key, self.blocks):
                break
            self.blocks[place], self.used[place] = block_id, self.clock
            new += 1
        return new

    def evict(self, num_blocks: int, tables: Counter[int]) -> list[int]:
        """Which blocks go, in this order. `tables`: how many list each block."""
        freed: list[int] = []
        begun = self.clock
        while len(freed) < num_blocks:
            parents = {(salt, tokens[: -self.block_size]) for salt, tokens in self.blocks}
            leaves = [p for p in self.blocks if p not in parents and self.used[p] <= begun]
            if not leaves:
                break
            oldest = min(leaves, key=self.used.__getitem__)
            if tables[self.blocks[oldest]]:
                self.use([oldest])
            else:
                freed.append(self.blocks.pop(oldest))
                del self.used[oldest]
        return freed

    def clear(self) -> None:
        self.blocks.clear()
        self.used.clear()
        self.asked = self.hit = 0


class Fingerprints:
    """A pool with the number of a prefix in each slot; None was never written since its block was taken."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.released: list[int] = []
        self._numbers: dict[tuple[int, int], int] = {}

    def after(self, prefix: int, token: int) -> int:
        """The number of a prefix with one token more; 0 is the empty one."""
        return self._numbers.setdefault((prefix, token), len(self._numbers) + 1)

    def of(self, tokens: Sequence[int]) -> list[int]:
        numbers, prefix = [], 0
        for token in tokens:
            prefix = self.after(prefix, token)
            numbers.append(prefix)
        return numbers

    def block(self, block_id: int) -> list[int | None]:
        return self.slots[block_id * self.block_size : (block_id + 1) * self.block_size]

    def read(self, table: BlockTable, length: int) -> list[int | None]:
        slots: list[int | None] = []
        for block_id in table.block_ids:
            slots += self.block(block_id)
        return slots[table.offset : table.offset + length]

    def copy_block(self, src: int, dst: int) -> None:
        self.slots[dst * self.block_size : (dst + 1) * self.block_size] = self.block(src)

    def release(self, block_id: int) -> None:
        self.slots[block_id * self.block_size : (block_id + 1) * self.block_size] = [None] * self.block_size
        self.released.append(block_id)


class Request:
    """Its tokens, of which the first `dropped` are no longer in the table."""

    def __init__(self, tokens: list[int], salt: str | None, table: BlockTable) -> None:
        self.tokens, self.salt, self.table, self.dropped = tokens, salt, table, 0
        self.numbers: list[int] = []  # the fingerprint of each token

    @property
    def stored(self) -> int:
        """Tokens in the table."""
        return len(self.numbers) - self.dropped


class CacheWalk:
    """Requests over one cache, and the books beside it. AssertionError where they differ.

    Each operation takes three numbers, and finds something to do with whatever they are.
    """

    OPS = (
        *("start",) * 6,
        *("decode", "insert") * 3,
        *("end", "finish") * 2,
        *("evict", "fork", "slide"),
    )
    RARE = ("clear", "release_all")

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        kind: Callable[[KVCacheManager], PrefixCache],
        key: Callable[[Place], object] | None = None,
    ) -> None:
        self.pool = Fingerprints(num_blocks, block_size)
        self.manager = KVCacheManager(num_blocks, block_size, self.pool)
        self.cache = kind(self.manager)
        self.books = CacheBooks(block_size, key)
        self.running: list[Request] = []
        self.past: list[list[int]] = [[LETTERS[0]]]  # what was asked before, newest last
        self.hits = self.evicted = self.idle_parents = 0

    def step(self, op: str, a: int, b: int, c: int) -> None:
        if self.running or op in ("start", "evict", *self.RARE):
            getattr(self, op)(a, b, c)
            self.compare()

    def random_steps(self, steps: int, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(steps):
            op = chance.choice(self.OPS) if chance.random() > 0.005 else chance.choice(self.RARE)
            number = chance.getrandbits(96)
            self.step(op, number & 0xFFFF, number >> 16 & 0xFFFF, number >> 32)

    # ---- what is compared after each step ------------------------------------------------------

    def compare(self) -> None:
        self.manager.check()
        assert self.cache.num_blocks == len(self.books.blocks)
        assert self.cache.hit_rate == (self.books.hit / self.books.asked if self.books.asked else 0.0)
        holders = self.tables()
        holders.update(self.books.blocks.values())
        for block in self.manager.blocks:
            assert block.ref_count == holders[block.block_id], f"the count of block {block.block_id}"
        for request in self.running:
            expected = request.numbers[request.dropped :]
            assert self.pool.read(request.table, request.stored) == expected, "a request's own KV"

    def tables(self) -> Counter[int]:
        """How many tables list each block."""
        return Counter(block_id for request in self.running for block_id in request.table.block_ids)

    # ---- operations ----------------------------------------------------------------------------

    def start(self, a: int, b: int, c: int) -> None:
        """A prompt: the beginning of an earlier one, then other tokens. It is computed, or gives up."""
        if len(self.running) >= MAX_REQUESTS:
            return self.end(a, b, c)
        size, salt = self.books.block_size, SALTS[a % 4 if a & 32 else 0]
        old = self.past[a // 64 % len(self.past)]
        keep = len(old) if b & 2048 else b % (len(old) + 1)
        if b & 1024:
            keep -= keep % size  # cut at a block
        tokens = [*old[:keep], *(LETTERS[c >> i & 1] for i in range(1 + (c >> 40) % (2 * size + 1)))]
        del tokens[self.manager.num_blocks * size :]
        self.past = [*self.past[-5:], tokens]
        request = self.acquire(tokens, salt)
        self.running.append(request)
        if not self.room(request, len(tokens)):
            return self.end(len(self.running) - 1, 0, 0)
        self.write(request)

    def acquire(self, tokens: list[int], salt: str | None) -> Request:
        expected = self.books.acquire(tokens, salt)
        table, cached = self.cache.acquire(tokens, salt)
        assert list(table.block_ids) == expected, f"{expected} were cached, not {table.block_ids}"
        assert cached == len(expected) * self.books.block_size < len(tokens)
        request = Request(tokens, salt, table)
        request.numbers = self.pool.of(tokens[:cached])
        assert self.pool.read(table, cached) == request.numbers, "a hit is the KV of other tokens"
        self.hits += len(expected)
        return request

    def room(self, request: Request, num_tokens: int) -> bool:
        if self.manager.allocate(request.table, num_tokens):
            return True
        missing = -(-(request.table.offset + num_tokens) // self.books.block_size) - request.table.num_blocks
        self._evict(missing - self.manager.num_free_blocks)
        return self.manager.allocate(request.table, num_tokens)

    def write(self, request: Request) -> None:
        """Compute what is not stored yet, as far as copies can be had."""
        for index in range(len(request.numbers), len(request.tokens)):
            position = index - request.dropped
            try:
                self.manager.copy_on_write(request.table, position)
            except OutOfBlocksError:
                del request.tokens[index:]
                return
            self.manager.note_write(request.table, position, position + 1)
            number = self.pool.after(request.numbers[-1] if request.numbers else 0, request.tokens[index])
            request.numbers.append(number)
            self.pool.slots[request.table.slot(position)] = number

    def decode(self, a: int, b: int, c: int) -> None:
        request = self.running[a % len(self.running)]
        new = [LETTERS[c >> i & 1] for i in range(1 + b % (self.books.block_size + 1))]
        if self.room(request, request.stored + len(new)):
            request.tokens = request.tokens + new
            self.write(request)

    def insert(self, a: int, b: int, c: int) -> None:
        """All that is stored, or only a part from the front."""
        request = self.running[a % len(self.running)]
        if request.dropped:
            return
        tokens = request.tokens[: len(request.numbers) - (b % (request.stored + 1) if b & 512 else 0)]
        expected = self.books.insert(tokens, request.table.block_ids, request.salt)
        assert self.cache.insert(tokens, request.table, request.salt) == expected, "newly cached"

    def end(self, a: int, b: int, c: int) -> None:
        request = self.running.pop(a % len(self.running))
        self.manager.free(request.table)

    def finish(self, a: int, b: int, c: int) -> None:
        request = self.running[a % len(self.running)]
        self.insert(a, 0, 0)
        self.past = [*self.past[-5:], list(request.tokens)]
        self.end(a, b, c)

    def fork(self, a: int, b: int, c: int) -> None:
        if len(self.running) >= MAX_REQUESTS:
            return
        request = self.running[a % len(self.running)]
        child = Request(list(request.tokens), request.salt, self.manager.fork(request.table))
        child.numbers, child.dropped = list(request.numbers), request.dropped
        self.running.append(child)

    def slide(self, a: int, b: int, c: int) -> None:
        """Drops some of the front, but never all: a table that holds blocks is what makes it interesting."""
        request = self.running[a % len(self.running)]
        if request.stored > 1:
            amount = 1 + b % (request.stored - 1)
            self.manager.drop_front(request.table, amount)
            request.dropped += amount

    def evict(self, a: int, b: int, c: int) -> None:
        self._evict(a % (self.manager.num_blocks // 2 + 2))

    def _evict(self, num_blocks: int) -> None:
        tables = self.tables()
        expected = self.books.evict(num_blocks, tables)
        self.pool.released.clear()
        freed = self.cache.evict(num_blocks)
        assert self.pool.released == expected, f"evict: {expected} were due, not {self.pool.released}"
        assert freed == len(expected)
        self.evicted += freed
        self.idle_parents += freed < num_blocks and any(not tables[b] for b in self.books.blocks.values())

    def clear(self, a: int, b: int, c: int) -> None:
        self.cache.clear()
        self.books.clear()

    def release_all(self, a: int, b: int, c: int) -> None:
        """Now and then the tables' blocks are taken anew before the cache is asked."""
        self.manager.release_all()
        self.running.clear()
        self.books.clear()
        if a & 1:
            table = BlockTable(self.books.block_size)
            self.manager.allocate(table, self.manager.num_blocks * self.books.block_size)
            self.manager.free(table)


def lead(
    kind: Callable[[KVCacheManager], Any],
    pools: Sequence[tuple[int, int]],
    steps: int,
    key: Callable[[Place], object] | None = None,
) -> list[CacheWalk]:
    """One walk for each pool (num_blocks, block_size), of `steps` steps each."""
    walks = [CacheWalk(*pool, kind, key) for pool in pools]
    for seed, walk in enumerate(walks):
        walk.random_steps(steps, seed)
    return walks
