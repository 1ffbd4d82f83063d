"""The workbench with a prefix cache, and the comparison with KV that was computed without one."""

import pytest

from minikv.engine.hash_cache import HashCache
from minikv.engine.radix_cache import RadixCache
from minikv.errors import RefCountError
from minikv.lab import Workbench
from minikv.lab.kv_truth import first_foreign
from minikv.lab.prefix_bench import PrefixBench

ADA, BO, EVA = "Ada has three red kites .", "Bo has two gold cups .", "Eva has six grey drums ."


@pytest.mark.parametrize("kind", [RadixCache, HashCache])
def test_a_prompt_takes_over_the_whole_blocks_that_it_begins_with(kind):
    bench = PrefixBench(16, 4, new_cache=kind)
    plain = Workbench(16, 4)
    for prompt, cached in (
        (f"{ADA} {BO} What does Bo have ?", 0),
        (f"{ADA} {BO} Tell me what Ada has .", 12),
        (f"{ADA} {EVA} What does Eva have ?", 4),
        (f"Tea is ready . {ADA} What does Ada have ?", 0),
    ):
        request = bench.start(prompt)
        assert request.num_stored == cached
        assert bench.finish_sentence(request) == plain.ask(prompt)
        assert first_foreign(bench, request) is None
        bench.finish(request)
        bench.manager.check()
        plain = Workbench(16, 4)
    assert not bench.log.violations


def test_a_full_pool_makes_room_least_recently_used_first():
    bench = PrefixBench(6, 4)
    for prompt in (f"{ADA} {BO}", f"{ADA} {EVA}", "Tea is ready .", f"{ADA} {BO}"):
        request = bench.start(prompt)
        bench.prefill(request)
        bench.finish(request)
    assert bench.manager.num_free_blocks == 0 and bench.cache.num_blocks == 6
    new = bench.start("Finn has five green bells . What does Finn have")
    bench.prefill(new)
    assert new.table.block_ids == (4, 3, 5)


def test_a_part_of_a_block_is_copied_at_the_first_write():
    bench = PrefixBench(8, 8)
    s = bench.start(f"The shop opens at noon . {ADA} {EVA} What does Ada have ?", "S")
    bench.prefill(s)
    p = bench.start("The shop opens at noon . Bo has nine black horses . What does Bo have ?", "P")
    assert p.num_stored == 0
    bench.take_part(p, block_id=0, num_tokens=6)
    assert bench.finish_sentence(p) == "Bo has nine black horses ."
    assert p.table.block_ids == (5, 3, 4) and first_foreign(bench, p) is None
    assert bench.finish_sentence(s) == "Ada has three red kites ." and first_foreign(bench, s) is None
    assert [(e["source"], e["block_id"]) for e in bench.log if e["op"] == "copy"] == [(0, 5)]
    assert not bench.log.violations


def test_a_part_is_refused_from_a_free_block_or_when_the_request_has_begun():
    bench = PrefixBench(8, 8)
    p = bench.start(ADA)
    with pytest.raises(RefCountError):
        bench.take_part(p, block_id=0, num_tokens=6)
    bench.prefill(p)
    with pytest.raises(ValueError, match="has stored 6 tokens already"):
        bench.take_part(p, block_id=0, num_tokens=6)


def test_a_request_whose_front_is_gone_is_not_cached():
    bench = PrefixBench(8, 4)
    request = bench.start(f"{ADA} {BO}")
    bench.prefill(request)
    assert bench.cache.num_blocks == 3
    bench.slide(request, 5)
    bench.finish(request)
    assert bench.cache.num_blocks == 3
    bench.manager.check()


@pytest.mark.parametrize("position", [0, 5, 9])
def test_one_wrong_number_is_found_and_named(position):
    bench = Workbench(6, 4)
    request = bench.start(f"{ADA} {BO}")
    bench.prefill(request)
    assert first_foreign(bench, request) is None
    slot = request.table.slot(position)
    bench.pool.kv[2, slot // 4, 1, 3, slot % 4, 7] += 0.01
    foreign = first_foreign(bench, request)
    assert (foreign.position, foreign.block_id, foreign.place) == (position, slot // 4, slot % 4)
    assert foreign.num_wrong == 1 and "more" not in repr(foreign)
