"""`share`: a table grows by blocks that somebody holds. What a prefix cache does with what it found."""

from collections.abc import Callable
from typing import Any

import pytest

from minikv.block_table import BlockTable
from minikv.errors import InvariantError, KVCacheError, RefCountError, StaleTableError, UnknownBlockError
from minikv.lab.event_log import EventLog
from minikv.manager import KVCacheManager
from tests.test_manager_misuse import Scene, foreign, scene


def each_block_gets_one_reference_more(kind: type[KVCacheManager]) -> None:
    m, a, b = kind(6, 4), BlockTable(4), BlockTable(4)
    m.allocate(a, 12)
    m.share(b, [0, 1])
    assert (b.block_ids, b.offset, m.free_queue) == ((0, 1), 0, (3, 4, 5))
    assert m.snapshot()["ref_counts"] == {0: 2, 1: 2, 2: 1}
    m.check()
    assert m.allocate(b, 9)
    m.share(b, iter([2]))
    assert b.block_ids == (0, 1, 3, 2)
    m.check()
    m.free(a)
    m.free(b)
    assert m.free_queue == (4, 5, 2, 3, 1, 0)
    m.check()


def test_each_block_gets_one_reference_more() -> None:
    each_block_gets_one_reference_more(KVCacheManager)


class SharesWithoutCounting(KVCacheManager):
    def _share(self, table: Any, index: int, block_id: int, source: Any) -> None:
        pass


class SharesWithAStranger(KVCacheManager):
    """The table does not become a holder."""

    def share(self, table: Any, block_ids: Any) -> None:
        for block_id in block_ids:
            self.inc_ref(block_id)
            table.append_block(block_id)


class SharesTheLastFirst(KVCacheManager):
    def share(self, table: Any, block_ids: Any) -> None:
        super().share(table, reversed([*block_ids]))


class SharesIntoAnEmptyTableOnly(KVCacheManager):
    def share(self, table: Any, block_ids: Any) -> None:
        if not table.num_blocks:
            super().share(table, block_ids)


@pytest.mark.parametrize(
    "wrong", [SharesWithoutCounting, SharesWithAStranger, SharesTheLastFirst, SharesIntoAnEmptyTableOnly]
)
def test_a_wrong_share_is_noticed(wrong: type[KVCacheManager]) -> None:
    with pytest.raises((AssertionError, KVCacheError)):
        each_block_gets_one_reference_more(wrong)


def test_blocks_that_only_a_cache_holds_can_be_shared() -> None:
    m, a, b = KVCacheManager(6, 4), BlockTable(4), BlockTable(4)
    m.allocate(a, 8)
    m.inc_ref(0)
    m.free(a)
    m.share(b, [0])
    m.dec_ref(0)
    m.check()
    assert m.snapshot()["ref_counts"] == {0: 1}


def test_a_share_of_nothing_is_nothing() -> None:
    heard: list[Any] = []
    m, a = KVCacheManager(6, 4, observer=heard.append), BlockTable(4, 3)
    told = len(heard)
    m.share(a, [])
    assert (a.block_ids, a.offset, m.tables, len(heard)) == ((), 3, (), told)


def test_a_table_filled_by_hand_may_grow() -> None:
    m, a, b = KVCacheManager(6, 4), BlockTable(4), BlockTable(4)
    m.allocate(a, 8)
    m.inc_ref(0)
    b.append_block(0)
    m.share(b, [1])
    m.check()
    assert m.snapshot()["ref_counts"] == {0: 2, 1: 2}


def test_a_table_of_before_release_all_may_be_cleared_and_share() -> None:
    m, a, b = KVCacheManager(6, 4), BlockTable(4), BlockTable(4)
    m.allocate(a, 8)
    m.release_all()
    m.allocate(b, 4)
    with pytest.raises(StaleTableError):
        m.share(a, [2])
    a.clear()
    m.share(a, [2])
    m.check()
    assert (a.block_ids, m.num_resets) == ((2,), 1)


def test_observers_hear_of_each_block_and_of_an_offset() -> None:
    log = EventLog()
    m, a, b = KVCacheManager(6, 4, observer=log), BlockTable(4, name="a"), BlockTable(4, 1, "b")
    m.allocate(a, 8)
    m.note_write(a, 0, 8)
    start = len(log)
    m.share(b, [0, 1])
    keys = ("op", "request", "index", "block_id", "ref_count", "source")
    assert [tuple(e.get(key) for key in keys) for e in log[start:]] == [
        ("offset", "b", None, None, None, None),
        ("share", "b", 0, 0, 2, None),
        ("share", "b", 1, 1, 2, None),
    ]
    state = log.state(len(log) - 1)
    assert (state.tables["b"], state.requests["b"].offset, log.violations) == ((0, 1), 1, ())
    assert (state.ref_counts, state.cache_refs) == ((2, 2, 0, 0, 0, 0), (0,) * 6)


REFUSED: dict[str, tuple[Callable[[Scene], object], type[Exception], str]] = {
    "a free block": (lambda s: s.m.share(s.a, [3, 4]), RefCountError, "I2 ref-count: block 4 is free"),
    "no block": (lambda s: s.m.share(s.a, [3, 9]), UnknownBlockError, "block 9 does not exist"),
    "block -1": (lambda s: s.m.share(s.a, [-1]), UnknownBlockError, "block -1 does not exist"),
    "block 1.5": (lambda s: s.m.share(s.a, [1.5]), TypeError, "block_id is 1.5"),  # type: ignore[list-item]
    "one it has": (lambda s: s.m.share(s.a, [3, 1]), InvariantError, "I3 no-repeat: .*block 1 twice"),
    "one twice": (
        lambda s: s.m.share(BlockTable(4), [3, 3]),
        InvariantError,
        "I3 no-repeat: .*block 3 twice",
    ),
    "block size": (lambda s: s.m.share(BlockTable(5), [3]), ValueError, "is 5, the manager's is 4"),
    "a foreign table": (lambda s: s.m.share(foreign(), [3]), StaleTableError, "block 1, which this manager"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_changes_nothing(name: str) -> None:
    """a = [0, 1, 2], b = [0, 1, 3], a cache on 0; blocks 4 to 8 are free."""
    call, error, words = REFUSED[name]
    s = scene()
    before = s.all()
    with pytest.raises(error, match=words):
        call(s)
    assert s.all() == before
    s.m.check()


def test_a_table_that_cannot_grow_takes_no_reference() -> None:
    class Unfinished(BlockTable):
        def append_block(self, block_id: int) -> None:
            raise NotImplementedError

    s = scene()
    before = s.all()
    with pytest.raises(NotImplementedError):
        s.m.share(Unfinished(4), [3])
    assert s.all() == before
