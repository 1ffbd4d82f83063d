"""Random requests over each prefix cache: after each step it agrees with the obvious books, and every slot
that a table shows holds the fingerprint of exactly its prefix."""

import os

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from minikv.engine.hash_cache import HashCache
from minikv.engine.radix_cache import RadixCache
from minikv.manager import KVCacheManager
from tests.engine.prefix_books import CacheWalk, Place, lead

OPERATIONS = int(os.environ.get("MINIKV_OPERATIONS", "1000000"))
POOLS = [(12, 1), (10, 3), (10, 4), (9, 16)]  # num_blocks, block_size
KINDS = {"radix": RadixCache, "hash": HashCache}
both = pytest.mark.parametrize("kind", KINDS)


class Machine(RuleBasedStateMachine):
    """Hypothesis chooses the operations, and shortens what fails to the few that matter."""

    @initialize(kind=st.sampled_from(sorted(KINDS)), pool=st.sampled_from(POOLS))
    def start(self, kind: str, pool: tuple[int, int]) -> None:
        self.walk = CacheWalk(*pool, KINDS[kind])

    @rule(
        op=st.sampled_from((*sorted(set(CacheWalk.OPS)), *CacheWalk.RARE)),
        a=st.integers(0, 2**16 - 1),
        b=st.integers(0, 2**16 - 1),
        c=st.integers(0, 2**64 - 1),
    )
    def step(self, op: str, a: int, b: int, c: int) -> None:
        self.walk.step(op, a, b, c)


def test_whatever_hypothesis_does() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=150, stateful_step_count=40))


def random_operations(kind: str, total: int) -> None:
    walks = lead(KINDS[kind], POOLS, total // len(POOLS))
    for walk in walks:
        assert walk.hits and walk.evicted and walk.idle_parents, "the walk met too little"
    print(f"{kind}: {sum(w.hits for w in walks):,} blocks found, {sum(w.evicted for w in walks):,} evicted")


@both
def test_100_000_random_operations(kind: str) -> None:
    random_operations(kind, 100_000)


@pytest.mark.nightly
@both
def test_many_random_operations(kind: str) -> None:
    random_operations(kind, OPERATIONS)


# ---- a hash with many collisions: fewer hits, none of them wrong -------------------------------------------


def weak(before: object, tokens: tuple[int, ...]) -> int:
    """Three bits for a block."""
    return ((before if isinstance(before, int) else len(before or "")) * 5 + 3 * tokens[0] + tokens[-1]) % 8  # type: ignore[arg-type]


def weak_key(place: Place, block_size: int) -> int:
    """The key that a place has, worked out from its beginning."""
    salt, tokens = place
    key: object = salt
    for start in range(0, len(tokens), block_size):
        key = weak(key, tokens[start : start + block_size])
    assert isinstance(key, int)
    return key


def weak_cache(manager: KVCacheManager) -> HashCache:
    return HashCache(manager, weak)


@pytest.mark.parametrize("pool", POOLS)
def test_collisions_cost_hits_and_nothing_else(pool: tuple[int, int]) -> None:
    walk = CacheWalk(*pool, weak_cache, lambda place: weak_key(place, pool[1]))
    walk.random_steps(5_000, 11)
    assert walk.hits > 50
    assert len({weak_key(place, pool[1]) for place in walk.books.blocks}) == len(walk.books.blocks) <= 8
