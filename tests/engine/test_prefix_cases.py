"""Thirteen ways in which prefix caches of real systems went wrong, each with exact numbers.

Two of them, 4 and 5, are mistakes of whoever calls the cache; here stands what the cache adds to them.
"""

import pytest

from minikv.block_table import BlockTable
from minikv.engine.hash_cache import HashCache
from minikv.engine.radix_cache import RadixCache
from minikv.manager import KVCacheManager
from tests.engine.desk import Desk

KINDS = [RadixCache, HashCache]
both = pytest.mark.parametrize("kind", KINDS)


# ---- 1. the whole prompt is cached (vLLM PR 11186) ---------------------------------------------------------


@both
@pytest.mark.parametrize(("length", "cached"), [(8, 4), (9, 8), (7, 4), (5, 4), (4, 0), (1, 0), (0, 0)])
def test_case_1_the_last_token_is_always_computed(kind: type, length: int, cached: int) -> None:
    desk = Desk(kind)
    desk.serve(range(8))
    table, found = desk.cache.acquire(range(length))
    assert (found, table.num_blocks, table.block_ids) == (cached, cached // 4, (0, 1)[: cached // 4])
    desk.compute(table, range(length), found)
    assert desk.pool.read(table, length) == desk.pool.of(range(length)), "as in the run without a cache"


# ---- 2. what was just matched is evicted (vLLM PR 10507) ---------------------------------------------------


@both
def test_case_2_a_match_holds_its_blocks(kind: type) -> None:
    desk = Desk(kind, num_blocks=4)
    p, q = list(range(8)), [50, 51, 52, 53]
    desk.serve(p)
    desk.serve(q)
    table, cached = desk.cache.acquire([*p, 8, 9, 10, 11, 12])
    assert (table.block_ids, cached) == ((0, 1), 8)
    assert not desk.manager.allocate(table, 13)
    desk.pool.released.clear()
    assert desk.cache.evict(1) == 1
    assert desk.pool.released == [2]
    assert desk.manager.allocate(table, 13)
    assert table.block_ids == (0, 1, 3, 2)
    desk.manager.check()


# ---- 3. a block that is used anew is found under its old tokens (nano-vllm 163) ----------------------------


@both
def test_case_3_evicted_is_forgotten(kind: type) -> None:
    desk = Desk(kind, num_blocks=1)
    x, y = [1, 2, 3, 4], [5, 6, 7, 8]
    desk.serve(x)
    assert desk.cache.evict(1) == 1
    desk.serve(y)
    assert desk.pool.block(0) == desk.pool.of(y)
    assert desk.cached([*x, 9]) == 0
    assert desk.cached([*y, 9]) == 4


# ---- 4. published before it is computed (vLLM PR 7822): the cache's part -----------------------------------


@both
def test_case_4_nothing_is_found_before_it_is_inserted(kind: type) -> None:
    """Two requests are admitted in one step. To look up publishes nothing, so neither reads the other's
    unwritten slots, which hold None here. That the engine inserts only what is computed is its own test."""
    desk = Desk(kind)
    one, two = [*range(8), 20], [*range(8), 21]
    (a, cached_a), (b, cached_b) = desk.cache.acquire(one), desk.cache.acquire(two)
    assert desk.manager.allocate(a, 9) and desk.manager.allocate(b, 9)
    assert (cached_a, cached_b, desk.cached(two)) == (0, 0, 0)
    desk.compute(a, one, 0)
    desk.compute(b, two, 0)
    assert desk.pool.read(a, 9) == desk.pool.of(one)
    assert desk.pool.read(b, 9) == desk.pool.of(two)
    assert desk.cache.insert(one, a) == 2
    assert desk.cached(two) == 8


# ---- 5. a stale count on resume (nano-vllm PR 207): the cache's part ---------------------------------------


@both
def test_case_5_who_resumes_computes_what_is_not_cached_any_more(kind: type) -> None:
    """10 tokens stored, preempted, its two whole blocks stay cached; it looks itself up again."""
    desk = Desk(kind)
    tokens = list(range(10))
    table = desk.start(tokens)
    desk.cache.insert(tokens, table)
    desk.manager.free(table)
    table, cached = desk.cache.acquire(tokens)
    assert (cached, len(tokens) - cached, table.capacity) == (8, 2, 8)
    desk.compute(table, tokens, cached)
    assert (table.num_blocks, desk.pool.read(table, 10)) == (3, desk.pool.of(tokens))
    desk.manager.free(table)
    assert desk.cache.evict(1) == 1
    assert desk.cache.acquire(tokens).num_cached_tokens == 4, "what counts is what is cached now"


# ---- 6. hash collisions (openvino.genai 3722, a vLLM advisory) ---------------------------------------------


def constant(before: object, tokens: object) -> int:
    return 0


def polynomial(before: object, tokens: tuple[int, ...]) -> int:
    """31 * hash + token: one token more by 1 and the next less by 31 give the same."""
    value = before if isinstance(before, int) else 7
    for token in tokens:
        value = 31 * value + token
    return value


def pythons_own(before: object, tokens: tuple[int, ...]) -> int:
    return hash((before, tokens))


@pytest.mark.parametrize("hash_block", [constant, polynomial, pythons_own])
def test_case_6_a_collision_is_a_miss(hash_block) -> None:  # type: ignore[no-untyped-def]
    desk = Desk(lambda manager: HashCache(manager, hash_block))
    desk.serve([1, 2, 3, 4])
    assert desk.cached([1, 2, 3, 4, 9]) == 4
    for other in [5, 6, 7, 8], [2, 2 - 31, 3, 4], [1, 3, 3 - 31, 4], [1, 1, 3 + 31, 4]:
        assert desk.cached([*other, 9]) == 0
        desk.serve(other)
    assert desk.cached([1, 2, 3, 4, 9]) == 4, "never overwritten"


def test_case_6_the_first_to_come_keeps_the_key() -> None:
    desk = Desk(lambda manager: HashCache(manager, constant))
    desk.serve([1, 2, 3, 4])
    table = desk.start([5, 6, 7, 8])
    assert desk.cache.insert([5, 6, 7, 8], table) == 0
    desk.manager.free(table)
    assert (desk.cache.num_blocks, desk.manager.num_free_blocks) == (1, 7)
    assert desk.cache.evict(1) == 1
    desk.serve([5, 6, 7, 8])
    assert (desk.cached([1, 2, 3, 4, 9]), desk.cached([5, 6, 7, 8, 9])) == (0, 4), "now the key is free"


def test_case_6_the_same_tokens_after_a_collision_are_not_found() -> None:
    """Both blocks of a chain have equal tokens and equal keys; what comes before them tells them apart."""
    desk = Desk(lambda manager: HashCache(manager, lambda before, tokens: tokens))
    desk.serve([7] * 9)
    assert (desk.cache.num_blocks, desk.cached([7] * 9)) == (1, 4)
    assert desk.cached([1, 2, 3, 4, 7, 7, 7, 7, 9]) == 0


@both
def test_case_6_tokens_that_python_hashes_alike(kind: type) -> None:
    assert hash((-1,)) == hash((-2,))
    desk = Desk(kind, block_size=1)
    desk.serve([-1])
    assert (desk.cached([-2, 0]), desk.cached([-1, 0])) == (0, 1)


# ---- 7. the tenant is missing from the key (vLLM 3264, LMCache 690) ----------------------------------------


@both
def test_case_7_another_salt_finds_nothing(kind: type) -> None:
    desk = Desk(kind, num_blocks=12)
    salts = [None, "", "None", "a", "b", "(None, (0, 1, 2, 3))"]
    for salt in salts:
        assert desk.cached(range(9), salt) == 0
        desk.serve(range(8), salt)
        assert desk.cached(range(9), salt) == 8
    assert desk.cache.num_blocks == 12


def test_case_7_nor_does_it_with_a_hash_that_forgets_the_salt() -> None:
    desk = Desk(lambda manager: HashCache(manager, lambda before, tokens: tokens))
    desk.serve([1, 2, 3, 4], "a")
    assert (desk.cached([1, 2, 3, 4, 5], "b"), desk.cached([1, 2, 3, 4, 5], "a")) == (0, 4)


# ---- 8. the match is not locked (mini-sglang PR 52) --------------------------------------------------------


@both
def test_case_8_what_a_table_holds_is_not_evicted(kind: type) -> None:
    desk = Desk(kind)
    desk.serve(range(8))
    table, _ = desk.cache.acquire([*range(8), 99])
    assert desk.cache.evict(10) == 0
    desk.manager.free(table)
    assert desk.cache.evict(10) == 2
    assert desk.all_free


# ---- 9. a partial match pins too much ----------------------------------------------------------------------


@both
def test_case_9_a_partial_match_holds_only_what_it_matched(kind: type) -> None:
    desk = Desk(kind)
    desk.serve(range(12))
    table, cached = desk.cache.acquire([0, 1, 2, 3, 99])
    assert cached == 4
    assert desk.cache.evict(2) == 2
    desk.manager.free(table)
    assert desk.cache.evict(1) == 1
    assert desk.all_free


@both
def test_case_9_only_whole_blocks_match(kind: type) -> None:
    desk = Desk(kind)
    desk.serve(range(12))
    assert desk.cached([0, 1, 2, 3, 4, 5, 99, 98, 97]) == 4


# ---- 10. the order of eviction (llm-d-inference-sim 704) ---------------------------------------------------


@both
def test_case_10_the_tail_goes_first(kind: type) -> None:
    desk = Desk(kind)
    desk.serve(range(12))
    desk.pool.released.clear()
    assert desk.cache.evict(1) == 1
    assert desk.pool.released == [2]
    assert desk.cached(range(13)) == 8
    assert desk.cache.evict(9) == 2
    assert desk.pool.released == [2, 1, 0]
    assert desk.cached(range(13)) == 0


@both
def test_case_10_without_the_first_block_nothing_is_found(kind: type) -> None:
    """Its second and third block are cached, but as the beginning of another prompt."""
    desk = Desk(kind)
    desk.serve(range(4, 12))
    assert desk.cached(range(13)) == 0


# ---- 11. a split inside a block (the chapter's E5) ---------------------------------------------------------


@both
def test_case_11_a_run_is_never_split_inside_a_block(kind: type) -> None:
    desk = Desk(kind)
    desk.serve(range(12))
    desk.serve([0, 1, 2, 3, 4, 5, 99, 98])
    query = [0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 50]
    table, cached = desk.cache.acquire(query)
    assert cached == 4
    desk.compute(table, query, cached)
    assert desk.pool.read(table, 11) == desk.pool.of(query)
    assert desk.cached(range(13)) == 12
    assert desk.cached([0, 1, 2, 3, 4, 5, 99, 98, 0]) == 8


# ---- 12. a partial tail is shared without a copy -----------------------------------------------------------


A = [0, 1, 2, 3, 4, 5]
B = [*A, 6, 7, 8, 9]
D = [*A, 200, 201, 202, 203]


@both
def test_case_12_each_has_its_own_tail(kind: type) -> None:
    desk = Desk(kind)
    for tokens in A, B, D, B, D:
        assert desk.serve(tokens) == desk.pool.of(tokens)
    assert desk.cached([*B, 0]) == 8
    assert desk.cache.num_blocks == 3


@both
def test_case_12_and_so_has_each_fork(kind: type) -> None:
    """B and D are forks of A and write into its half-full block; both are cached, then found again."""
    desk = Desk(kind)
    a = desk.start(A)
    b, d = desk.manager.fork(a), desk.manager.fork(a)
    desk.compute(b, B, 6)
    desk.compute(d, D, 6)
    assert [desk.cache.insert(tokens, table) for tokens, table in ((A, a), (B, b), (D, d))] == [1, 1, 1]
    for table in a, b, d:
        desk.manager.free(table)
    assert desk.serve(B)[6:8] == desk.pool.of(B)[6:8]
    assert desk.serve(D) == desk.pool.of(D)


# ---- 13. twins admitted together ---------------------------------------------------------------------------


@both
@pytest.mark.parametrize("freed_first", [0, 1])
def test_case_13_of_twins_one_is_cached(kind: type, freed_first: int) -> None:
    desk = Desk(kind)
    twins = [desk.start(range(8)), desk.start(range(8))]
    assert [desk.cache.insert(range(8), twin) for twin in twins] == [2, 0]
    assert desk.cache.num_blocks == 2
    desk.manager.check()
    desk.manager.free(twins.pop(freed_first))
    desk.manager.free(twins.pop())
    assert desk.manager.free_queue == (4, 5, 6, 7, 3, 2)
    assert desk.cached(range(9)) == 8
    assert desk.cache.evict(9) == 2
    desk.manager.check()
    assert desk.all_free


@both
def test_case_13_the_second_twin_goes_on_below_the_first(kind: type) -> None:
    """What a twin computes later is cached after the first one's blocks, and found there."""
    desk = Desk(kind)
    first, second = desk.start(range(8)), desk.start(range(8))
    desk.cache.insert(range(8), first)
    desk.cache.insert(range(8), second)
    desk.compute(second, range(12), 8)
    assert desk.cache.insert(range(12), second) == 1
    table, cached = desk.cache.acquire(range(13))
    assert (cached, table.block_ids) == (12, (0, 1, 4))
    assert desk.pool.read(table, 12) == desk.pool.of(range(12))
    for each in first, second, table:
        desk.manager.free(each)
    assert desk.cache.evict(3) == 3
    assert desk.all_free


def test_the_tables_are_plain_block_tables() -> None:
    for kind in KINDS:
        assert type(kind(KVCacheManager(2, 4)).acquire([1]).table) is BlockTable
