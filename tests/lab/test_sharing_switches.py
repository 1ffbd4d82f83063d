"""A cache that cuts inside a block, and a shared block that nobody copies: what the model then says."""

import pytest

from minikv.errors import InvariantError
from minikv.lab import Workbench, sabotage
from minikv.lab.kv_truth import first_foreign
from minikv.lab.prefix_bench import PrefixBench
from minikv.lab.sabotage import SWITCHES
from minikv.lab.switches.sharing import SplitAnywhere
from minikv.manager import KVCacheManager

SHOP = "The shop opens at noon ."
ADA, BO, EVA = "Ada has three red kites .", "Bo has two gold cups .", "Eva has four blue boats ."


def three_prompts(bench):
    for prompt in (f"{SHOP} {ADA} {EVA}", f"{SHOP} Bo has nine black horses ."):
        request = bench.start(prompt)
        bench.prefill(request)
        bench.finish(request)
    return bench.start(f"{ADA} {EVA} {BO} What does Bo have ?", "Q")


# ---- split-anywhere ----------------------------------------------------------------------------


def test_cut_inside_a_block_bo_has_adas_kites_and_the_books_are_in_order():
    bench = PrefixBench(8, 8)
    with sabotage("split-anywhere", bench):
        q = three_prompts(bench)
        assert (q.num_stored, q.table.block_ids, q.table.offset) == (10, (0, 1), 6)
        assert bench.cache.nobodys() == [(0, 6)]
        assert bench.finish_sentence(q) == "Bo has three red kites ."
        bench.manager.check()
    assert not bench.log.violations
    bench.manager.check()  # the careless cache has let go of its references


def test_only_computing_it_again_finds_it():
    bench = PrefixBench(8, 8)
    with sabotage("split-anywhere", bench):
        q = three_prompts(bench)
        foreign = first_foreign(bench, q)
        assert (foreign.position, foreign.word, foreign.block_id, foreign.place) == (0, "Ada", 0, 6)
        assert foreign.num_wrong == 10
        assert repr(foreign).startswith("position 0 (“Ada”), block 0, place 6")


def test_cut_at_boundaries_it_is_told_the_truth():
    bench = PrefixBench(8, 8)
    q = three_prompts(bench)
    assert q.num_stored == 0
    assert bench.finish_sentence(q) == "Bo has two gold cups ."
    assert first_foreign(bench, q) is None


@pytest.mark.parametrize("broken", [False, True])
def test_the_honest_cache_comes_back(broken):
    bench = PrefixBench(8, 8)
    honest = bench.cache
    if broken:
        with pytest.raises(RuntimeError), sabotage("split-anywhere", bench):
            raise RuntimeError
    else:
        with sabotage("split-anywhere", bench):
            assert bench.cache is not honest
    assert bench.cache is honest


def test_a_bench_without_a_cache_is_refused():
    with pytest.raises(ValueError, match="no prefix cache"), sabotage("split-anywhere", Workbench(4)):
        pass


# The cache itself, with tokens for words: it is wrong in one way, and in no other.


def store(cache, tokens):
    table, known = cache.acquire(tokens)
    assert known % cache.manager.block_size == 0 or table.offset
    cache.manager.allocate(table, len(tokens))
    if not table.offset:
        cache.insert(tokens, table)
    cache.manager.free(table)
    return known


def test_whole_blocks_are_found_as_by_an_honest_cache():
    cache = SplitAnywhere(KVCacheManager(12, 4))
    assert store(cache, range(12)) == 0
    assert store(cache, [*range(12), 50]) == 12
    assert store(cache, [*range(8), 99, 98]) == 8
    assert store(cache, [*range(12), 50]) == 12
    assert cache.nobodys() == []
    cache.manager.check()


def test_what_lies_between_the_boundary_and_the_cut_is_nobodys():
    cache = SplitAnywhere(KVCacheManager(12, 4))
    store(cache, range(12))
    assert store(cache, [*range(6), 99, 98]) == 4  # cut at 6: four tokens stay in front, two are nobody's
    assert cache.nobodys() == [(1, 2)]
    assert store(cache, range(13)) == 4  # the original way is no longer found to its end
    assert store(cache, [*range(6, 12), 50]) == 0  # a rest behind a front is not found from the root


def test_a_rest_without_a_front_is_found_without_what_came_before_it():
    cache = SplitAnywhere(KVCacheManager(12, 4))
    store(cache, range(12))
    store(cache, [0, 1, 99, 98])
    table, known = cache.acquire([*range(2, 12), 50])
    assert (known, table.offset, table.block_ids) == (10, 2, (0, 1, 2))
    cache.manager.free(table)
    before = cache.num_blocks
    assert before == 4 and cache.evict(3) == 0
    cache.clear()
    assert cache.num_blocks == 0 and cache.manager.num_free_blocks == 12
    cache.manager.check()


# ---- no-copy -----------------------------------------------------------------------------------


def two_users(bench):
    a = bench.start(SHOP, "A")
    bench.prefill(a)
    b = bench.fork(a, "B")
    bench.say(a, ADA), bench.say(b, "Bo has nine black horses .")
    bench.say(a, "What does Ada have ?"), bench.say(b, "What does Bo have ?")
    return bench.finish_sentence(a), bench.finish_sentence(b)


def test_without_a_copy_ada_is_told_what_bo_has():
    bench = Workbench(4, 12)
    with sabotage("no-copy", bench) as switch:
        assert two_users(bench) == ("Ada has nine black horses .", "Bo has nine black horses .")
    first, second = bench.log.violations
    assert (first.name, first.block_id) == (second.name, second.block_id) == (switch.invariant, 0)
    assert [bench.log[found.step]["request"] for found in (first, second)] == ["A", "B"]
    assert bench.log[second.step]["words"] == ["Bo"]
    assert not [event for event in bench.log if event["op"] == "copy"]
    bench.manager.check()  # nothing is left to see in the books


def test_with_copies_both_are_told_the_truth():
    bench = Workbench(5, 12)
    assert two_users(bench) == ("Ada has three red kites .", "Bo has nine black horses .")
    assert not bench.log.violations


def test_the_honest_manager_comes_back_and_refuses_such_a_write():
    bench = Workbench(4, 12)
    honest = bench.manager
    with pytest.raises(RuntimeError), sabotage("no-copy", bench):
        assert bench.manager is bench.loop.manager is not honest
        raise RuntimeError
    assert bench.manager is bench.loop.manager is honest
    a = bench.start(SHOP, "A")
    bench.prefill(a)
    b = bench.fork(a, "B")
    with pytest.raises(InvariantError, match="I4"):
        honest.note_write(b.table, 6, 7)


def test_each_says_what_it_breaks():
    assert SWITCHES["no-copy"].invariant == "I4 no-shared-write"
    assert "promise" in SWITCHES["split-anywhere"].invariant  # none of the six names it
    assert SWITCHES["no-copy"].says and SWITCHES["split-anywhere"].says
