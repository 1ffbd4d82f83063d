"""A learner's manager stands in for ours: what it did is drawn, its first divergence named."""

from contextlib import suppress

import pytest

from minikv import BlockTable, KVCacheManager
from minikv.lab import Workbench
from minikv.lab.exercises import check, get, solution
from minikv.lab.stand_in import come_and_go, try_manager
from minikv.lab.watched import Watched

ANSWER = "the model says: Ada has three red kites ."
WRONG = dict(get("03.manager").wrong)


def test_ours_and_the_solution_stand_in_without_divergence():
    for manager_class in (KVCacheManager, get("03.manager").right):
        tried = try_manager(manager_class)
        assert (tried.said, tried.first) == (ANSWER, None)
        assert tried.map().step == len(tried.log) - 1
        assert "Every slot was the right one" in repr(tried)


def test_ours_passes_the_judge():
    assert check("03.manager", KVCacheManager).ok


def test_the_story_is_as_its_docstring_has_it():
    bench = Workbench(num_blocks=10, block_size=4)
    assert come_and_go(bench) == "Ada has three red kites ."
    tables = bench.log.state(len(bench.log) - 1).tables
    assert tables == {"A": (0, 1, 2, 3, 4, 6), "B": (), "C": (), "D": (8, 9), "E": (5, 7)}
    assert bench.manager.utilization == 1.0
    (refused,) = [event for event in bench.log if event["op"] == "full"]
    assert (refused["request"], refused["needed"], refused["free"]) == ("E", 2, 1)


FIRST = [
    ("rounds down", "I5", 4, "After allocate(A, 17) the table is 0, 1, 2, 3; it should be 0, 1, 2, 3, 4"),
    ("forgets the offset", "I5", 7, "After allocate(C, 4) the table is 6; it should be 6, 7"),
    ("partial allocation", None, 5, "After allocate(E, 6) the table is 5; it should be empty"),
    ("answers True when it refused", "I5", None, "The answer to allocate(E, 6) is True; it should be False"),
    ("answers nothing", None, None, "The answer to allocate(A, 17) is None; it should be True"),
    ("last in, first out", None, 5, "After free(B) the free queue is 5, 8, 9; it should be 8, 9, 5"),
    ("frees the head of the table first", None, 6, "After free(C) the free queue is 5, 6, 7; it should"),
    ("loses what it took when it refuses", "I1", 5, "Block 5 is lost"),
    ("hands out the head without taking it off", "I1", 4, "Block 4 is both free and held"),
    ("lists each block twice", "I2", 0, "Block 0's ref count is 1, but it has 2 holders"),
    ("forgets to give blocks back", "I1", 5, "Block 5 is lost"),
    ("leaves a freed table filled", "I1", 5, "Block 5 is both free and held"),
    ("gives every block back twice", "I1", 5, "Block 5 is in the free queue 2 times"),
]


@pytest.mark.parametrize(("mistake", "invariant", "block", "sentence"), FIRST)
def test_the_first_divergence_of_a_wrong_manager_is_named(mistake, invariant, block, sentence):
    tried = try_manager(WRONG[mistake])
    first = tried.first
    assert (first.invariant, first.block_id) == (invariant, block)
    assert first.sentence.startswith(sentence)
    assert (invariant or "no invariant broken") in repr(tried)
    shown = tried.map()
    assert (shown.step, shown.highlight) == (first.step, [] if block is None else [block])


@pytest.mark.parametrize("mistake", [each for each in WRONG if each != "untouched starter"])
def test_what_is_drawn_last_is_the_queue_they_have(mistake):
    theirs = WRONG[mistake](10, 4)
    manager, bench = watched(theirs, 10, 4)
    bench.manager = bench.loop.manager = manager
    with suppress(Exception):
        come_and_go(bench)
    assert bench.log.state(len(bench.log) - 1).free_queue == tuple(theirs.free_queue)


def test_code_that_is_not_written_yet_runs_nothing():
    tried = try_manager(WRONG["untouched starter"])
    assert (tried.said, len(tried.log), tried.first) == (None, 0, None)
    assert "not written yet" in repr(tried)


def test_the_map_shows_their_queue_and_not_ours():
    tried = try_manager(WRONG["last in, first out"])
    assert tried.log.state(tried.first.step).free_queue == (5, 8, 9)


def test_a_counter_instead_of_a_queue_gives_ada_the_wrong_things():
    class Ring:
        def __init__(self, num_blocks, block_size):
            self.num_blocks, self.next = num_blocks, 0

        def allocate(self, table, num_tokens):
            while table.capacity < num_tokens:
                table.append_block(self.next)
                self.next = (self.next + 1) % self.num_blocks
            return True

        def free(self, table):
            table.clear()

    tried = try_manager(Ring)
    assert tried.said == "the model says: Ada has six grey drums ."  # E's, which lie over Ada's
    assert (tried.first.invariant, tried.first.block_id) == ("I2", 0)
    assert "request A and request E" in tried.first.sentence


def test_code_that_raises_is_shown():
    class Loud(get("03.manager").right):
        def free(self, table):
            raise RuntimeError("not today")

    tried = try_manager(Loud)
    assert tried.said == "the run stops with RuntimeError: not today"
    assert "No wrong slot was seen before that" in repr(tried)

    class Unborn:
        def __init__(self, num_blocks, block_size):
            raise RuntimeError("not at all")

    assert try_manager(Unborn).said == "the run stops with RuntimeError: not at all"
    with pytest.raises(TypeError, match="leave off the brackets"):
        try_manager(Unborn.__init__)


def watched(theirs, num_blocks=8, block_size=4):
    bench = Workbench(num_blocks, block_size)
    return Watched(theirs, num_blocks, block_size, bench.log, bench.pool), bench


def test_sharing_is_watched_too():
    """With counts, fork and copy-on-write the log knows what ours would have told it."""
    manager, bench = watched(KVCacheManager(8, 4))
    table = BlockTable(4, name="A")
    manager.allocate(table, 6)
    manager.note_write(table, 0, 6)
    child = manager.fork(table, "B")
    assert manager.copy_on_write(child, 5) == (1, 2)
    assert manager.copy_on_write(child, 5) is None
    manager.inc_ref(0)
    manager.free(table)
    manager.free(child)
    state = bench.log.state(len(bench.log) - 1)
    assert state.free_queue == (3, 4, 5, 6, 7, 1, 2)
    assert (state.ref_counts[0], state.cache_refs[0]) == (1, 1)
    manager.dec_ref(0)
    assert bench.log.state(len(bench.log) - 1).free_queue == (3, 4, 5, 6, 7, 1, 2, 0)
    assert manager.divergence is None
    assert not bench.log.violations


def test_counts_that_are_wrong_are_seen():
    class Uncounted(KVCacheManager):
        def fork(self, table, name=None):
            child = super().fork(table, name)
            for block_id in table.block_ids:
                self.blocks[block_id].ref_count = 1
            return child

    manager, bench = watched(Uncounted(8, 4))
    table = BlockTable(4, name="A")
    manager.allocate(table, 4)
    manager.fork(table, "B")
    assert bench.log.violations[0].invariant == "I2"


def test_without_a_queue_of_their_own_the_log_keeps_the_usual_one():
    class Hidden:
        def __init__(self, num_blocks, block_size):
            self._hidden = get("03.manager").right(num_blocks, block_size)

        def allocate(self, table, num_tokens):
            return self._hidden.allocate(table, num_tokens)

        def free(self, table):
            self._hidden.free(table)

    assert try_manager(Hidden).first is None
    assert "free_queue" in check("03.manager", Hidden).message


def test_the_solution_is_code_that_passes():
    scope = {}
    exec(solution("03.manager"), scope)
    assert check("03.manager", scope["MyManager"]).ok
    assert try_manager(scope["MyManager"]).first is None


def test_a_manager_that_cannot_free_yet_is_told_where_it_stops():
    class HalfWritten(get("03.manager").right):
        def free(self, table): ...

    assert (
        "call 6, free(A): the table lists 0 1 2 5, should list none"
        in check("03.manager", HalfWritten).message
    )
    first = try_manager(HalfWritten).first
    assert first.sentence == "After free(B) the table is 5; it should be empty."
