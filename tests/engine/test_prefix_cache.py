"""The prefix caches by hand: exact numbers, what they refuse, and what observers hear."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minikv.block_table import BlockTable
from minikv.engine.hash_cache import HashCache, digest
from minikv.engine.radix_cache import RadixCache, RadixNode
from minikv.errors import CacheValueError, KVCacheError, RefCountError, StaleTableError
from minikv.lab.event_log import EventLog
from minikv.manager import KVCacheManager
from tests.engine.desk import Desk

both = pytest.mark.parametrize("kind", [RadixCache, HashCache])


def places(cache: Any) -> list[tuple[Any, ...]]:
    """Every place of a cache with its block and its stamp, in any order that stays the same."""
    if isinstance(cache, HashCache):
        return [(e.key, e.tokens, e.block_id, e.stamp, e.num_children) for e in cache.entries.values()]
    found, rest = [], [(root, (salt,)) for salt, root in cache.roots.items()]
    while rest:
        node, before = rest.pop()
        way = (*before, *node.pages)
        found.append((way, tuple(node.block_ids), node.stamp))
        rest += [(child, way) for child in node.children.values()]
    return found


def everything(desk: Desk) -> tuple[Any, ...]:
    manager, cache = desk.manager, desk.cache
    books = manager.snapshot(), manager.free_queue, len(manager.tables), dict(manager._cached)
    return *books, cache.num_blocks, cache.hit_rate, places(cache), len(cache._leaves._heap)


# ---- what is refused changes nothing ------------------------------------------------------------------


def example(kind: Any) -> tuple[Desk, BlockTable]:
    """8 blocks of 4. Cached: 0 to 7 in blocks 0 and 1; under "a" 0 to 3 in block 2. Runs: [0, 3, 4]."""
    desk = Desk(kind)
    desk.serve(range(8))
    desk.serve(range(4), "a")
    return desk, desk.start([0, 1, 2, 3, 50, 51, 52, 53, 54])


def table_of(manager: KVCacheManager, tokens: int, offset: int = 0) -> BlockTable:
    table = BlockTable(manager.block_size, offset)
    assert manager.allocate(table, tokens)
    return table


def with_a_free_block(manager: KVCacheManager) -> BlockTable:
    table = table_of(manager, 4)
    manager.dec_ref(table.block_ids[0])
    return table


def slid(manager: KVCacheManager, table: BlockTable) -> BlockTable:
    manager.drop_front(table, 2)
    return table


OWN = [0, 1, 2, 3, 50, 51, 52, 53, 54]  # what the example's table holds
FOREIGN = table_of(KVCacheManager(8, 4), 16)
Call = Callable[[Any, Any], object]
REFUSED: dict[str, tuple[Call, type[Exception], str]] = {
    "acquire a float": (lambda c, t: c.acquire([1, 2.5]), TypeError, "a token id is 2.5; .* integer"),
    "acquire text": (lambda c, t: c.acquire("ab"), TypeError, "a token id is 'a'"),
    "acquire True": (lambda c, t: c.acquire([1, True]), TypeError, "a token id is True"),
    "acquire None": (lambda c, t: c.acquire(None), TypeError, "None"),
    "acquire, salt a number": (lambda c, t: c.acquire([1], 7), TypeError, "salt is 7; .* '7'"),
    "acquire, salt bytes": (lambda c, t: c.acquire([1], b"a"), TypeError, "salt is b'a'"),
    "insert a float": (lambda c, t: c.insert([0, 1, 2, 3.0], t), TypeError, "a token id is 3.0"),
    "insert, salt a list": (lambda c, t: c.insert(OWN, t, []), TypeError, r"salt is \[\]"),
    "insert too many": (
        lambda c, t: c.insert(range(13), t),
        CacheValueError,
        "13 tokens, .* holds 12; .*stored",
    ),
    "insert, empty table": (
        lambda c, t: c.insert([1], BlockTable(4)),
        CacheValueError,
        "1 tokens, .* holds 0",
    ),
    "insert, block size": (
        lambda c, t: c.insert([1], BlockTable(5)),
        CacheValueError,
        "is 5, the manager's is 4",
    ),
    "insert a foreign table": (
        lambda c, t: c.insert(range(16), FOREIGN),
        StaleTableError,
        "lists block 3, which",
    ),
    "insert other tokens": (
        lambda c, t: c.insert([9, 1, 2, 3], t),
        CacheValueError,
        "block 0, entry 0 of the table, is cached under other tokens or another salt",
    ),
    "insert under another salt": (lambda c, t: c.insert(OWN, t, "b"), CacheValueError, "block 0, entry 0"),
    "evict -1": (lambda c, t: c.evict(-1), CacheValueError, "num_blocks is -1; .*0 or more"),
    "evict 1.5": (lambda c, t: c.evict(1.5), TypeError, "num_blocks is 1.5"),
    "evict True": (lambda c, t: c.evict(True), TypeError, "num_blocks is True"),
}


@both
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing(kind: Any, name: str) -> None:
    call, error, words = REFUSED[name]
    desk, table = example(kind)
    assert table.block_ids == (0, 3, 4)
    before = everything(desk)
    with pytest.raises(error, match=words):
        call(desk.cache, table)
    assert everything(desk) == before


Make = Callable[[KVCacheManager, BlockTable], BlockTable]
TABLES: dict[str, tuple[Make, type[Exception], str]] = {
    "an offset": (lambda m, t: table_of(m, 4, offset=2), CacheValueError, "offset is 2: .*position 0"),
    "slid": (slid, CacheValueError, "offset is 2: .*has slid"),
    "a free block": (lambda m, t: with_a_free_block(m), RefCountError, "I2 ref-count: block 5 is free"),
}


@both
@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_cannot_be_cached_changes_nothing(kind: Any, name: str) -> None:
    make, error, words = TABLES[name]
    desk, table = example(kind)
    table = make(desk.manager, table)
    before = everything(desk)
    with pytest.raises(error, match=words):
        desk.cache.insert(range(4), table)
    assert everything(desk) == before


@both
def test_the_place_may_be_cached_but_the_block_is_elsewhere(kind: Any) -> None:
    desk, table = example(kind)
    desk.serve([60, 61, 62, 63])
    before = everything(desk)
    with pytest.raises(CacheValueError, match="block 0, entry 0"):
        desk.cache.insert([60, 61, 62, 63], table)
    assert everything(desk) == before


@both
def test_what_is_refused_in_the_middle_changes_nothing(kind: Any) -> None:
    """The first block is new, the second is cached elsewhere: not even the first is kept."""
    desk, _ = example(kind)
    mixed = table_of(desk.manager, 4)
    desk.manager.share(mixed, [0])
    before = everything(desk)
    with pytest.raises(CacheValueError, match="block 0, entry 1"):
        desk.cache.insert([70, 71, 72, 73, 0, 1, 2, 3], mixed)
    assert everything(desk) == before


@both
def test_a_table_of_before_release_all_is_refused(kind: Any) -> None:
    desk, table = example(kind)
    desk.manager.release_all()
    with pytest.raises(StaleTableError):
        desk.cache.insert(OWN, table)
    assert desk.cache.num_blocks == 0


# ---- acquire ------------------------------------------------------------------------------------------


@both
def test_acquire_gives_a_named_table_that_holds_its_blocks(kind: Any) -> None:
    desk = Desk(kind)
    desk.serve(range(8))
    match = desk.cache.acquire(range(11), name="C")
    table, cached = match
    assert (table.name, table.block_ids, table.offset, cached) == ("C", (0, 1), 0, 8)
    assert (match.table, match.num_cached_tokens) == (table, 8)
    assert desk.manager.tables == (table,)
    assert desk.manager.snapshot()["ref_counts"] == {0: 2, 1: 2}
    nothing, cached = desk.cache.acquire([7, 7, 7, 7, 7])
    assert (nothing.block_ids, cached, desk.manager.tables) == ((), 0, (table,))
    desk.manager.check()


@both
def test_integers_of_other_libraries_are_welcome(kind: Any) -> None:
    desk = Desk(kind)
    table = desk.start(range(8))
    assert desk.cache.insert(np.arange(8), table) == 2
    assert desk.cached(list(np.arange(9, dtype=np.int32))) == 8
    assert desk.cached(range(9)) == 8


@both
def test_the_hit_rate_is_of_tokens_over_all_acquires(kind: Any) -> None:
    desk = Desk(kind)
    assert desk.cache.hit_rate == 0.0
    desk.cache.acquire([])
    assert desk.cache.hit_rate == 0.0
    desk.serve(range(8))  # 0 of 8
    desk.cached(range(9))  # 8 of 9
    desk.cached(range(8))  # 4 of 8
    assert desk.cache.hit_rate == 12 / 25


# ---- insert -------------------------------------------------------------------------------------------


@both
def test_insert_keeps_whole_blocks_only(kind: Any) -> None:
    desk = Desk(kind)
    table = desk.start(range(10))
    assert [desk.cache.insert(range(n), table) for n in (0, 3, 4, 7, 9, 10)] == [0, 0, 1, 0, 1, 0]
    assert desk.manager.snapshot()["ref_counts"] == {0: 2, 1: 2, 2: 1}
    desk.manager.free(table)
    assert (desk.manager.free_queue[-1], desk.cache.num_blocks) == (2, 2)


@both
def test_a_request_may_be_inserted_again_and_again_while_it_decodes(kind: Any) -> None:
    desk = Desk(kind)
    table, tokens, new = desk.start([0]), [0], []
    for token in range(1, 12):
        tokens.append(token)
        desk.compute(table, tokens, token)
        new.append(desk.cache.insert(tokens, table))
    assert new == [0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    assert desk.cached(range(13)) == 12
    desk.manager.free(table)
    assert desk.cache.evict(3) == 3
    assert desk.all_free


def test_then_it_stays_one_run_of_the_tree() -> None:
    desk = Desk(RadixCache)
    table = desk.start(range(4))
    for tokens in range(4, 20, 4):
        desk.compute(table, range(tokens), tokens - 4)
        desk.cache.insert(range(tokens), table)
    (run,) = desk.cache.roots[None].children.values()
    assert (run.block_ids, run.children) == ([0, 1, 2, 3], {})
    assert repr(run) == "RadixNode(block_ids=[0, 1, 2, 3], children=0)"


def test_the_tree_of_the_docstring() -> None:
    """Words are numbered: Ada 0, has 1, three 2, red 3, kites 4, . 5, hats 6, Bo 7."""
    desk = Desk(RadixCache, block_size=2)
    for tokens in [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 6, 5, 7, 1], [7, 1]:
        desk.serve(tokens)
    root = desk.cache.roots[None]

    def shape(node: RadixNode) -> Any:
        return [(node.block_ids, shape(node)) for node in node.children.values()]

    assert shape(root) == [([0, 1], [([2], []), ([3, 4], [])]), ([5], [])]


@both
def test_a_fork_shares_what_is_cached(kind: Any) -> None:
    desk = Desk(kind)
    table = desk.start(range(8))
    fork = desk.manager.fork(table)
    assert (desk.cache.insert(range(8), table), desk.cache.insert(range(8), fork)) == (2, 0)
    assert desk.manager.snapshot()["ref_counts"] == {0: 3, 1: 3}


# ---- evict --------------------------------------------------------------------------------------------


@both
def test_the_least_recently_used_goes_first(kind: Any) -> None:
    desk = Desk(kind)
    for first in 10, 20, 30:
        desk.serve(range(first, first + 4))
    desk.cached(range(10, 15))  # used again
    desk.pool.released.clear()
    assert (desk.cache.evict(2), desk.pool.released) == (2, [1, 2])
    assert (desk.cache.evict(0), desk.cache.evict(5), desk.cache.evict(5)) == (0, 1, 0)


@both
def test_a_shorter_hit_leaves_the_rest_as_old_as_it_was(kind: Any) -> None:
    desk = Desk(kind)
    desk.serve(range(12))  # blocks 0, 1, 2
    desk.serve(range(20, 24))  # block 3
    desk.cached(range(5))  # only block 0
    desk.pool.released.clear()
    assert (desk.cache.evict(4), desk.pool.released) == (4, [2, 1, 3, 0])


@both
def test_a_leaf_in_use_counts_as_used_when_evict_meets_it(kind: Any) -> None:
    """Blocks 0, 1 and 2, of which 0 is the oldest and in use: it is passed over, and is the youngest then."""
    desk = Desk(kind)
    busy = desk.start(range(4))
    desk.cache.insert(range(4), busy)
    desk.serve(range(20, 24))
    desk.serve(range(30, 34))
    desk.pool.released.clear()
    assert (desk.cache.evict(1), desk.pool.released) == (1, [1])
    desk.manager.free(busy)
    assert (desk.cache.evict(2), desk.pool.released) == (2, [1, 2, 0])


@both
def test_an_idle_block_with_a_child_in_use_stays(kind: Any) -> None:
    """A table that let its front go holds the last block of a chain only."""
    desk = Desk(kind)
    desk.serve(range(12))
    table, _ = desk.cache.acquire(range(13))
    desk.manager.drop_front(table, 8)
    assert table.block_ids == (2,)
    assert desk.manager.snapshot()["ref_counts"] == {0: 1, 1: 1, 2: 2}
    assert desk.cache.evict(3) == 0
    assert desk.cached(range(13)) == 12
    desk.manager.free(table)
    assert desk.cache.evict(3) == 3
    assert desk.all_free


def test_no_salt_leaves_a_trace_when_its_last_block_has_gone() -> None:
    for kind in RadixCache, HashCache:
        desk = Desk(kind)
        for tenant in range(100):
            desk.serve(range(8), f"tenant {tenant}")
            assert desk.cache.evict(2) == 2
        assert places(desk.cache) == [] == desk.cache._leaves._heap


@both
def test_a_long_chain_needs_no_recursion(kind: Any) -> None:
    desk = Desk(kind, num_blocks=5000, block_size=1)
    desk.serve(range(5000))
    assert desk.cached(range(5000)) == 4999
    assert desk.cache.evict(2500) == 2500
    assert desk.cached(range(5000)) == 2500
    desk.cache.clear()
    assert desk.all_free


# ---- clear, resets, two caches ------------------------------------------------------------------------


@both
def test_clear_is_as_new(kind: Any) -> None:
    desk, table = example(kind)
    desk.cache.insert(OWN, table)
    desk.pool.released.clear()
    desk.cache.clear()
    assert (desk.cache.num_blocks, desk.cache.hit_rate) == (0, 0.0)
    assert desk.pool.released == [2, 1], "last cached first; 0, 3 and 4 stay with their table"
    assert desk.manager.snapshot()["ref_counts"] == {0: 1, 3: 1, 4: 1}
    desk.manager.check()
    assert desk.cached([*OWN, 1, 2, 3]) == 0
    assert desk.cache.insert(OWN, table) == 2, "and its blocks may be cached again"
    desk.cache.clear()
    desk.cache.clear()


@both
@pytest.mark.parametrize("look", ["num_blocks", "hit_rate", "evict", "acquire", "clear"])
def test_release_all_empties_the_cache(kind: Any, look: str) -> None:
    """And whoever takes the blocks afterwards owns them, whatever is asked of the cache first."""
    desk, _ = example(kind)
    desk.manager.release_all()
    stranger = table_of(desk.manager, 32)
    if look in ("num_blocks", "hit_rate"):
        assert getattr(desk.cache, look) == 0
    elif look == "evict":
        assert desk.cache.evict(8) == 0
    elif look == "acquire":
        assert desk.cached(range(9)) == 0
    else:
        desk.cache.clear()
    assert (stranger.num_blocks, desk.manager.num_free_blocks) == (8, 0)
    desk.manager.check()
    desk.manager.free(stranger)
    desk.serve(range(8))
    assert desk.cached(range(9)) == 8


@both
def test_two_caches_on_one_manager_hold_on_to_what_both_have(kind: Any) -> None:
    desk = Desk(kind)
    other = HashCache(desk.manager)
    table = desk.start(range(8))
    assert (desk.cache.insert(range(8), table), other.insert(range(4), table)) == (2, 1)
    desk.manager.free(table)
    desk.manager.check()
    assert (desk.cache.evict(9), other.evict(9)) == (1, 0)
    other.clear()
    assert desk.cache.evict(9) == 1
    assert desk.all_free


# ---- what observers hear, and an observer that fails --------------------------------------------------


@both
def test_an_event_log_can_replay_it(kind: Any) -> None:
    log = EventLog()
    manager = KVCacheManager(6, 4, observer=log)
    cache, a = kind(manager), BlockTable(4, name="a")
    manager.allocate(a, 8)
    manager.note_write(a, 0, 8)
    start = len(log)
    cache.insert(range(8), a)
    b, _ = cache.acquire(range(9), name="b")
    manager.free(a)
    manager.free(b)
    cache.evict(1)
    heard = [(e["op"], e.get("request"), e["block_id"], e.get("ref_count")) for e in log[start:]]
    assert heard[:2] == [("inc_ref", None, 0, 2), ("inc_ref", None, 1, 2)]
    assert heard[2:4] == [("share", "b", 0, 3), ("share", "b", 1, 3)]
    assert heard[-2:] == [("dec_ref", None, 1, 0), ("release", None, 1, None)]
    state = log.state(len(log) - 1)
    assert (log.violations, state.cache_refs, state.free_queue) == ((), (1, 0, 0, 0, 0, 0), (2, 3, 4, 5, 1))
    assert all(len(blocks) == 0 for blocks in state.tables.values())


class Told(Exception):
    """The observer has had enough."""


@both
@pytest.mark.parametrize("call", ["insert", "evict", "clear"])
@pytest.mark.parametrize("patience", [0, 1, 2, 3])
def test_an_observer_that_fails_leaves_whole_books(kind: Any, call: str, patience: int) -> None:
    """The call ends early. What is cached is held, what is held is found, and all of it can be evicted."""
    desk = Desk(kind)
    table = desk.start(range(16))
    if call != "insert":
        desk.cache.insert(range(16), table)
        desk.manager.free(table)
    heard: list[object] = []

    def listen(event: object) -> None:
        heard.append(event)
        if len(heard) > patience:
            raise Told

    desk.manager.observer = listen
    with pytest.raises(Told):
        {
            "insert": lambda: desk.cache.insert(range(16), table),
            "evict": lambda: desk.cache.evict(4),
            "clear": desk.cache.clear,
        }[call]()
    desk.manager.observer = None
    desk.manager.check()
    assert desk.cache.num_blocks == sum(desk.manager._cached.values())
    if call == "insert":
        assert desk.cached(range(17)) == 4 * desk.cache.num_blocks == 4 * (patience + 1)
        desk.manager.free(table)
    if call == "evict":
        assert desk.cached(range(17)) == 4 * desk.cache.num_blocks == 4 * (3 - patience // 2)
        assert desk.cache.evict(9) == 3 - patience // 2
    desk.cache.clear()
    assert desk.all_free


# ---- the digest ---------------------------------------------------------------------------------------


def test_the_digest_tells_apart_what_is_different() -> None:
    befores: list[Any] = [None, "", "None", "a", b"a", digest(None, (1,))]
    keys = {
        digest(before, tokens) for before in befores for tokens in [(1,), (-1,), (-2,), (1, 1), (11,), ()]
    }
    assert len(keys) == len(befores) * 6
    assert digest(None, (1, 2)) == digest(None, (1, 2))
    assert all(isinstance(key, bytes) and len(key) == 16 for key in keys)


def test_errors_are_the_managers() -> None:
    assert issubclass(CacheValueError, KVCacheError)
