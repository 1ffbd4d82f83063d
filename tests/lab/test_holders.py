"""What notebook 04 asks of a bench: a prefix taken from a cache, counts over time, who notices, rows."""

from collections import Counter

import pytest

from minikv import BlockTable, KVCacheManager
from minikv.errors import RefCountError, UnknownBlockError
from minikv.lab import Workbench, sabotage
from minikv.lab.holders import CountNotes, rows, sees_its_own_words, who_notices

FACTS = "Ada has three red kites . Bo has two gold cups ."


def with_cache(num_blocks=8):
    """A bench whose A has stored two facts in blocks 0 to 2, which a cache has taken."""
    bench = Workbench(num_blocks, block_size=4)
    a = bench.start(FACTS, "A")
    bench.prefill(a)
    for block_id in a.table.block_ids:
        bench.manager.inc_ref(block_id)
    return bench, a


# ---- a prefix taken from a cache --------------------------------------------------------------


def test_a_prefix_is_one_reference_more_and_no_data():
    bench, _ = with_cache()
    before, events = bench.pool.kv.clone(), len(bench.log)
    c = bench.start(f"{FACTS} What does Bo have ?", "C")
    bench.take_prefix(c, [0, 1, 2])
    assert (c.table.block_ids, c.num_stored) == ((0, 1, 2), 12)
    assert [block.ref_count for block in bench.manager.blocks] == [3, 3, 3, 0, 0, 0, 0, 0]
    assert bench.pool.kv.equal(before)
    assert [event["op"] for event in bench.log[events + 1 :]] == ["share"] * 3
    bench.manager.check()
    state = bench.log.state(len(bench.log) - 1)
    assert (state.owners(0), state.cache_refs[0], state.text_of("C")) == (("A", "C"), 1, tuple(FACTS.split()))


def test_who_took_a_prefix_says_what_a_request_of_its_own_would_and_gives_all_back():
    bench, a = with_cache()
    c = bench.start(f"{FACTS} What does Bo have ?", "C")
    bench.take_prefix(c, [0, 1, 2])
    bench.finish(a)
    assert bench.finish_sentence(c) == "Bo has two gold cups ."
    alone = Workbench(num_blocks=8, block_size=4)
    assert alone.ask(f"{FACTS} What does Bo have ?") == bench.said(c)
    bench.finish(c)
    for block_id in (2, 1, 0):
        bench.manager.dec_ref(block_id)
    assert bench.manager.free_queue == (6, 7, 5, 4, 3, 2, 1, 0)
    more = Counter(e["block_id"] for e in bench.log if e["op"] in ("allocate", "share", "inc_ref"))
    less = Counter(e["block_id"] for e in bench.log if e["op"] in ("drop", "dec_ref"))
    assert more == less == {0: 3, 1: 3, 2: 3, 3: 1, 4: 1, 5: 1}
    assert not bench.log.violations


@pytest.mark.parametrize(
    ("prompt", "blocks", "error", "part"),
    [
        (
            f"{FACTS} Eva",
            [0, 1, 5],
            RefCountError,
            "block 5 is free, its count is 0; a prefix is made of held",
        ),
        (f"{FACTS} Eva", [0, 9], UnknownBlockError, "block 9 does not exist"),
        (f"{FACTS} Eva", [1, 0], ValueError, r"in blocks 1, 0 stands \['kites'.*the prompt of request C is"),
        (f"{FACTS} Eva", [0, 0], ValueError, "give full blocks with its first words"),
        ("Bo has two gold cups . Eva", [0], ValueError, "in blocks 0 stands"),
        (FACTS, [0, 1, 2], ValueError, "but not with all of them"),
    ],
)
def test_a_prefix_that_is_none_is_refused_and_changes_nothing(prompt, blocks, error, part):
    bench, _ = with_cache()
    c = bench.start(prompt, "C")
    before, events = bench.manager.snapshot(), len(bench.log)
    with pytest.raises(error, match=part):
        bench.take_prefix(c, blocks)
    assert (bench.manager.snapshot(), len(bench.log), c.table.num_blocks) == (before, events, 0)


def test_a_block_that_is_not_full_is_no_part_of_a_prefix():
    bench = Workbench(num_blocks=8, block_size=8)
    a = bench.start(FACTS, "A")
    bench.prefill(a)
    with pytest.raises(ValueError, match="give full blocks"):
        bench.take_prefix(bench.start(f"{FACTS} Eva", "C"), [0, 1])


def test_no_block_stands_for_two_stretches():
    bench = Workbench(num_blocks=4, block_size=4)
    bench.prefill(bench.start("Ada has Ada has", "A"))
    before = bench.manager.snapshot()
    with pytest.raises(ValueError, match="give full blocks"):
        bench.take_prefix(bench.start("Ada has Ada has Ada has Ada has Ada", "C"), [0, 0])
    assert bench.manager.snapshot() == before


def test_a_request_that_has_begun_takes_no_prefix():
    bench, a = with_cache()
    with pytest.raises(ValueError, match="request A has stored 12 tokens already"):
        bench.take_prefix(a, [0])


# ---- counts over time, and who notices --------------------------------------------------------


def test_count_notes_keep_the_counts_and_say_when_the_block_is_free():
    manager, table = KVCacheManager(num_blocks=4, block_size=4), BlockTable(4)
    manager.allocate(table, 8)
    note = CountNotes(manager, block_id=1)
    assert note("A is there") == "1  A is there                 count 1   free queue 2 3"
    manager.free(table)
    assert note("A ends") == "2  A ends                     count 0   free queue 2 3 1 0"
    assert (note.counts, note.free_at) == ([1, 0], [2])


def setting():
    manager, a = KVCacheManager(num_blocks=4, block_size=4), BlockTable(4)
    manager.allocate(a, 4)
    return manager, a, manager.fork(a)


def test_who_notices_a_wrong_call():
    manager, a, _ = setting()
    assert who_notices(manager, a.clear) == ("check", "I2 ref-count: block 0 has count 2 and 1 holder")
    manager, _, _ = setting()
    assert who_notices(manager, manager.dec_ref, 0) == (
        "check",
        "I2 ref-count: block 0 has count 1 and 2 holders",
    )
    manager, _, _ = setting()
    assert who_notices(manager, manager.dec_ref, 3).who == "refused"
    assert who_notices(manager, manager.inc_ref, 0) == ("nobody", "")
    with pytest.raises(UnknownBlockError):
        who_notices(manager, manager.inc_ref, 9)


# ---- rows -------------------------------------------------------------------------------------


def test_rows_show_the_tables_and_the_free_queue():
    bench, a = with_cache(num_blocks=5)
    b = bench.fork(a, "B")
    bench.say(b, "Eva")
    assert rows(bench, "B").splitlines() == [
        "B  L0 → P0  Ada has three red",
        "   L1 → P1  kites . Bo has",
        "   L2 → P2  two gold cups .",
        "   L3 → P3  Eva (has) _ _",
        "Free queue: P4",
    ]
    assert len(rows(bench, "A", "B").splitlines()) == 8
    assert rows(bench, step=0) == "Free queue: P0 › P1 › P2 › P3 › P4"
    with pytest.raises(KeyError):
        rows(bench, "Z")


def test_who_sees_its_own_words_and_who_does_not():
    bench = Workbench(num_blocks=3, block_size=6)
    a = bench.start(FACTS, "A")
    bench.prefill(a)
    b = bench.fork(a, "B")
    with sabotage("no-ref-counts", bench):
        bench.finish(a)
        c = bench.start("Eva has six grey drums .", "C")
        bench.prefill(c)
    assert (b.table.block_ids, c.table.block_ids) == ((0, 1), (2,))
    assert sees_its_own_words(bench, b) and sees_its_own_words(bench, c)
    bench.prefill(bench.start("It is late . Tea is ready .", "D"))  # in blocks 1 and 0
    assert not sees_its_own_words(bench, b) and sees_its_own_words(bench, c)
