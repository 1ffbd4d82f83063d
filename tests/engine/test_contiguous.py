"""Contiguous memory: exact places, moves that lose nothing, refusals in spite of room, the same words."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable
from copy import copy
from typing import Any, Literal

import numpy as np
import pytest
import torch

from minikv.benchmarks.exactness import make_prompts
from minikv.block_table import BlockTable
from minikv.decode import DecodeLoop
from minikv.engine.contiguous import ContiguousManager, Run
from minikv.errors import (
    CacheValueError,
    InvariantError,
    KVCacheError,
    OutOfBlocksError,
    StaleTableError,
    UnwrittenSlotError,
)
from minikv.gpt2 import GPT2
from minikv.lab.event_log import EventLog
from minikv.manager import KVCacheManager
from minikv.pool import BlockPool
from tests.engine.contiguous_books import SlotList, Walk, caught


def grower(num_slots: int = 20, headroom: int = 2, **more: Any) -> ContiguousManager:
    return ContiguousManager(num_slots, "grow", headroom=headroom, pool=SlotList(num_slots), **more)


def begun(manager: ContiguousManager, *lengths: int) -> list[Run]:
    """Requests A, B, … with so many tokens, each written."""
    tables = []
    for name, length in zip("ABCDEFGH", lengths, strict=False):
        table = Run(manager.block_size, name)
        assert manager.allocate(table, length)
        store(manager, table, 0, length)
        tables.append(table)
    return tables


def store(manager: ContiguousManager, table: Run, start: int, stop: int) -> None:
    """Write "A0", "A1", … through the table."""
    manager.note_write(table, start, stop)
    for position in range(start, stop):
        pool_of(manager).slots[table.slot(position)] = f"{table.name}{position}"


def pool_of(manager: ContiguousManager) -> SlotList:
    assert isinstance(manager.pool, SlotList)
    return manager.pool


def read(manager: ContiguousManager, table: Run, length: int) -> list[str | None]:
    return [pool_of(manager).slots[table.slot(position)] for position in range(length)]


def places(*tables: Run) -> list[tuple[int, int]]:
    return [(table.offset, table.capacity) for table in tables]


# ---- the table -----------------------------------------------------------------------------------


def test_a_run_is_a_block_table_of_one_block_that_ends_early() -> None:
    manager = ContiguousManager(20, max_length=6)
    first, second = Run(20), Run(20, "B")
    assert (second.block_ids, second.num_blocks, second.capacity, second.offset) == ((), 0, 0, 0)
    assert manager.allocate(first, 1) and manager.allocate(second, 6)
    assert (second.block_ids, second.num_blocks, second.capacity, second.offset) == ((0,), 1, 6, 6)
    assert [second.slot(p) for p in range(6)] == second.slots(0, 6).tolist() == [6, 7, 8, 9, 10, 11]
    assert second.slots(2, 2).tolist() == [] and second.slots(0, 6).dtype == np.int64
    assert repr(second) == "Run(slots=[6, 12), block_size=20)"


@pytest.mark.parametrize("position", [-1, 6, 13])
def test_a_position_outside_the_run_is_an_error_although_the_slot_exists(position: int) -> None:
    manager = ContiguousManager(20, max_length=6)
    table = Run(20)
    assert manager.allocate(table, 1)
    with pytest.raises(IndexError, match=rf"position {position} is outside \[0, 6\)"):
        table.slot(position)
    with pytest.raises(IndexError, match=r"\[0, 7\) reach outside \[0, 6\)"):
        table.slots(0, 7)


# ---- exact places --------------------------------------------------------------------------------


def test_max_reserves_the_longest_at_once_at_the_lowest_address() -> None:
    manager = ContiguousManager(20, max_length=8)
    a, b, c = Run(20), Run(20, max_length=5), Run(20)
    assert manager.allocate(a, 1) and manager.allocate(b, 5)
    assert places(a, b) == [(0, 8), (8, 5)]
    assert not manager.allocate(c, 1)  # 7 slots are left, and it may come to need 8
    assert places(c) == [(0, 0)] and manager.holes == [(13, 7)]
    assert manager.allocate(a, 8) and places(a) == [(0, 8)]
    manager.free(a)
    assert manager.allocate(c, 3) and places(c) == [(0, 8)]
    assert manager.tokens_moved == 0


def test_grow_reserves_some_headroom_and_first_fit_finds_the_lowest_hole() -> None:
    manager = grower()
    a, b, c = begun(manager, 3, 4, 1)
    assert places(a, b, c) == [(0, 5), (5, 6), (11, 3)]
    manager.free(b)
    [d] = begun(manager, 2)
    assert places(d) == [(5, 4)] and manager.holes == [(9, 2), (14, 6)]
    [e] = begun(manager, 1)
    assert places(e) == [(14, 3)]  # the hole of 2 is too small


def test_headroom_ends_at_max_length() -> None:
    manager = grower(max_length=6)
    table = Run(20, max_length=4)
    assert manager.allocate(table, 3) and places(table) == [(0, 4)]
    [other] = begun(manager, 5)
    assert places(other) == [(4, 6)]
    alone = ContiguousManager(20, "grow")
    assert alone.allocate(table := Run(20), 1) and places(table) == [(0, 17)]
    assert alone.allocate(table, 18) and places(table) == [(0, 20)]


def test_a_run_grows_in_place_where_the_hole_behind_it_is_large_enough() -> None:
    manager = grower()
    a, b = begun(manager, 3, 4)
    assert manager.allocate(b, 7) and places(b) == [(5, 9)]
    manager.free(b)
    assert manager.allocate(a, 6) and places(a) == [(0, 8)]
    assert manager.tokens_moved == 0 and read(manager, a, 3) == ["A0", "A1", "A2"]


def test_else_it_moves_and_takes_its_kv_along() -> None:
    manager = grower()
    a, b = begun(manager, 3, 4)
    assert manager.allocate(a, 6)
    assert places(a, b) == [(11, 8), (5, 6)] and manager.holes == [(0, 5), (19, 1)]
    assert manager.tokens_moved == 3 and manager.max_allocated == 14
    assert read(manager, a, 6) == ["A0", "A1", "A2", None, None, None]
    assert read(manager, b, 4) == ["B0", "B1", "B2", "B3"]
    assert pool_of(manager).slots[:5] == [None] * 5


def test_a_run_between_two_small_holes_slides() -> None:
    """Holes of 3 and 2 around 8 slots: 12 are to be had, and nowhere else."""
    manager = grower(21, 0)
    gap, a, b, c = begun(manager, 3, 8, 2, 8)
    manager.free(gap)
    manager.free(b)
    assert manager.holes == [(0, 3), (11, 2)]
    assert manager.allocate(a, 12) and places(a) == [(0, 12)] and manager.holes == [(12, 1)]
    assert read(manager, a, 12) == [f"B{i}" for i in range(8)] + [None] * 4
    assert manager.tokens_moved == 8 and pool_of(manager).slots[12] is None
    assert read(manager, c, 8) == [f"D{i}" for i in range(8)]
    manager.check()


def test_free_slots_that_are_not_side_by_side_are_of_no_use() -> None:
    manager = grower(20, 0)
    a, _, c, _ = begun(manager, 5, 5, 5, 5)
    manager.free(a)
    manager.free(c)
    before = manager.snapshot()
    assert manager.num_free_blocks == 10 and manager.largest_hole == 5
    new = Run(20)
    assert not manager.allocate(new, 6)
    assert manager.snapshot() == before and new.capacity == 0
    assert manager.allocate(new, 5)


def test_what_was_written_without_a_note_moves_too() -> None:
    """A scheduler notes the first write to a run, then fills it: the pool knows more than note_write did."""
    manager = grower()
    [a, _] = begun(manager, 1, 1)
    for position in range(1, 3):
        pool_of(manager).slots[a.slot(position)] = f"A{position}"
    assert manager.allocate(a, 4) and places(a) == [(6, 6)] and manager.tokens_moved == 3
    assert read(manager, a, 4) == ["A0", "A1", "A2", None]


def test_alone_a_request_can_use_all_of_memory() -> None:
    for reserve in ("max", "grow"):
        manager = ContiguousManager(20, reserve)
        table = Run(20)
        for tokens in range(1, 21):
            assert manager.allocate(table, tokens)
        assert not manager.allocate(table, 21)
        assert manager.has_room_for(20) and not manager.has_room_for(21)


def test_two_growing_runs_can_get_into_each_others_way() -> None:
    """20 slots would do for two runs of 10, but not wherever they lie; has_room_for knows."""
    manager = grower(20, 0)
    assert not manager.has_room_for(10, runs=2) and manager.has_room_for(6, runs=2)
    a, b = begun(manager, 4, 4)
    assert manager.allocate(a, 10) and places(a) == [(8, 10)]
    assert manager.allocate(b, 8) and places(b) == [(0, 8)]
    assert not manager.allocate(b, 9)
    assert ContiguousManager(20, "max").has_room_for(10, runs=2)


def test_has_room_for_promises_nothing_that_fails() -> None:
    chance = random.Random(5)
    for runs, length in ((1, 9), (2, 5), (3, 4), (4, 3)):
        manager = ContiguousManager((2 * runs - 1) * length, "grow", headroom=1, max_length=length)
        assert manager.has_room_for(length, runs)
        for _ in range(500):
            tables = [Run(manager.block_size) for _ in range(runs)]
            lengths = [0] * runs
            while sum(lengths) < runs * length:
                i = chance.choice([i for i in range(runs) if lengths[i] < length])
                lengths[i] = chance.randint(lengths[i] + 1, length)
                assert manager.allocate(tables[i], lengths[i])
            for table in tables:
                manager.free(table)


# ---- fork, drop_front, figures -------------------------------------------------------------------


def test_a_fork_is_a_copy() -> None:
    manager = grower()
    [a] = begun(manager, 3)
    child = manager.fork(a, "F")
    assert (child.name, places(child), child.max_length) == ("F", [(5, 5)], None)
    assert read(manager, child, 3) == read(manager, a, 3) == ["A0", "A1", "A2"]
    assert manager.tokens_moved == 3
    store(manager, child, 2, 4)
    assert read(manager, a, 4) == ["A0", "A1", "A2", None]
    assert manager.copy_on_write(child, 4) is None
    manager.free(a)
    assert read(manager, child, 4) == ["A0", "A1", "F2", "F3"]
    assert manager.fork(a).capacity == 0  # of nothing, nothing


def test_a_fork_without_room_changes_nothing() -> None:
    manager = grower()
    a, _, c = begun(manager, 6, 3, 4)  # 8 + 5 + 6 of 20
    manager.free(c)
    before = manager.snapshot()
    said = "the copy takes 8 slots side by side; 7 are free, but the largest hole has 7"
    with pytest.raises(OutOfBlocksError, match=said):
        manager.fork(a)
    assert manager.snapshot() == before and manager.tokens_moved == 0


def test_a_window_gives_the_slots_in_front_back() -> None:
    manager = grower(headroom=0)
    a, _ = begun(manager, 6, 2)
    manager.drop_front(a, 2)
    assert places(a) == [(2, 4)] and manager.holes == [(0, 2), (8, 12)]
    assert read(manager, a, 4) == ["A2", "A3", "A4", "A5"] and pool_of(manager).slots[:2] == [None, None]
    manager.check()
    manager.drop_front(a, 0)
    manager.drop_front(a, 4)
    assert (a.block_ids, places(a)) == ((), [(0, 0)]) and manager.holes == [(0, 6), (8, 12)]
    manager.check()


def test_in_max_a_window_may_grow_back_over_what_it_dropped() -> None:
    manager = ContiguousManager(8, max_length=8, pool=SlotList(8))
    table = Run(8, "A")
    assert manager.allocate(table, 8)
    store(manager, table, 0, 8)
    manager.drop_front(table, 3)
    assert manager.allocate(table, 6) and places(table) == [(0, 8)]
    assert read(manager, table, 6) == ["A3", "A4", "A5", "A6", "A7", None] and manager.tokens_moved == 5


def test_figures_count_slots() -> None:
    manager = grower()
    a, b = begun(manager, 2, 1)
    manager.free(a)
    assert manager.snapshot() == {
        "allocated_blocks": 3,
        "utilization": 3 / 20,
        "max_allocated": 7,
        "total_blocks": 20,
        "free_blocks": 17,
        "used_blocks": [4, 5, 6],
        "ref_counts": {4: 1, 5: 1, 6: 1},
    }
    assert manager.snapshot().keys() == KVCacheManager(1, 1).snapshot().keys()
    assert (manager.block_size, manager.num_blocks, manager.num_free_blocks) == (20, 1, 17)
    assert manager.tables == (b,)


# ---- what is refused, and changes nothing --------------------------------------------------------


class Scene:
    """A = [0, 5) with 3 tokens, B = [5, 11) with 4, and 9 slots free."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self.m = grower(observer=self.heard.append)
        self.a, self.b = begun(self.m, 3, 4)

    def all(self) -> Any:
        books = [(h.stored, list(h.words)) for h in self.m._held.values()]
        pool = list(pool_of(self.m).slots)
        return (self.m.snapshot(), self.m.tokens_moved, places(self.a, self.b), books, pool, len(self.heard))


def of_another() -> Run:
    table = Run(20)
    assert grower().allocate(table, 3)
    return table


Row = tuple[Callable[[Scene], object], type[Exception], str]
MISUSE: dict[str, Row] = {
    "allocate -1": (lambda s: s.m.allocate(s.a, -1), CacheValueError, "num_tokens is -1"),
    "allocate 1.5": (lambda s: s.m.allocate(s.a, 1.5), TypeError, "num_tokens is 1.5"),  # type: ignore[arg-type]
    "a block table": (
        lambda s: s.m.allocate(BlockTable(20), 1),  # type: ignore[arg-type]
        TypeError,
        "tables that are Runs, not BlockTable",
    ),
    "another memory": (lambda s: s.m.allocate(Run(8), 1), CacheValueError, "block_size is 8, memory has 20"),
    "another manager's": (lambda s: s.m.allocate(of_another(), 9), StaleTableError, "I1 .* 5 slots"),
    "another manager's, freed": (lambda s: s.m.free(of_another()), StaleTableError, "did not give it"),
    "another manager's, forked": (lambda s: s.m.fork(of_another()), StaleTableError, "did not give it"),
    "a copy of a table": (lambda s: s.m.free(copy(s.a)), StaleTableError, "did not give it"),
    "beyond max_length": (
        lambda s: s.m.allocate(Run(20, max_length=4), 5),
        CacheValueError,
        "num_tokens is 5, but the request was to hold 4 at most",
    ),
    "max_length above the manager's": (
        lambda s: s.m.allocate(Run(20, max_length=21), 1),
        CacheValueError,
        "table's max_length is 21, the manager's is 20",
    ),
    "copy_on_write 5": (lambda s: s.m.copy_on_write(s.a, 5), IndexError, r"position 5 .*\[0, 5\)"),
    "copy_on_write 1.0": (lambda s: s.m.copy_on_write(s.a, 1.0), TypeError, "position is 1.0"),  # type: ignore[arg-type]
    "drop_front -1": (lambda s: s.m.drop_front(s.a, -1), CacheValueError, "num_tokens is -1"),
    "drop_front 6": (lambda s: s.m.drop_front(s.a, 6), CacheValueError, "6 tokens .* capacity of 5"),
    "note_write beyond": (lambda s: s.m.note_write(s.a, 4, 6), InvariantError, "^I5 .*position 5 .* 5 tok"),
    "note_write of none": (lambda s: s.m.note_write(Run(20), 0, 1), InvariantError, "^I5 .*position 0"),
    "note_write backwards": (lambda s: s.m.note_write(s.a, 3, 2), CacheValueError, r"\[3, 2\)"),
    "note_write, words short": (lambda s: s.m.note_write(s.a, 0, 2, ["x"]), CacheValueError, "1 words"),
    "has_room_for 0": (lambda s: s.m.has_room_for(0), CacheValueError, "length is 0"),
    "Run of 0": (lambda s: Run(0), ValueError, "block_size is 0"),
    "max_length 0": (lambda s: Run(20, max_length=0), CacheValueError, "max_length is 0"),
    "max_length 2.0": (lambda s: setattr(s.a, "max_length", 2.0), TypeError, "max_length is 2.0"),
}


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_refused_and_changes_nothing(name: str) -> None:
    scene = Scene()
    call, error, said = MISUSE[name]
    before = scene.all()
    with pytest.raises(error, match=said):
        call(scene)
    assert scene.all() == before
    scene.m.check()


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"num_slots": 0}, CacheValueError, "num_slots is 0"),
        ({"num_slots": "8"}, TypeError, "num_slots is '8'"),
        ({"reserve": "some"}, CacheValueError, "reserve is 'some'"),
        ({"max_length": 9}, CacheValueError, "max_length is 9, but memory has only 8"),
        ({"max_length": 0}, CacheValueError, "max_length is 0"),
        ({"reserve": "grow", "headroom": -1}, CacheValueError, "headroom is -1"),
        ({"headroom": 4}, CacheValueError, 'headroom is 4, but reserve="max" never grows'),
        ({"pool": KVCacheManager(2, 4)}, CacheValueError, r"num_blocks=2 and block_size=4.*one block"),
    ],
)
def test_managers_that_cannot_be(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ContiguousManager(**{"num_slots": 8, **arguments})


def test_tables_of_before_release_all_are_void() -> None:
    manager = grower()
    a, _ = begun(manager, 3, 4)
    manager.release_all()
    assert manager.holes == [(0, 20)] and pool_of(manager).slots == [None] * 20
    manager.check()
    with pytest.raises(StaleTableError, match="before release_all"):
        manager.free(a)
    a.clear()
    assert manager.allocate(a, 3) and places(a) == [(0, 5)]


def test_to_free_twice_is_to_free_once() -> None:
    manager = grower()
    [a] = begun(manager, 3)
    manager.free(a)
    manager.free(a)
    assert (a.capacity, a.offset, a.block_ids, manager.num_free_blocks) == (0, 0, (), 20)


@pytest.mark.parametrize("call", ["allocate", "fork"])
def test_a_pool_that_fails_while_copying_leaves_the_books_as_they_were(call: str) -> None:
    scene = Scene()
    before = scene.all()
    pool_of(scene.m).failing = True
    with pytest.raises(RuntimeError, match="no memory"):
        scene.m.allocate(scene.a, 6) if call == "allocate" else scene.m.fork(scene.a)
    assert scene.all() == before
    scene.m.check()
    pool_of(scene.m).failing = False
    assert scene.m.allocate(scene.a, 6) and read(scene.m, scene.a, 3) == ["A0", "A1", "A2"]


def break_books(manager: ContiguousManager, how: str) -> None:
    memory, table = manager._memory, manager.tables[0]
    if how == "overlap":
        memory._spans[id(table)] = (0, 7)
    elif how == "leak":
        memory._holes.clear()
    elif how == "count":
        memory.free_slots += 1
    elif how == "orphan":
        del manager._held[id(table)]
    elif how == "table":
        table.place(1, 4)
    else:
        manager._held[id(table)].stored = 6


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("overlap", "I1 conservation: slot 5 belongs to two runs"),
        ("leak", "I1 conservation: runs and holes end at slot 11, memory at 20"),
        ("count", "I1 conservation: 10 slots count as free, but the holes have 9"),
        ("orphan", "I1 conservation: the run from slot 0 on is held, but by no table"),
        ("table", "I1 conservation: Run(slots=[1, 5), block_size=20) is not what the books say: (0, 5)"),
        ("stored", "I5 capacity: 6 tokens were stored through a table of 5"),
    ],
)
def test_check_names_what_is_broken(how: str, said: str) -> None:
    manager = grower()
    begun(manager, 3, 4)
    manager.check()
    break_books(manager, how)
    with pytest.raises(InvariantError, match=re.escape(said)):
        manager.check()


# ---- a long way, and wrong managers --------------------------------------------------------------

MEMORIES: list[tuple[int, Literal["max", "grow"], int, int | None]] = [
    (24, "grow", 24, 2),
    (24, "max", 9, None),
    (40, "grow", 12, 0),
    (17, "grow", 17, 5),
]


@pytest.mark.parametrize("memory", MEMORIES)
def test_25_000_random_operations_each(memory: tuple[int, Literal["max", "grow"], int, int | None]) -> None:
    walk = Walk(*memory)
    walk.random_steps(25_000, seed=memory[0])
    print(memory, walk.seen)
    assert walk.seen["moved"] > 100 or memory[1] == "max"
    assert walk.seen["refused"] > 100 and walk.seen["forked"] > 100 and walk.seen["failed"] > 10


MUTANTS: dict[str, type[ContiguousManager]] = {}


def mutant(kind: type[ContiguousManager]) -> type[ContiguousManager]:
    MUTANTS[kind.__name__] = kind
    return kind


@mutant
class MovesWithoutCopying(ContiguousManager):
    def _copy(self, holding: Any, dst: int) -> None:
        self.tokens_moved += holding.stored


@mutant
class CopiesOnlyWhatWasNoted(ContiguousManager):
    def _copy(self, holding: Any, dst: int) -> None:
        if self.pool is not None:
            self.tokens_moved += self.pool.copy_slots(holding.table.offset, dst, holding.stored)


@mutant
class CopiesAllButTheLast(ContiguousManager):
    def _copy(self, holding: Any, dst: int) -> None:
        if self.pool is not None:
            self.tokens_moved += self.pool.copy_slots(holding.table.offset, dst, holding.table.capacity - 1)


@mutant
class KeepsTheOldRun(ContiguousManager):
    """After a move the old place is nobody's, but not free."""

    def _grow(self, table: Run, start: int, size: int) -> None:
        old = table.offset
        super()._grow(table, start, size)
        if start + size <= old:
            del self._memory._holes[self._memory._hole_at(old)]


@mutant
class LeavesTheOldMarks(ContiguousManager):
    """What was moved away can still be read at its old place."""

    def _grow(self, table: Run, start: int, size: int) -> None:
        pool, self.pool = self.pool, None
        try:
            if pool is not None and start != table.offset:
                pool.copy_slots(table.offset, start, table.capacity)
            super()._grow(table, start, size)
        finally:
            self.pool = pool


@mutant
class ForgetsWhatItSlidOver(ContiguousManager):
    """Releases the whole old place, although the new one lies on a part of it."""

    def _grow(self, table: Run, start: int, size: int) -> None:
        old, held = table.offset, table.capacity
        super()._grow(table, start, size)
        if start != old:
            self._forget_slots(old, old + held)


@mutant
class Overlaps(ContiguousManager):
    """Grows in place as if nobody were behind."""

    def _room(self, table: Run, size: int) -> int | None:
        if id(table) in self._held and table.offset + size <= self.num_slots:
            self._memory._spans[id(table)] = (table.offset, table.capacity)
            return table.offset
        return super()._room(table, size)

    def _grow(self, table: Run, start: int, size: int) -> None:
        table.place(start, size)
        self._memory._spans[id(table)] = (start, size)


@mutant
class IgnoresHeadroom(ContiguousManager):
    def _size(self, table: Run, num_tokens: int) -> int:
        size = super()._size(table, num_tokens)
        return size if self.reserve == "max" else num_tokens


@mutant
class IgnoresTheTablesMaximum(ContiguousManager):
    def _size(self, table: Run, num_tokens: int) -> int:
        super()._size(table, num_tokens)
        return self.max_length if self.reserve == "max" else min(num_tokens + self.headroom, self.max_length)


@mutant
class Leaks(ContiguousManager):
    """A freed run stays reserved."""

    def free(self, table: Run) -> None:
        size = table.capacity
        super().free(table)
        if size > 4 and self._memory.largest_hole:
            self._memory.allocate(f"lost {self._memory.free_slots}", 1)


@mutant
class FreesButKeepsTheKV(ContiguousManager):
    def free(self, table: Run) -> None:
        pool, self.pool = self.pool, None
        super().free(table)
        self.pool = pool


@mutant
class WritesAnywhere(ContiguousManager):
    def note_write(self, table: Run, start: int, stop: int, words: Any = ()) -> None:
        super().note_write(table, start, min(stop, max(start, table.capacity)), words)


@mutant
class ForksByPointing(ContiguousManager):
    """The child has the parent's slots, as if they were blocks with a count."""

    def fork(self, table: Any, name: str | None = None) -> Any:
        child = super().fork(table, name)
        if table.capacity:
            child.place(table.offset, table.capacity)
        return child


@mutant
class ForksNothing(ContiguousManager):
    """The child has slots of its own, but nothing in them."""

    def fork(self, table: Any, name: str | None = None) -> Any:
        child = super().fork(table, name)
        self._forget_slots(child.offset, child.offset + child.capacity)
        return child


@mutant
class ForksWithoutRoom(ContiguousManager):
    """Where no hole is large enough, the child is shorter."""

    def fork(self, table: Any, name: str | None = None) -> Any:
        try:
            return super().fork(table, name)
        except OutOfBlocksError:
            return type(table)(self.block_size, name)


@mutant
class DropsTheBack(ContiguousManager):
    def drop_front(self, table: Run, num_tokens: int) -> None:
        start = table.offset
        super().drop_front(table, num_tokens)
        if table.capacity and num_tokens > 0:
            table.place(start, table.capacity)


@mutant
class DropsButKeepsTheSlots(ContiguousManager):
    def drop_front(self, table: Run, num_tokens: int) -> None:
        start, size = table.offset, table.capacity
        super().drop_front(table, num_tokens)
        if table.capacity and num_tokens > 0:
            self._memory.place(id(table), start, size)


@mutant
class NeverSlides(ContiguousManager):
    def _room(self, table: Run, size: int) -> int | None:
        start = super()._room(table, size)
        slides = start is not None and start < table.offset < start + size and id(table) in self._held
        return None if slides and self._memory.find(size) is None else start


@mutant
class TakesTheLastHole(ContiguousManager):
    def _room(self, table: Run, size: int) -> int | None:
        start = super()._room(table, size)
        fitting = [first for first, room in self.holes if room >= size]
        return fitting[-1] if start in fitting and id(table) in self._held else start


@mutant
class ForgetsThePeak(ContiguousManager):
    def _begin(self, holding: Any, size: int) -> None:
        super()._begin(holding, size)
        self.max_allocated = self.allocated_blocks


@mutant
class LetsOldTablesLive(ContiguousManager):
    def release_all(self) -> None:
        tables = self.tables
        super().release_all()
        for table in tables:
            table.clear()


@mutant
class ChangesTheBooksFirst(ContiguousManager):
    """A pool that fails while copying finds the books changed."""

    def _copy(self, holding: Any, dst: int) -> None:
        self.tokens_moved += 1
        super()._copy(holding, dst)
        self.tokens_moved -= 1


@pytest.mark.parametrize("name", MUTANTS)
def test_every_wrong_manager_is_caught(name: str) -> None:
    said = caught(MUTANTS[name], MEMORIES)
    print(f"{name}: {said}")
    assert said is not None, f"{name} went through all random operations unnoticed"


def test_the_right_manager_is_not_caught() -> None:
    assert caught(ContiguousManager, MEMORIES) is None


# ---- a real pool ---------------------------------------------------------------------------------


def fingerprints(count: int, first: int) -> torch.Tensor:
    """[count, 2, 3]: no two numbers alike."""
    return torch.arange(first, first + count * 6, dtype=torch.float32).reshape(count, 2, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gap", [3, 9])
def test_a_real_pool_keeps_every_number_through_slides_and_moves(gap: int, dtype: torch.dtype) -> None:
    """A gap of 3 makes the run slide over itself; one of 9 holds it at once."""
    pool = BlockPool(1, 20, num_layers=2, num_kv_heads=2, head_dim=3, dtype=dtype)
    pool.kv.fill_(float("nan"))
    manager = ContiguousManager(20, "grow", headroom=0, pool=pool)
    front, table = Run(20), Run(20)
    assert manager.allocate(front, gap) and manager.allocate(table, 5)
    manager.note_write(table, 0, 5)
    kv = [(fingerprints(5, 100 * layer), fingerprints(5, 100 * layer + 50)) for layer in range(2)]
    for layer, (k, v) in enumerate(kv):
        pool.write(layer, table.slots(0, 5), k, v)
    behind = Run(20)
    assert manager.allocate(behind, 20 - gap - 5)
    manager.free(front)
    assert manager.allocate(table, 8) and table.offset == 0
    for layer, (k, v) in enumerate(kv):
        read_k, read_v = pool.read_layer(layer, [table], [5])
        assert torch.equal(read_k[0].transpose(0, 1), k.to(dtype))
        assert torch.equal(read_v[0].transpose(0, 1), v.to(dtype))
        with pytest.raises(UnwrittenSlotError):
            pool.read_layer(layer, [table], [6])
    assert pool.written(0).nonzero()[0].tolist() == [0, 1, 2, 3, 4]


# ---- the model says the same ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> GPT2:
    return GPT2.from_pretrained(device="cpu")


PROMPTS, NEW = 10, 8


@pytest.fixture(scope="module")
def paged(model: GPT2) -> list[list[int]]:
    pool = BlockPool(64, 4, model.num_layers, model.num_heads, model.head_dim)
    return DecodeLoop(model, KVCacheManager(64, 4, pool), pool).generate(prompts(model), NEW)


def prompts(model: GPT2) -> list[list[int]]:
    return make_prompts(model, 3 * PROMPTS)[::3]  # of 1, 4, 7 … tokens


def contiguous_loop(
    model: GPT2, num_slots: int, reserve: Literal["max", "grow"], backend: str, log: EventLog | None = None
) -> DecodeLoop:
    """A decode loop over contiguous memory full of NaN."""
    pool = BlockPool(1, num_slots, model.num_layers, model.num_heads, model.head_dim)
    pool.kv.fill_(float("nan"))
    limits: dict[str, Any] = {"max_length": 40} if reserve == "max" else {"headroom": 2}
    manager = ContiguousManager(num_slots, reserve, pool=pool, observer=log, **limits)
    return DecodeLoop(model, manager, pool, backend, new_table=Run, observer=log)


@pytest.mark.parametrize("backend", ["auto", "reference", "gather", "cpu", "contiguous"])
@pytest.mark.parametrize("reserve", ["max", "grow"])
def test_the_decode_loop_says_the_same(
    model: GPT2, paged: list[list[int]], reserve: Literal["max", "grow"], backend: str
) -> None:
    loop = contiguous_loop(model, 400, reserve, backend)
    assert loop.generate(prompts(model), NEW) == paged
    manager = loop.manager
    assert isinstance(manager, ContiguousManager)
    assert manager.num_free_blocks == 400
    assert (manager.tokens_moved > 0) == (reserve == "grow")
    manager.check()


def test_a_loop_without_room_says_so(model: GPT2) -> None:
    with pytest.raises(OutOfBlocksError):
        contiguous_loop(model, 79, "max", "gather").generate(prompts(model)[:2], 4)


# ---- what an observer hears ----------------------------------------------------------------------


@pytest.mark.parametrize("reserve", ["max", "grow"])
def test_an_event_log_follows_and_finds_nothing_wrong(
    model: GPT2, paged: list[list[int]], reserve: Literal["max", "grow"]
) -> None:
    log = EventLog()
    loop = contiguous_loop(model, 120, reserve, "gather", log)
    assert loop.generate(prompts(model)[:3], NEW) == paged[:3]
    assert log.violations == ()
    end = log.state(len(log) - 1)
    assert set(end.tables.values()) == {()} and end.free_queue == tuple(range(120))
    decoding = [event["step"] for event in log if event["op"] == "read" and event["request"] == "C"]
    there = log.state(decoding[-1])
    assert there.text_of("C")[:3] == tuple(model.text([token]) for token in prompts(model)[2][:3])


def test_the_log_shows_every_slot_and_every_word_after_a_move() -> None:
    log = EventLog()
    manager = grower(30, observer=log)
    a, b = Run(30, "A"), Run(30, "B")
    assert manager.allocate(a, 2)
    manager.note_write(a, 0, 2, ["one", "two"])
    assert manager.allocate(b, 3)
    manager.note_write(b, 0, 3, ["x", "y", "z"])
    assert manager.allocate(a, 5)  # from [0, 4) to [9, 16)
    manager.note_write(a, 2, 3, ["three"])
    manager.fork(b, "C")  # to [16, 21)
    manager.drop_front(b, 1)
    assert not manager.allocate(Run(30, "D"), 9)
    state = log.state(len(log) - 1)
    tables = {"A": range(9, 16), "B": range(5, 9), "C": range(16, 21), "D": ()}
    assert state.tables == {name: tuple(slots) for name, slots in tables.items()}
    assert state.text_of("A") == ("one", "two", "three")
    assert (state.text_of("B"), state.text_of("C")) == (("y", "z"), ("x", "y", "z"))
    assert state.free_queue == (*range(5), *range(21, 30))
    step = len(log) - 1
    assert log[step] == {"step": step, "op": "full", "request": "D", "needed": 11, "free": 14}
    manager.free(a)
    manager.release_all()
    assert log.violations == () and log.state(len(log) - 1).free_queue == tuple(range(30))


def test_who_listens_late_hears_the_rest() -> None:
    manager, heard = grower(), list[dict[str, Any]]()
    [a, _] = begun(manager, 2, 1)
    manager.observer = heard.append
    manager.note_write(a, 2, 3, ["two"])
    assert manager.allocate(a, 5)
    assert heard[0] == {"op": "write", "request": "A", "start": 2, "slots": [2], "words": ["two"]}
    assert heard[-2] == {
        "op": "write",
        "request": "A",
        "start": 0,
        "slots": [7, 8, 9],
        "words": ["·", "·", "two"],
    }


def test_a_log_follows_a_long_walk_without_a_complaint() -> None:
    log = EventLog()
    Walk(24, "grow", 24, 2, observer=log).random_steps(800, seed=1)
    assert log.violations == ()


def test_books_of_contiguous_memory_need_no_torch() -> None:
    code = "import sys, minikv.engine.contiguous; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_every_error_is_a_cache_error() -> None:
    assert issubclass(CacheValueError, KVCacheError) and issubclass(CacheValueError, ValueError)
