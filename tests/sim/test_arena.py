"""Contiguous memory against an oracle that marks every single slot."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby
from typing import Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minikv.sim.arena import Arena, BuddyArena, Growth


def filled(fit: Literal["first", "best"] = "first") -> Arena:
    """aaaa....bb..cccc...d: 20 slots with holes of 4, 2 and 3."""
    arena = Arena(20, fit)
    for owner, size in (("a", 4), ("x", 4), ("b", 2), ("y", 2), ("c", 4), ("z", 3), ("d", 1)):
        assert arena.allocate(owner, size) is not None
    for owner in "xyz":
        arena.free(owner)
    assert arena.holes == [(4, 4), (10, 2), (16, 3)]
    return arena


# ---- exact places ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fit", "size", "start"),
    [("first", 3, 4), ("best", 3, 16), ("first", 1, 4), ("best", 1, 10), ("best", 4, 4), ("first", 5, None)],
)
def test_first_fit_takes_the_first_hole_and_best_fit_the_smallest(
    fit: Literal["first", "best"], size: int, start: int | None
) -> None:
    assert filled(fit).allocate("new", size) == start


def test_best_fit_takes_the_lowest_of_equal_holes() -> None:
    arena = Arena(6, "best")
    for owner in "abcdef":
        arena.allocate(owner, 1)
    arena.free("e")
    arena.free("b")
    assert arena.allocate("new", 1) == 1


def test_freed_slots_join_the_holes_on_both_sides() -> None:
    arena = filled()
    arena.free("b")
    assert arena.holes == [(4, 8), (16, 3)]
    arena.free("a")
    assert arena.holes == [(0, 12), (16, 3)]
    arena.free("d")
    arena.free("c")
    assert arena.holes == [(0, 20)] and arena.free_slots == arena.largest_hole == 20


def test_growth_into_the_hole_behind_copies_nothing() -> None:
    arena = filled()
    assert arena.grow("a", 8) == Growth(0, 0)
    assert arena.spans["a"] == (0, 8) and arena.holes == [(10, 2), (16, 3)]


def test_growth_that_does_not_fit_behind_moves_and_leaves_a_hole() -> None:
    arena = filled()
    assert arena.grow("b", 4) == Growth(8, 0)  # the two behind suffice
    arena = filled()
    assert arena.grow("c", 7) == Growth(12, 0)
    assert arena.grow("d", 3) == Growth(4, 1)  # nothing behind the last slot
    assert arena.holes == [(7, 1), (10, 2), (19, 1)]


def test_a_move_needs_room_for_both_places_at_once() -> None:
    """One slot is free; with the four of the old place it would do, but those are not free yet."""
    arena = Arena(8)
    arena.allocate("gap", 1)
    arena.allocate("a", 4)
    arena.allocate("end", 2)
    arena.free("gap")
    arena.free("end")
    arena.allocate("end", 3)
    before = arena.spans, arena.holes
    assert arena.grow("a", 5) is None
    assert (arena.spans, arena.holes) == before


def test_growth_by_nothing_is_no_move() -> None:
    assert filled().grow("c", 4) == Growth(12, 0)


def test_buddies_split_low_and_join_again() -> None:
    arena = BuddyArena(16)
    assert [arena.allocate(owner, size) for owner, size in (("a", 3), ("b", 1), ("c", 4))] == [0, 4, 8]
    assert arena.spans == {"a": (0, 4), "b": (4, 1), "c": (8, 4)}
    assert arena.holes == [(5, 1), (6, 2), (12, 4)]
    arena.free("b")
    assert arena.holes == [(4, 4), (12, 4)]
    arena.free("a")
    assert arena.holes == [(0, 8), (12, 4)]
    arena.free("c")
    assert arena.holes == [(0, 16)]


def test_free_neighbours_that_are_no_buddies_stay_apart() -> None:
    arena = BuddyArena(16)
    for owner in "abcd":
        arena.allocate(owner, 4)
    arena.free("b")
    arena.free("c")
    assert arena.holes == [(4, 4), (8, 4)] and arena.largest_hole == 4
    assert arena.allocate("new", 5) is None


def test_a_size_that_is_no_power_of_two_is_cut_into_descending_ones() -> None:
    arena = BuddyArena(15_700)
    assert [size for _, size in arena.holes] == [8192, 4096, 2048, 1024, 256, 64, 16, 4]
    assert arena.allocate("a", 2049) == 8192
    assert arena.allocate("b", 300) == 14_336
    arena.free("a")
    arena.free("b")
    assert [size for _, size in arena.holes] == [8192, 4096, 2048, 1024, 256, 64, 16, 4]


def test_buddies_take_the_smallest_piece_that_does() -> None:
    arena = BuddyArena(12)
    assert arena.allocate("a", 4) == 8
    assert arena.allocate("b", 4) == 0


# ---- misuse ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda a: a.allocate("a", 1), ValueError, "'a' already holds 4 slots"),
        (lambda a: a.allocate("new", 0), ValueError, "size is 0; it must be at least 1"),
        (lambda a: a.allocate("new", 1.5), TypeError, "size is 1.5; it must be an integer"),
        (lambda a: a.free("new"), KeyError, "'new' holds no slots"),
        (lambda a: a.grow("new", 3), KeyError, "'new' holds no slots"),
        (lambda a: a.grow("a", 3), ValueError, "new_size is 3, but 'a' holds 4 slots"),
        (lambda a: a.grow("a", None), TypeError, "new_size is None"),
    ],
)
def test_misuse_is_refused_and_changes_nothing(
    call: Callable[[Arena], object], error: type[Exception], said: str
) -> None:
    arena = filled()
    before = arena.spans, arena.holes, arena.free_slots
    with pytest.raises(error, match=re.escape(said)):
        call(arena)
    assert (arena.spans, arena.holes, arena.free_slots) == before


@pytest.mark.parametrize("kind", [Arena, BuddyArena])
def test_an_arena_has_a_slot(kind: type[Arena | BuddyArena]) -> None:
    with pytest.raises(ValueError, match="num_slots is 0; it must be at least 1"):
        kind(0)
    with pytest.raises(TypeError, match="num_slots is '9'"):
        kind("9")  # type: ignore[arg-type]


def test_another_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="fit is 'worst'"):
        Arena(8, "worst")  # type: ignore[arg-type]


def test_spans_and_holes_are_copies() -> None:
    arena = filled()
    arena.spans.clear()
    arena.holes.clear()
    assert len(arena.spans) == 4 and len(arena.holes) == 3


# ---- random programs against one byte a slot -----------------------------------------------------


class Slots:
    """The oracle: 0 is free, anything else is an owner. Slow, and too simple to be wrong."""

    def __init__(self, num_slots: int) -> None:
        self.owners = bytearray(num_slots)

    def runs(self, owner: int) -> list[tuple[int, int]]:
        """The stretches this owner has, 0 for the holes."""
        places = [i for i, who in enumerate(self.owners) if who == owner]
        stretches = [list(run) for _, run in groupby(enumerate(places), lambda pair: pair[1] - pair[0])]
        return [(run[0][1], len(run)) for run in stretches]

    def find(self, size: int, fit: str) -> int | None:
        """The start of the hole to take."""
        fitting = [(hole, start) for start, hole in self.runs(0) if hole >= size]
        if fit == "first":
            fitting = sorted(fitting, key=lambda pair: pair[1])
        return min(fitting)[1] if fitting and fit == "best" else (fitting[0][1] if fitting else None)

    def mark(self, owner: int, start: int, size: int) -> None:
        self.owners[start : start + size] = bytes([owner]) * size


class ArenaAgainstSlots(RuleBasedStateMachine):
    @initialize(num_slots=st.integers(1, 40), fit=st.sampled_from(["first", "best"]))
    def start(self, num_slots: int, fit: Literal["first", "best"]) -> None:
        self.arena, self.slots, self.fit = Arena(num_slots, fit), Slots(num_slots), fit
        self.next_owner = 1

    @precondition(lambda self: self.next_owner < 256)
    @rule(size=st.integers(1, 12))
    def allocate(self, size: int) -> None:
        expected = self.slots.find(size, self.fit)
        assert self.arena.allocate(self.next_owner, size) == expected
        if expected is not None:
            self.slots.mark(self.next_owner, expected, size)
            self.next_owner += 1

    @precondition(lambda self: self.arena.spans)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.arena.spans)))
        self.arena.free(owner)
        self.slots.mark(0, *self.slots.runs(owner)[0])

    @precondition(lambda self: self.arena.spans)
    @rule(data=st.data(), more=st.integers(0, 9))
    def grow(self, data: st.DataObject, more: int) -> None:
        owner = data.draw(st.sampled_from(sorted(self.arena.spans)))
        start, size = self.slots.runs(owner)[0]
        behind = self.slots.owners[start + size : start + size + more]
        if len(behind) == more and not any(behind):
            expected: Growth | None = Growth(start, 0)
        else:
            hole = self.slots.find(size + more, self.fit)
            expected = None if hole is None else Growth(hole, size)
        assert self.arena.grow(owner, size + more) == expected
        if expected:
            self.slots.mark(0, start, size)
            self.slots.mark(owner, expected.start, size + more)

    @invariant()
    def same(self) -> None:
        assert self.arena.holes == self.slots.runs(0)
        assert self.arena.free_slots == self.slots.owners.count(0)
        assert self.arena.largest_hole == max((size for _, size in self.slots.runs(0)), default=0)
        for owner, span in self.arena.spans.items():
            assert self.slots.runs(owner) == [span]


class BuddyAgainstSlots(RuleBasedStateMachine):
    """A buddy start is any multiple of its size within the original pieces: the oracle tries them all."""

    @initialize(num_slots=st.integers(1, 70))
    def start(self, num_slots: int) -> None:
        self.arena, self.slots, self.next_owner = BuddyArena(num_slots), Slots(num_slots), 1

    def free_pieces(self) -> list[tuple[int, int]]:
        """The largest aligned powers of two that are free, found by trying every one, largest first."""
        seen, pieces = bytearray(self.slots.owners), []
        for order in reversed(range(7)):
            size = 1 << order
            for start in range(0, len(seen) - size + 1, size):
                if not any(seen[start : start + size]):
                    seen[start : start + size] = b"\xff" * size
                    pieces.append((start, size))
        return sorted(pieces)

    @precondition(lambda self: self.next_owner < 255)
    @rule(size=st.integers(1, 20))
    def allocate(self, size: int) -> None:
        rounded = next(1 << k for k in range(7) if 1 << k >= size)
        fitting = [(piece, start) for start, piece in self.free_pieces() if piece >= rounded]
        expected = min(fitting)[1] if fitting else None
        assert self.arena.allocate(self.next_owner, size) == expected
        if expected is not None:
            self.slots.mark(self.next_owner, expected, rounded)
            self.next_owner += 1

    @precondition(lambda self: self.arena.spans)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.arena.spans)))
        self.arena.free(owner)
        self.slots.mark(0, *self.slots.runs(owner)[0])

    @invariant()
    def same(self) -> None:
        assert self.arena.holes == self.free_pieces()
        assert self.arena.free_slots == self.slots.owners.count(0)
        assert self.arena.largest_hole == max((size for _, size in self.free_pieces()), default=0)
        for owner, span in self.arena.spans.items():
            assert self.slots.runs(owner) == [span]


TestArenaAgainstSlots = ArenaAgainstSlots.TestCase
TestBuddyAgainstSlots = BuddyAgainstSlots.TestCase
