"""A small serving desk: prompts come, are looked up, computed as fingerprints, cached and sent home."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minikv.block_table import BlockTable
from minikv.manager import KVCacheManager
from tests.engine.prefix_books import Fingerprints


class Desk:
    """A manager, a pool of fingerprints and a cache, with block size 4 unless it is said."""

    def __init__(
        self, kind: Callable[[KVCacheManager], Any], num_blocks: int = 8, block_size: int = 4
    ) -> None:
        self.pool = Fingerprints(num_blocks, block_size)
        self.manager = KVCacheManager(num_blocks, block_size, self.pool)
        self.cache = kind(self.manager)

    def start(self, tokens: Sequence[int], salt: str | None = None) -> BlockTable:
        """Look it up and compute the rest: a table whose slots hold all of it."""
        table, cached = self.cache.acquire(tokens, salt)
        self.compute(table, tokens, cached)
        return table

    def compute(self, table: BlockTable, tokens: Sequence[int], start: int) -> None:
        """Positions `start` to the end, into blocks of its own."""
        numbers = self.pool.of(tokens)
        assert self.pool.read(table, start) == numbers[:start], "what is taken over is other tokens' KV"
        assert self.manager.allocate(table, len(tokens))
        for position in range(start, len(tokens)):
            self.manager.copy_on_write(table, position)
            self.manager.note_write(table, position, position + 1)
            self.pool.slots[table.slot(position)] = numbers[position]

    def serve(self, tokens: Sequence[int], salt: str | None = None) -> list[int | None]:
        """From beginning to end: look up, compute, cache, go. Returns what was in its slots."""
        table = self.start(tokens, salt)
        read = self.pool.read(table, len(tokens))
        assert read == self.pool.of(tokens), "it reads other tokens' KV"
        self.cache.insert(tokens, table, salt)
        self.manager.free(table)
        self.manager.check()
        return read

    def cached(self, tokens: Sequence[int], salt: str | None = None) -> int:
        """How many tokens of this prompt a request would find. It looks, and so it is a use."""
        table, cached = self.cache.acquire(tokens, salt)
        self.manager.free(table)
        return int(cached)

    @property
    def all_free(self) -> bool:
        return self.manager.num_free_blocks == self.manager.num_blocks
