"""What a manager is not to be asked: one outcome each, a message with the value, and nothing changed."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from minikv.block_table import BlockTable
from minikv.errors import (
    CacheValueError,
    InvariantError,
    KVCacheError,
    OutOfBlocksError,
    RefCountError,
    StaleTableError,
    UnknownBlockError,
)
from minikv.manager import KVCacheManager
from tests.books import ListeningPool


@dataclass
class Scene:
    """9 blocks of 4 slots: a = [0, 1, 2], b = [0, 1] + its own [3] for a shared copy, a cache on 0."""

    pool: ListeningPool
    heard: list[dict[str, Any]]
    m: KVCacheManager
    a: BlockTable
    b: BlockTable

    def all(self) -> Any:
        """Whatever can be seen, and the private books behind it."""
        m = self.m
        tables = [(t.block_ids, t.offset, t.block_size, t.name) for t in (self.a, self.b)]
        private = (dict(m._stored), dict(m._cached), list(m._tables), dict(m._used), list(m._stale))
        return deepcopy((m.snapshot(), m.free_queue, tables, private, self.pool.calls, self.heard))


def scene(num_blocks: int = 9) -> Scene:
    pool, heard = ListeningPool(), list[dict[str, Any]]()
    m, a = KVCacheManager(num_blocks, 4, pool, heard.append), BlockTable(4, name="a")
    assert m.allocate(a, 12)
    m.note_write(a, 0, 10)
    b = m.fork(a, "b")
    assert m.copy_on_write(b, 8) == (2, 3)
    m.inc_ref(0)
    return Scene(pool, heard, m, a, b)


def foreign() -> BlockTable:
    """A table that another manager filled, with ids that exist here too."""
    table = BlockTable(4)
    KVCacheManager(9, 4).allocate(table, 8)
    return table


def with_blocks(*block_ids: int, offset: int = 0, block_size: int = 4) -> BlockTable:
    table = BlockTable(block_size, offset)
    for block_id in block_ids:
        table.append_block(block_id)
    return table


Row = tuple[Callable[[Scene], object], type[Exception], str]
MISUSE: dict[str, Row] = {
    # numbers of tokens
    "allocate -1": (lambda s: s.m.allocate(s.a, -1), CacheValueError, "num_tokens is -1; .*0 or more"),
    "allocate 1.5": (lambda s: s.m.allocate(s.a, 1.5), TypeError, "num_tokens is 1.5"),  # type: ignore[arg-type]
    "allocate '4'": (lambda s: s.m.allocate(s.a, "4"), TypeError, "num_tokens is '4'"),  # type: ignore[arg-type]
    "allocate None": (lambda s: s.m.allocate(s.a, None), TypeError, "num_tokens is None"),  # type: ignore[arg-type]
    "allocate True": (lambda s: s.m.allocate(s.a, True), TypeError, "num_tokens is True"),
    "drop_front -1": (lambda s: s.m.drop_front(s.a, -1), CacheValueError, "num_tokens is -1"),
    "drop_front 2.0": (lambda s: s.m.drop_front(s.a, 2.0), TypeError, "num_tokens is 2.0"),  # type: ignore[arg-type]
    "drop_front too many": (
        lambda s: s.m.drop_front(s.a, 13),
        CacheValueError,
        "13 tokens .* capacity of 12",
    ),
    "drop_front of none": (lambda s: s.m.drop_front(BlockTable(4), 1), CacheValueError, "1 tokens .* of 0"),
    "drop_front, offset waits": (
        lambda s: s.m.drop_front(BlockTable(4, 2), 1),
        CacheValueError,
        "1 tokens .* capacity of -2",
    ),
    # positions
    "copy_on_write -1": (lambda s: s.m.copy_on_write(s.a, -1), IndexError, r"position -1 .*\[0, 12\)"),
    "copy_on_write 12": (lambda s: s.m.copy_on_write(s.a, 12), IndexError, r"position 12 .*\[0, 12\)"),
    "copy_on_write 0.0": (lambda s: s.m.copy_on_write(s.a, 0.0), TypeError, "position is 0.0"),  # type: ignore[arg-type]
    "copy_on_write of none": (lambda s: s.m.copy_on_write(BlockTable(4), 0), IndexError, "position 0"),
    "note_write beyond": (
        lambda s: s.m.note_write(s.a, 12, 14),
        InvariantError,
        "^I5 capacity: .*position 13 .* 12 tok",
    ),
    "note_write of none": (
        lambda s: s.m.note_write(BlockTable(4), 0, 1),
        InvariantError,
        "^I5 capacity: .*position 0",
    ),
    "note_write -1": (lambda s: s.m.note_write(s.a, -1, 2), CacheValueError, r"\[-1, 2\)"),
    "note_write backwards": (lambda s: s.m.note_write(s.a, 10, 9), CacheValueError, r"\[10, 9\)"),
    "note_write 9.5": (lambda s: s.m.note_write(s.a, 9.5, 10), TypeError, "start is 9.5"),  # type: ignore[arg-type]
    "note_write None": (lambda s: s.m.note_write(s.a, 9, None), TypeError, "stop is None"),  # type: ignore[arg-type]
    "note_write, words short": (
        lambda s: s.m.note_write(s.a, 8, 10, ["x"]),
        CacheValueError,
        "1 words for the 2 positions",
    ),
    "note_write shared": (
        lambda s: s.m.note_write(s.a, 6, 9),
        InvariantError,
        "^I4 no-shared-write: .*block 1, held by 2; call copy_on_write",
    ),
    "note_write shared by a cache": (
        lambda s: s.m.note_write(s.b, 0, 1),
        InvariantError,
        "block 0, held by 3",
    ),
    # block ids and counts
    "inc_ref of a free block": (lambda s: s.m.inc_ref(4), RefCountError, "I2 .*block 4 is free"),
    "dec_ref of a free block": (
        lambda s: s.m.dec_ref(4),
        RefCountError,
        "I2 .*block 4 is free, its count is 0",
    ),
    "inc_ref 9": (lambda s: s.m.inc_ref(9), UnknownBlockError, "block 9 does not exist; .*0 to 8"),
    "dec_ref -1": (lambda s: s.m.dec_ref(-1), UnknownBlockError, "block -1 does not exist; .*0 to 8"),
    "inc_ref 1.0": (lambda s: s.m.inc_ref(1.0), TypeError, "block_id is 1.0"),  # type: ignore[arg-type]
    "dec_ref None": (lambda s: s.m.dec_ref(None), TypeError, "block_id is None"),  # type: ignore[arg-type]
    "inc_ref True": (lambda s: s.m.inc_ref(True), TypeError, "block_id is True"),
    # tables of others
    **{
        f"{operation.__name__}, foreign table": (
            lambda s, operation=operation: operation(s.m, foreign()),
            StaleTableError,
            "I2 .*lists block [01], which this manager did not give it",
        )
        for operation in (
            *(KVCacheManager.free, KVCacheManager.fork),
            *(lambda m, t, name=name: getattr(m, name)(t, 1) for name in ("allocate", "drop_front")),
            lambda m, t: m.copy_on_write(t, 0),
            lambda m, t: m.note_write(t, 0, 1),
        )
    },
    "foreign, although a cache holds its block": (
        lambda s: s.m.free(with_blocks(0, 1)),
        StaleTableError,
        "lists block 1, which",
    ),
    "a table of blocks that do not exist": (lambda s: s.m.free(with_blocks(77)), StaleTableError, "block 77"),
    "filled by hand with a repeat": (
        lambda s: s.m.allocate(with_blocks(0, 0), 12),
        InvariantError,
        "^I3 no-repeat: .*block 0 twice",
    ),
    "another block size": (
        lambda s: s.m.allocate(BlockTable(8), 8),
        CacheValueError,
        "block_size is 8, the manager's is 4",
    ),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_raises_and_changes_nothing(name: str) -> None:
    misuse, error, message = MISUSE[name]
    s = scene()
    before = s.all()
    with pytest.raises(error, match=message) as caught:
        misuse(s)
    assert caught.type is error
    assert s.all() == before
    s.m.check()


def test_what_is_no_type_error_is_a_cache_error_or_an_index_error_of_the_table() -> None:
    for _, error, _ in MISUSE.values():
        assert issubclass(error, (KVCacheError, TypeError, IndexError))
    assert issubclass(CacheValueError, ValueError)
    assert issubclass(UnknownBlockError, (IndexError,))


# ---- sizes ---------------------------------------------------------------------------------------------

BAD_SIZES: list[tuple[Any, type[Exception], str]] = [
    (0, CacheValueError, "is 0; it must be at least 1"),
    (-3, CacheValueError, "is -3; it must be at least 1"),
    (1.5, TypeError, "is 1.5; it must be an integer"),
    ("4", TypeError, "is '4'; it must be an integer"),
    (None, TypeError, "is None; it must be an integer"),
    (True, TypeError, "is True; it must be an integer"),
]


@pytest.mark.parametrize("name", ["num_blocks", "block_size"])
@pytest.mark.parametrize(("size", "error", "message"), BAD_SIZES)
def test_sizes_that_are_none(name: str, size: Any, error: type[Exception], message: str) -> None:
    heard: list[dict[str, Any]] = []
    sizes = {"num_blocks": 4, "block_size": 4, name: size}
    with pytest.raises(error, match=f"{name} {message}"):
        KVCacheManager(**sizes, observer=heard.append)
    assert heard == []


@pytest.mark.parametrize("name", ["num_blocks", "block_size"])
def test_the_pool_has_the_same_sizes(name: str) -> None:
    pool = ListeningPool()
    setattr(pool, name, 5)
    with pytest.raises(CacheValueError, match=f"{name} is 4, but the pool's is 5"):
        KVCacheManager(4, 4, pool)


def test_other_libraries_integers_are_welcome_and_leave_no_trace() -> None:
    heard: list[dict[str, Any]] = []
    m = KVCacheManager(np.int64(9), np.int32(4), observer=heard.append)  # type: ignore[arg-type]
    a = BlockTable(4)
    assert m.allocate(a, np.int64(10))  # type: ignore[arg-type]
    m.note_write(a, np.int64(0), np.int64(10))  # type: ignore[arg-type]
    b = m.fork(a)
    assert m.copy_on_write(b, np.int64(8)) == (2, 3)  # type: ignore[arg-type]
    m.inc_ref(np.int64(0))  # type: ignore[arg-type]
    m.drop_front(b, np.int64(5))  # type: ignore[arg-type]
    numbers = [value for event in heard for value in event.values() if not isinstance(value, (str, list))]
    assert {type(number) for number in numbers} <= {int, type(None)}
    assert type(b.offset) is int


# ---- no room ---------------------------------------------------------------------------------------------


def test_a_refused_allocation_changes_nothing_but_says_so() -> None:
    s = scene(5)
    before = s.all()
    assert s.m.allocate(s.a, 21) is False
    assert s.heard.pop() == {"op": "full", "request": "a", "needed": 3, "free": 1}
    assert s.all() == before


def test_a_refused_allocation_does_not_take_over_a_table_filled_by_hand() -> None:
    s = scene(5)
    by_hand = with_blocks(0)
    before = s.all()
    assert s.m.allocate(by_hand, 13) is False
    s.heard.pop()
    assert s.all() == before
    s.m.dec_ref(0)  # the cache's reference is still the cache's
    s.m.check()


def test_no_block_for_a_copy() -> None:
    s = scene(4)
    before = s.all()
    with pytest.raises(OutOfBlocksError, match=r"I4 .*block 1 is shared by 2 and no block is free"):
        s.m.copy_on_write(s.a, 4)
    assert s.all() == before


def test_a_pool_that_cannot_copy_leaves_everything_as_it_was() -> None:
    class Broken(ListeningPool):
        def copy_block(self, src: int, dst: int) -> None:
            raise MemoryError("no copy today")

    s = scene()
    s.m.pool = Broken()
    before = s.all()
    with pytest.raises(MemoryError, match="no copy today"):
        s.m.copy_on_write(s.a, 0)
    assert s.all() == before
    s.m.pool = s.pool
    assert s.m.copy_on_write(s.a, 0) == (0, 4)
    s.m.check()


# ---- void tables -------------------------------------------------------------------------------------------

USES: dict[str, Callable[[KVCacheManager, BlockTable], object]] = {
    "allocate": lambda m, t: m.allocate(t, 1),
    "free": lambda m, t: m.free(t),
    "fork": lambda m, t: m.fork(t),
    "copy_on_write": lambda m, t: m.copy_on_write(t, 0),
    "drop_front": lambda m, t: m.drop_front(t, 1),
    "note_write": lambda m, t: m.note_write(t, 0, 1),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("taken", [False, True], ids=["", "although its blocks were taken again"])
def test_a_table_of_before_release_all_is_void(use: str, taken: bool) -> None:
    s = scene()
    s.m.release_all()
    other = BlockTable(4, name="other")
    if taken:
        assert s.m.allocate(other, 36)
        for block_id in s.a.block_ids:
            s.m.inc_ref(block_id)
    before = s.all()
    with pytest.raises(StaleTableError, match=r"I1 conservation: .*before release_all.*clear\(\) it"):
        USES[use](s.m, s.a)
    assert s.all() == before
    s.m.check()


def test_a_void_table_may_be_cleared_and_used_again() -> None:
    s = scene()
    s.m.release_all()
    s.a.clear()
    assert s.m.allocate(s.a, 5)
    assert s.a.block_ids == (4, 5)
    s.m.free(s.a)
    with pytest.raises(StaleTableError):
        s.m.free(s.b)
    s.m.check()


def test_a_void_table_that_came_back_may_be_filled_by_hand_too() -> None:
    s = scene()
    s.m.release_all()
    s.a.clear()
    s.m.allocate(s.a, 4)
    s.m.inc_ref(4)
    s.m.free(s.a)
    s.a.append_block(4)
    s.m.free(s.a)
    assert s.m.num_free_blocks == 9
    s.m.check()


def test_release_all_gives_back_in_the_order_taken() -> None:
    s = scene()
    s.m.release_all()
    assert s.m.free_queue == (4, 5, 6, 7, 8, 0, 1, 2, 3)
    assert s.m.snapshot()["ref_counts"] == {}
    assert s.pool.calls[-4:] == [("release", block) for block in range(4)]
    s.m.release_all()
    assert s.m.num_free_blocks == 9
    with pytest.raises(RefCountError):
        s.m.dec_ref(0)  # the cache's reference is void as well


# ---- tables that somebody changed behind the manager's back -----------------------------------------------


@pytest.mark.parametrize("use", ["free", "fork", "drop_front"])
def test_a_block_given_back_by_hand_is_noticed(use: str) -> None:
    s = scene()
    s.m.dec_ref(2)  # nobody but table a held it
    before = s.all()
    uses = {**USES, "drop_front": lambda m, t: m.drop_front(t, 12)}
    with pytest.raises(RefCountError, match=r"block 2 is free, .*a table still lists it"):
        uses[use](s.m, s.a)
    assert s.all() == before
    with pytest.raises(InvariantError, match="I2"):
        s.m.check()


def test_a_repeat_put_in_by_hand_is_noticed() -> None:
    s = scene()
    s.a.append_block(2)
    before = s.all()
    with pytest.raises(InvariantError, match="I3"):
        s.m.free(s.a)
    assert s.all() == before


# ---- what is fine -----------------------------------------------------------------------------------------


def test_to_free_twice_is_to_free_once() -> None:
    s = scene()
    s.m.free(s.a)
    before = s.all()
    s.m.free(s.a)
    s.m.free(BlockTable(4))
    assert s.all() == before


def test_nothing_to_do_is_done() -> None:
    s = scene()
    before = s.all()
    assert s.m.allocate(s.a, 0) is True
    assert s.m.allocate(s.a, 12) is True
    assert s.m.allocate(BlockTable(4, 3), 0) is True
    assert s.m.copy_on_write(s.b, 9) is None
    assert s.m.fork(BlockTable(4, 3)).offset == 3
    s.m.note_write(BlockTable(4), 0, 0)
    s.m.note_write(s.a, 11, 11)
    assert s.heard.pop()["op"] == "offset"
    assert s.all() == before
    s.m.check()


# ---- tables of others ------------------------------------------------------------------------------------


class LearnersTable:
    """As little as can be: what a learner writes in the second notebook."""

    def __init__(self, block_size: int, offset: int = 0) -> None:
        self.block_size, self.offset = block_size, offset
        self.block_ids: list[int] = []

    @property
    def num_blocks(self) -> int:
        return len(self.block_ids)

    @property
    def capacity(self) -> int:
        return len(self.block_ids) * self.block_size - self.offset

    def slot(self, position: int) -> int:
        index, place = divmod(self.offset + position, self.block_size)
        return self.block_ids[index] * self.block_size + place

    def append_block(self, block_id: int) -> None:
        self.block_ids.append(block_id)

    def clear(self) -> None:
        self.block_ids = []
        self.offset = 0


@pytest.mark.parametrize("observer", [None, [].append])
def test_a_learners_table_will_do(observer: Any) -> None:
    m, mine, ours = KVCacheManager(8, 4, observer=observer), LearnersTable(4, 2), BlockTable(4)
    anything: Any = mine
    assert m.allocate(anything, 8)
    assert m.allocate(ours, 4)
    if observer is None:  # with one, it would ask for `slots`
        m.note_write(anything, 0, 8)
    child = m.fork(anything)
    m.check()
    assert type(child) is LearnersTable
    assert (child.block_ids, child.offset) == ([0, 1, 2], 2)
    m.free(anything)
    assert (mine.block_ids, mine.offset, m.num_free_blocks) == ([], 0, 4)
    m.free(child)
    assert m.free_queue == (4, 5, 6, 7, 2, 1, 0)
    m.check()
    m.allocate(anything, 4)
    m.release_all()
    with pytest.raises(StaleTableError):
        m.free(anything)


UNWRITTEN: dict[str, Callable[[KVCacheManager, Any], object]] = {
    "append_block": lambda m, t: m.allocate(t, 20),
    "clear": lambda m, t: m.free(t),
    "__init__": lambda m, t: m.fork(t),
    "slot": lambda m, t: m.copy_on_write(t, 0),
    "replace_block": lambda m, t: m.copy_on_write(t, 0),
    "drop_blocks": lambda m, t: m.drop_front(t, 5),
    "slots": lambda m, t: m.note_write(t, 8, 9),
}


@pytest.mark.parametrize("method", UNWRITTEN)
def test_a_method_that_is_not_written_yet_leaves_everything_as_it_was(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unfinished(BlockTable):
        pass

    def todo(*arguments: object) -> None:
        raise NotImplementedError(method)

    s = scene()
    s.m.free(s.a)
    s.a = Unfinished(4, name="a")
    s.m.allocate(s.a, 12)
    other = s.m.fork(s.a, "other")
    s.m.copy_on_write(s.a, 8)
    s.m.check()
    before = s.all()
    monkeypatch.setattr(Unfinished, method, todo)
    with pytest.raises(NotImplementedError, match=method):
        UNWRITTEN[method](s.m, s.a)
    assert s.all() == before
    monkeypatch.undo()
    s.m.check()
    s.m.free(s.a)
    s.m.free(other)
    s.m.check()


def test_a_fork_that_cannot_be_filled_takes_no_reference() -> None:
    class Unfinished(LearnersTable):
        def append_block(self, block_id: int) -> None:
            raise NotImplementedError

    m = KVCacheManager(8, 4)
    by_hand: Any = Unfinished(4)
    m.allocate(BlockTable(4), 4)
    m.inc_ref(0)
    by_hand.block_ids.append(0)
    with pytest.raises(NotImplementedError):
        m.fork(by_hand)
    m.check()
    assert m.snapshot()["ref_counts"] == {0: 2}
