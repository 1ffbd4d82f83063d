"""An operation costs as much as the blocks it touches, not as much as the pool is large."""

from collections.abc import Callable
from time import perf_counter

import pytest

from minikv.block_table import BlockTable
from minikv.manager import KVCacheManager

SMALL, LARGE, ROUNDS = 1_000, 1_000_000, 300


def allocate_and_free(manager: KVCacheManager) -> None:
    table = BlockTable(16)
    manager.allocate(table, 160)
    manager.free(table)


def fork_copy_and_slide(manager: KVCacheManager) -> None:
    table = BlockTable(16)
    manager.allocate(table, 160)
    child = manager.fork(table)
    manager.copy_on_write(child, 159)
    manager.note_write(child, 159, 160)
    manager.drop_front(child, 40)
    manager.free(table)
    manager.free(child)


def cache_and_adopt(manager: KVCacheManager) -> None:
    """A table filled by hand with blocks that inc_ref took, as by a prefix cache."""
    table, prefix = BlockTable(16), BlockTable(16)
    manager.allocate(table, 160)
    for block_id in table.block_ids:
        manager.inc_ref(block_id)
        prefix.append_block(block_id)
    manager.free(table)
    manager.free(prefix)


def seconds_a_round(manager: KVCacheManager, operation: Callable[[KVCacheManager], None]) -> float:
    """The fastest of many rounds: what the work costs when nothing else disturbs."""
    times = []
    for _ in range(ROUNDS):
        start = perf_counter()
        operation(manager)
        times.append(perf_counter() - start)
    return min(times)


@pytest.fixture(scope="module")
def managers() -> list[KVCacheManager]:
    return [KVCacheManager(SMALL), KVCacheManager(LARGE)]


@pytest.mark.parametrize("operation", [allocate_and_free, fork_copy_and_slide, cache_and_adopt])
def test_a_thousand_times_the_pool_costs_no_more(
    managers: list[KVCacheManager], operation: Callable[[KVCacheManager], None]
) -> None:
    small, large = (seconds_a_round(manager, operation) for manager in managers)
    print(
        f"{operation.__name__}: {SMALL:,} blocks {small * 1e6:.1f} µs, {LARGE:,} blocks {large * 1e6:.1f} µs"
    )
    print(f"ratio {large / small:.2f}")
    assert large < 5 * small


def test_a_full_cache_makes_nothing_slower() -> None:
    """The same with all but 10 blocks held by a cache, as in a server that has run for a while."""
    times = []
    for num_blocks in (SMALL, 100 * SMALL):
        manager, cached = KVCacheManager(num_blocks), BlockTable(16)
        manager.allocate(cached, (num_blocks - 10) * 16)
        for block_id in cached.block_ids:
            manager.inc_ref(block_id)
        manager.free(cached)
        times.append(seconds_a_round(manager, cache_and_adopt))
        assert manager.num_free_blocks == 10
    print(f"full cache: {times[0] * 1e6:.1f} µs and {times[1] * 1e6:.1f} µs, ratio {times[1] / times[0]:.2f}")
    assert times[1] < 5 * times[0]
