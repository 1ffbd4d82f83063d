"""Contiguous memory: every owner's slots lie side by side, and what is left are holes. (chapter §1)

A hole is free memory between two owners. `Arena` puts a request into any hole that is large enough;
`BuddyArena` only hands out powers of two, so that free memory joins again easily. Both keep the holes
in one list in address order: some tens of requests leave some tens of holes, and to walk them is quick.
Nothing is ever stored here; a slot is a number.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Literal, NamedTuple

from minikv.checks import whole_number

Owner = str | int
Span = tuple[int, int]  # (start, size), in slots: the slots [start, start + size)


class Growth(NamedTuple):
    """Where an owner's slots begin now, and how many had to be copied there (0: grown in place)."""

    start: int
    tokens_copied: int


class Arena:
    """Slots handed out in runs of exactly the size asked for.

    Args:
        num_slots: token slots, at least 1.
        fit: which hole to take. "first": the one at the lowest address that is large enough.
            "best": the smallest that is large enough, the lowest of equals.

    Raises:
        ValueError: num_slots below 1, or another fit. TypeError: num_slots is not an integer.
    """

    def __init__(self, num_slots: int, fit: Literal["first", "best"] = "first") -> None:
        if fit not in ("first", "best"):
            raise ValueError(f'fit is {fit!r}; it must be "first" or "best"')
        self.num_slots = _at_least_one("num_slots", num_slots)
        self.fit = fit
        self.free_slots = self.num_slots
        self._spans: dict[Owner, Span] = {}
        self._holes: list[Span] = [(0, self.num_slots)]  # in address order, never two side by side

    @property
    def spans(self) -> dict[Owner, Span]:
        """Who holds which slots: owner -> (start, size). A copy."""
        return dict(self._spans)

    @property
    def holes(self) -> list[Span]:
        """The free runs of slots as (start, size), in address order. A copy."""
        return list(self._holes)

    @property
    def largest_hole(self) -> int:
        """Slots in the largest hole: the largest request that would still find a place."""
        return max((size for _, size in self._holes), default=0)

    def allocate(self, owner: Owner, size: int) -> int | None:
        """Give `owner` `size` slots side by side; their start, or None if no hole is large enough.

        Raises:
            ValueError: size below 1, or the owner already holds slots.
        """
        size = _new_owner(self._spans, owner, size)
        index = self._find_hole(size)
        return None if index is None else self._take(owner, index, size)

    def free(self, owner: Owner) -> None:
        """Take the owner's slots back; holes beside them become one with them. KeyError: it holds none."""
        self._release(*_span_of(self._spans, owner))
        del self._spans[owner]

    def grow(self, owner: Owner, new_size: int) -> Growth | None:
        """Make the owner's run `new_size` slots long: in place, else by a move, else None and no change.

        In place needs a hole right behind it. A move needs another hole for all of the new size, for
        the old place is free only when everything has been copied out of it.

        Raises:
            KeyError: the owner holds no slots. ValueError: new_size is smaller than what it holds.
        """
        start, size = _span_of(self._spans, owner)
        new_size = whole_number("new_size", new_size)
        if new_size < size:
            raise ValueError(f"new_size is {new_size}, but {owner!r} holds {size} slots; a run only grows")
        if self._extend(start + size, new_size - size):
            self._spans[owner] = (start, new_size)
            return Growth(start, 0)
        index = self._find_hole(new_size)
        if index is None:
            return None
        moved = self._take(owner, index, new_size)
        self._release(start, size)
        return Growth(moved, size)

    def _find_hole(self, size: int) -> int | None:
        """Index of the hole to take."""
        fitting = (i for i, (_, hole) in enumerate(self._holes) if hole >= size)
        if self.fit == "first":
            return next(fitting, None)
        return min(fitting, key=lambda i: self._holes[i][1], default=None)

    def _take(self, owner: Owner, index: int, size: int) -> int:
        """Give the owner the first `size` slots of this hole."""
        start = self._holes[index][0]
        self._shorten(index, size)
        self._spans[owner] = (start, size)
        return start

    def _extend(self, end: int, more: int) -> bool:
        """Add `more` slots to the run that ends at `end`, if the hole right behind it has them."""
        if more == 0:
            return True
        index = bisect_left(self._holes, (end, 0))
        if index == len(self._holes) or self._holes[index][0] != end or self._holes[index][1] < more:
            return False
        self._shorten(index, more)
        return True

    def _shorten(self, index: int, size: int) -> None:
        """Cut `size` slots off the front of a hole."""
        start, hole = self._holes[index]
        self._holes[index : index + 1] = [(start + size, hole - size)] if hole > size else []
        self.free_slots -= size

    def _release(self, start: int, size: int) -> None:
        """Make a hole, one with the hole before it and the hole behind it."""
        self.free_slots += size
        first = last = bisect_left(self._holes, (start, 0))
        if last < len(self._holes) and self._holes[last][0] == start + size:
            size += self._holes[last][1]
            last += 1
        if first and sum(self._holes[first - 1]) == start:
            first -= 1
            start, size = self._holes[first][0], size + self._holes[first][1]
        self._holes[first:last] = [(start, size)]


class BuddyArena:
    """Slots handed out in powers of two; a piece that is too large is halved until it is not.

    A freed half joins its other half, its buddy, if that is free as a whole. To find the buddy is one
    bit of arithmetic, but sizes are rounded up, and two free pieces side by side that are no buddies
    stay two: `holes` lists them apart, for together they serve nobody.

    Args:
        num_slots: token slots, at least 1. No power of two? It is cut into descending ones:
            15,700 = 8,192 + 4,096 + 2,048 + 1,024 + 256 + 64 + 16 + 4.

    Raises:
        ValueError: num_slots below 1. TypeError: it is not an integer.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = _at_least_one("num_slots", num_slots)
        self.free_slots = self.num_slots
        self._spans: dict[Owner, Span] = {}
        self._pieces: list[list[int]] = [[] for _ in range(self.num_slots.bit_length())]
        start = 0  # _pieces[k]: starts of the free pieces of 2**k slots, in address order
        for order in reversed(range(self.num_slots.bit_length())):
            if self.num_slots >> order & 1:
                self._pieces[order].append(start)
                start += 1 << order

    @property
    def spans(self) -> dict[Owner, Span]:
        """Who holds which slots: owner -> (start, size), the size as rounded up. A copy."""
        return dict(self._spans)

    @property
    def holes(self) -> list[Span]:
        """The free pieces as (start, size), in address order; pieces side by side are no buddies."""
        return sorted((start, 1 << order) for order, starts in enumerate(self._pieces) for start in starts)

    @property
    def largest_hole(self) -> int:
        """Slots in the largest free piece."""
        return max((1 << order for order, starts in enumerate(self._pieces) if starts), default=0)

    def allocate(self, owner: Owner, size: int) -> int | None:
        """Give `owner` the next power of two of slots; their start, or None if no piece is large enough.

        The smallest piece that does is taken, the one at the lowest address of several.

        Raises:
            ValueError: size below 1, or the owner already holds slots.
        """
        wanted = (_new_owner(self._spans, owner, size) - 1).bit_length()
        order = next((k for k in range(wanted, len(self._pieces)) if self._pieces[k]), None)
        if order is None:
            return None
        start = self._pieces[order].pop(0)
        while order > wanted:  # keep the lower half, set the upper one free
            order -= 1
            insort(self._pieces[order], start + (1 << order))
        self._spans[owner] = (start, 1 << wanted)
        self.free_slots -= 1 << wanted
        return start

    def free(self, owner: Owner) -> None:
        """Take the owner's piece back and join it with its buddy, as often as that is free.

        Raises:
            KeyError: the owner holds no slots.
        """
        start, size = _span_of(self._spans, owner)
        del self._spans[owner]
        self.free_slots += size
        order = size.bit_length() - 1
        # A piece that was never halved has no buddy: what would be its address holds a smaller piece.
        while (start ^ 1 << order) in self._pieces[order]:
            self._pieces[order].remove(start ^ 1 << order)
            start &= ~(1 << order)
            order += 1
        insort(self._pieces[order], start)


def _at_least_one(name: str, value: int) -> int:
    number = whole_number(name, value)
    if number < 1:
        raise ValueError(f"{name} is {number}; it must be at least 1")
    return number


def _new_owner(spans: dict[Owner, Span], owner: Owner, size: int) -> int:
    """The size, if it is one and the owner holds nothing yet."""
    if owner in spans:
        raise ValueError(f"{owner!r} already holds {spans[owner][1]} slots; free them, or let them grow")
    return _at_least_one("size", size)


def _span_of(spans: dict[Owner, Span], owner: Owner) -> Span:
    if owner not in spans:
        raise KeyError(f"{owner!r} holds no slots; allocate some first")
    return spans[owner]
