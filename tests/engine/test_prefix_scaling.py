"""What a prefix cache costs as it fills: time a block, and memory a block."""

import tracemalloc
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest

from minikv.block_table import BlockTable
from minikv.engine.hash_cache import HashCache
from minikv.engine.radix_cache import RadixCache
from minikv.manager import KVCacheManager

SMALL, LARGE, SIZE = 1_000, 100_000, 16
both = pytest.mark.parametrize("kind", [RadixCache, HashCache])


def filled(kind: Callable[[KVCacheManager], Any], num_blocks: int, chain: int) -> Any:
    """A cache of `num_blocks` blocks in chains of so many, all of which only the cache holds."""
    cache = kind(KVCacheManager(num_blocks, SIZE))
    for start in range(0, num_blocks, chain):
        insert(cache, start, chain)
    assert cache.num_blocks == num_blocks
    return cache


def prompt(first: int, chain: int) -> list[int]:
    """`chain` blocks of tokens; no other `first` has the same block."""
    return [first] * (chain * SIZE)


def insert(cache: Any, first: int, chain: int) -> None:
    table, tokens = BlockTable(SIZE), prompt(first, chain)
    assert cache.manager.allocate(table, len(tokens))
    cache.insert(tokens, table)
    cache.manager.free(table)


def evict_all(cache: Any) -> float:
    """Seconds a block, one block a call, until nothing is cached."""
    total = cache.num_blocks
    start = perf_counter()
    while cache.evict(1):
        pass
    seconds = (perf_counter() - start) / total
    assert cache.manager.num_free_blocks == total
    return seconds


@both
@pytest.mark.parametrize("chain", [1, SMALL])
def test_evicting_a_block_hardly_costs_more_among_many(kind: Any, chain: int) -> None:
    times = []
    for num_blocks in SMALL, LARGE:
        best = min(evict_all(filled(kind, num_blocks, chain)) for _ in range(3 if num_blocks == SMALL else 1))
        times.append(best)
    report(f"{kind.__name__}, evict, chains of {chain}", times)
    assert times[1] < 20 * times[0], "a scan of all leaves would be a hundred times as much"


@both
def test_nor_when_every_leaf_was_used_since_it_was_cached(kind: Any) -> None:
    """Each entry of the heap is out of date once: the first call meets them all, and all calls share it."""
    times = []
    for num_blocks in SMALL, LARGE:
        cache = filled(kind, num_blocks, 10)
        for first in range(0, num_blocks, 10):
            cache.manager.free(cache.acquire([*prompt(first, 10), 0]).table)
        times.append(evict_all(cache))
    report(f"{kind.__name__}, evict, all used since", times)
    assert times[1] < 20 * times[0]


@both
def test_nor_does_a_hit_or_an_insert(kind: Any) -> None:
    times: dict[str, list[float]] = {"a hit": [], "evict 10 and insert": []}
    for num_blocks in SMALL, LARGE:
        cache = filled(kind, num_blocks, 10)
        manager, hits, inserts = cache.manager, [], []
        for round_ in range(300):
            start = perf_counter()
            manager.free(cache.acquire([*prompt(num_blocks - 10, 10), 0]).table)
            hits.append(perf_counter() - start)
            start = perf_counter()
            cache.evict(10)
            insert(cache, num_blocks + 10 * round_, 10)
            inserts.append(perf_counter() - start)
        times["a hit"].append(min(hits) / 10)
        times["evict 10 and insert"].append(min(inserts) / 10)
    for what, two in times.items():
        report(f"{kind.__name__}, {what}", two)
        assert two[1] < 20 * two[0]


@both
def test_in_vain_it_costs_as_much_as_there_are_tables(kind: Any) -> None:
    """All is in use: each call looks at one leaf a table, however many blocks the table holds."""
    times = []
    for chain in 10, 1000:
        cache = filled(kind, 64 * chain, chain)
        held = [cache.acquire([*prompt(first, chain), 0]).table for first in range(0, 64 * chain, chain)]
        start = perf_counter()
        assert sum(cache.evict(1) for _ in range(100)) == 0
        times.append((perf_counter() - start) / 100)
        assert len(held) == 64
    print(
        f"{kind.__name__}, 64 tables: {times[0] * 1e6:.0f} µs a call with 10 blocks each, "
        f"{times[1] * 1e6:.0f} with 1,000, ratio {times[1] / times[0]:.1f}"
    )
    assert times[1] < 20 * times[0]


def report(what: str, times: list[float]) -> None:
    small, large = (seconds * 1e6 for seconds in times)
    print(f"{what}: {small:.2f} µs a block of {SMALL:,}, {large:.2f} of {LARGE:,}, ratio {large / small:.1f}")


@both
@pytest.mark.parametrize("chain", [1, 10])
def test_memory_for_a_cached_block_is_little_beside_its_kv(kind: Any, chain: int) -> None:
    """Python's own cost, the tokens' numbers included. GPT-2's KV of 16 tokens takes 16 * 36,864 bytes."""
    num_blocks = 10_000
    manager = KVCacheManager(num_blocks, SIZE)
    tables, tokens = [], []
    for number in range(num_blocks // chain):
        tables.append(BlockTable(SIZE))
        manager.allocate(tables[-1], chain * SIZE)
        tokens.append([number * 1000 + place for place in range(chain * SIZE)])
    cache = kind(manager)
    tracemalloc.start()
    for table, own in zip(tables, tokens, strict=True):
        cache.insert([int(str(token)) for token in own], table)  # numbers that nobody else keeps
    used = tracemalloc.get_traced_memory()[0] / num_blocks
    tracemalloc.stop()
    print(
        f"{kind.__name__}, chains of {chain}: {used:.0f} bytes a block, {used / (16 * 36_864):.3%} of its KV"
    )
    assert used < 16 * 36_864 / 100
