"""The learner's counting: the judges of notebook 04, and counts that stand in for ours."""

import re
from collections import deque

import pytest

from minikv import BlockTable, KVCacheManager
from minikv.errors import RefCountError
from minikv.lab import Workbench
from minikv.lab.exercises import check, get, solution
from minikv.lab.exercises.ref_counts import MyRefCounts
from minikv.lab.try_counts import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    CountedManager,
    share_and_part,
    try_counts,
)

WRONG = dict(get("04.refs").wrong)


# ---- the exercises ------------------------------------------------------------------------


def test_the_solution_is_code_that_passes():
    scope = {"deque": deque, "RefCountError": RefCountError}
    exec(solution("04.refs"), scope)
    assert check("04.refs", scope["MyRefCounts"]).ok


@pytest.mark.parametrize(
    ("mistake", "invariant", "part"),
    [
        ("frees at count 1", "I1", "the free queue is [2, 1, 0]; it should be [2, 1]; see block 0"),
        ("never frees", "I1", "see block 1"),
        ("goes below zero without a word", "I2", "block 0 is free: raise RefCountError, not False"),
        ("lets a free block be shared", "I2", "at share(0): block 0 is free: raise RefCountError"),
        ("drops first and looks then", "I2", "the count of block 0 is -1; it should be 0"),
        ("frees to the head of the queue", None, "the free queue is [1, 2]; it should be [2, 1]"),
        ("free_table begins with the first block", None, "[2, 0, 1, 3]; it should be [2, 3, 1, 0]"),
        (
            "free_table finds a free block when it has dropped others",
            "I2",
            "(1, 2)): the count of block 2 is 0; it should be 1; a call that raises changes nothing",
        ),
        (
            "free_table skips a free block",
            "I2",
            "at free_table((1, 2)): block 1 is free: raise RefCountError",
        ),
        ("counts tables, not holders of a block", "I2", "the count of block 1 is 2; it should be 1"),
        ("untouched starter", None, "not answered yet"),
    ],
)
def test_a_verdict_names_the_call_the_block_and_the_invariant(mistake, invariant, part):
    verdict = check("04.refs", WRONG[mistake])
    assert (verdict.ok, verdict.invariant) == (False, invariant)
    assert part in verdict.message


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"drop": None}, "TypeError"),
        ({"counts": property(lambda self: [])}, "AttributeError"),
        ({"share": lambda self, block_id: 1 / 0}, "ZeroDivisionError"),
        ({"take": lambda self: self.nothing}, "AttributeError"),
        ({"free_table": lambda self, block_ids: self.drop(7)}, "IndexError"),
    ],
)
def test_code_that_raises_or_is_missing_is_shown(body, part):
    verdict = check("04.refs", type("Broken", (MyRefCounts,), body))
    assert not verdict.ok
    assert part in verdict.message


def test_what_share_and_free_table_give_back_is_their_own_affair():
    class Chatty(MyRefCounts):
        def share(self, block_id):
            super().share(block_id)
            return self.counts[block_id]

        def free_table(self, block_ids):
            super().free_table(block_ids)
            return len(block_ids)

    assert check("04.refs", Chatty).ok


@pytest.mark.parametrize("seed", range(20))
def test_the_counts_of_a_story_are_those_of_a_bench_that_plays_it(seed):
    """What the question tells, played with a model and a pool, ends in the same counts."""
    exercise = get(f"04.counts#{seed}")
    told = re.search(
        r"prompt of (\d+) words.*first (?:(\d+) words are|word is) stored.*first (?:(\d+) blocks|block)\.",
        exercise.question,
    )
    prompt, words, kept = (int(number or 1) for number in told.groups())
    bench = Workbench(num_blocks=8, block_size=4)
    text = "Ada has three red kites . Bo has two gold cups . What does".split()
    a = bench.start(" ".join(text[:prompt]), "A")
    bench.prefill(a)
    b = bench.fork(a, "B")
    bench.say(b, " ".join(text[:words]))
    for block_id in a.table.block_ids[:kept]:
        bench.manager.inc_ref(block_id)
    bench.finish(a)
    assert [block.ref_count for block in bench.manager.blocks] == exercise.right


def test_a_full_last_block_is_not_copied_and_the_hints_say_so():
    full = [
        seed for seed in range(40) if re.search(r"prompt of [48] words", get(f"04.counts#{seed}").question)
    ]
    assert 5 < len(full) < 20
    for seed in full:
        exercise = get(f"04.counts#{seed}")
        assert any("a full block is not copied" in why for why, _ in exercise.wrong)
        assert "to the last slot" in exercise.hints[0] and "ever copied?" in exercise.hints[1]
    for seed in set(range(40)) - set(full):
        assert "is not full" in get(f"04.counts#{seed}").hints[0]


@pytest.mark.parametrize("seed", range(20))
def test_the_log_that_does_not_add_up_is_wrong_in_one_block(seed):
    """Counted from the question alone; and played, the block leaks, or is freed while somebody holds it."""
    exercise = get(f"04.pairs#{seed}")
    block, kind = exercise.right
    steps = [(sign, int(number)) for sign, number in re.findall(r" ([+-])(\d)", exercise.question)]
    left = {number: 0 for _, number in steps}
    early = []
    for place, (sign, number) in enumerate(steps):
        left[number] += 1 if sign == "+" else -1
        if left[number] == 0 and ("-", number) in steps[place + 1 :]:
            early.append(number)
    assert {number: count for number, count in left.items() if count} == {
        block: 1 if kind == "missing" else -1
    }
    assert early == ([] if kind == "missing" else [block])


def test_the_word_for_a_log_may_not_be_another_one():
    block, kind = get("04.pairs").right
    assert check("04.pairs", [block, kind]).ok
    assert "is none of them" in check("04.pairs", (7, kind)).message
    assert "that adds up" in check("04.pairs", (3, kind)).message


def in_both_orders(table_a, table_b, num_blocks):
    """Managers after A, then B, was freed, and after B, then A; these are their tables over 4-slot blocks."""
    shared = sum(a == b for a, b in zip(table_a, table_b, strict=False))
    ends = []
    for order in ((0, 1), (1, 0)):
        manager, a = KVCacheManager(num_blocks, 4), BlockTable(4)
        manager.allocate(a, 4 * shared)
        tables = (a, manager.fork(a))
        for block_id in sorted(set(table_a + table_b))[shared:]:
            table = tables[block_id in table_b]
            manager.allocate(table, table.capacity + 4)
        assert [list(table.block_ids) for table in tables] == [table_a, table_b]
        for place in order:
            manager.free(tables[place])
        manager.check()
        ends.append(manager)
    return ends


@pytest.mark.parametrize("seed", range(20))
def test_of_two_that_end_together_only_the_queues_order_depends_on_the_order(seed):
    exercise = get(f"12.Q2#{seed}")
    lists = [[int(i) for i in found.split(", ")] for found in re.findall(r"\[([\d, ]+)\]", exercise.question)]
    table_a, table_b, free, shared = lists
    first, second = in_both_orders(table_a, table_b, len({*table_a, *table_b, *free}))
    assert [block.ref_count for block in first.blocks] == [block.ref_count for block in second.blocks]
    assert sorted(first.free_queue) == sorted(second.free_queue)
    assert first.free_queue[-len(shared) :] == second.free_queue[-len(shared) :]
    letter = "a" if first.free_queue == second.free_queue else "c"
    assert (letter == "a") == (len(shared) in (len(table_a), len(table_b)))
    assert exercise.right == (list(first.free_queue), list(second.free_queue), letter)


def test_the_order_matters_in_some_variants_and_not_in_others():
    letters = [get(f"12.Q2#{seed}").right[2] for seed in range(30)]
    assert get("12.Q2").right[2] == "c"
    assert 8 <= letters.count("a") <= 22
    assert set(letters) == {"a", "c"}


@pytest.mark.parametrize("letter", ["c", "C", "c)", "(c)", " c ", "C."])
def test_a_letter_may_be_typed_in_many_ways(letter):
    assert check("12.Q2", (*get("12.Q2").right[:2], letter)).ok


@pytest.mark.parametrize("letter", ["", "e", "ab", 3, None, ["c"]])
def test_what_is_no_letter_is_refused(letter):
    assert "the statement is one of a, b, c, d" in check("12.Q2", (*get("12.Q2").right[:2], letter)).message


def test_without_blocks_of_their_own_the_order_changes_nothing_at_all():
    first, second = in_both_orders([0, 1, 2], [0, 1, 2], 6)
    assert first.free_queue == second.free_queue == (3, 4, 5, 2, 1, 0)


# ---- counts that stand in for ours --------------------------------------------------------


def test_the_story_is_what_its_docstring_promises():
    bench = Workbench(NUM_BLOCKS, BLOCK_SIZE)
    said = list(share_and_part(bench))
    assert said == [
        "B is told: Bo has two gold cups .",
        "D is told: Ada has three red kites .",
        "at the end the free queue has 5 entries, in a pool of 5 blocks",
    ]
    taken = {}
    for event in bench.log:
        if event["op"] in ("allocate", "copy"):
            taken.setdefault(event["request"], []).append(event["block_id"])
    assert (taken["Z"], taken["A"], taken["C"], taken["B"]) == ([0, 1, 2], [3, 4], [2, 1], [0])
    assert taken["D"][0] == 1
    assert not bench.log.violations


def test_the_solution_stands_in_without_divergence():
    tried = try_counts(get("04.refs").right)
    assert tried.first is None
    assert "B is told: Bo has two gold cups ." in tried.said
    assert "D is told: Ada has three red kites ." in tried.said


@pytest.mark.parametrize(
    ("mistake", "invariant", "block"),
    [
        ("frees at count 1", "I1", 4),
        ("never frees", "I1", 2),
        ("frees at every drop", "I2", 4),
        ("share counts nothing", "I2", 3),
        ("counts tables, not holders of a block", "I2", 3),
        ("free_table drops the last block only", "I2", 3),
        ("frees to the head of the queue", None, 0),
        ("free_table begins with the first block", None, 0),
    ],
)
def test_the_first_divergence_is_named_and_shown(mistake, invariant, block):
    tried = try_counts(WRONG[mistake])
    first = tried.first
    assert (first.invariant, first.block_id) == (invariant, block)
    shown = tried.map()
    assert (shown.step, shown.highlight) == (first.step, [block])
    assert first.sentence in repr(tried)


@pytest.mark.parametrize("mistake", ["frees at count 1", "frees at every drop", "share counts nothing"])
def test_who_frees_too_early_is_told_a_strangers_words(mistake):
    assert "B is told: Bo has nine black horses ." in try_counts(WRONG[mistake]).said


def test_counts_that_are_not_written_yet_run_nothing():
    tried = try_counts(WRONG["untouched starter"])
    assert tried.said is None
    assert len(tried.log) == 0
    assert "not written yet" in repr(tried)


def test_code_that_raises_is_shown_and_nonsense_is_refused():
    class Unfinished(MyRefCounts):
        def share(self, block_id):
            raise RuntimeError("still thinking")

    assert "the run stops with RuntimeError: still thinking" in try_counts(Unfinished).said
    with pytest.raises(TypeError, match="leave off the brackets"):
        try_counts(MyRefCounts(4))


def test_a_manager_that_only_counts_keeps_our_books():
    """The same calls on ours and on one that leaves counting to the solution: the same blocks and queue."""
    theirs, ours = CountedManager(MyRefCounts(8), 4), KVCacheManager(8, 4)
    ends = []
    for manager in (theirs, ours):
        a = BlockTable(4)
        assert manager.allocate(a, 10)
        b = manager.fork(a)
        assert manager.copy_on_write(b, 10) == (2, 3)
        assert manager.copy_on_write(a, 10) is None
        assert not manager.allocate(b, 40)
        manager.free(a)
        ends.append((a.block_ids, b.block_ids, tuple(manager.free_queue)))
    assert ends[0] == ends[1]
    assert list(theirs.ref_counts) == [block.ref_count for block in ours.blocks]
