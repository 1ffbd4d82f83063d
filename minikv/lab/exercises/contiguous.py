"""Exercises of notebook 01: what a reservation wastes, what fits, what growing copies; finding a place."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from minikv.lab.exercises.exercise import Exercise, Verdict, number

# ---- 01.waste: the share of a reservation that is never used -------------------------------


def _waste(rng: random.Random) -> Exercise:
    size = rng.choice((100, 200, 400))
    prompt = rng.randint(2, 4) * size // 20
    unused = rng.randint(11, 15) * size // 20
    room = size - prompt
    answer = room - unused
    share = 100 * unused // size
    slips = {
        100 - share: "that is the share that was used",
        unused: "that is a number of slots; the question asks for per cent",
        round(100 * unused / room): "the prompt's slots are part of the reservation, too",
        round(100 * answer / size): "that is the answer's share; the unused slots are asked for",
    }
    slips.pop(share, None)
    return Exercise(
        question=f"A prompt has {prompt} tokens. For its answer {room} slots are reserved, max_new_tokens. "
        f"The answer ends after {answer} tokens, which are all stored. What share of the reservation was "
        "never used, in per cent?",
        judge=_per_cent(number(share, f"{unused} of {size} slots: {share} %", slips), share),
        hints=(
            "How many slots are reserved in all, those of the prompt included?",
            f"{prompt} + {room} = {size} slots, and {prompt} + {answer} of them were filled.",
            f"Divide the {size} - {prompt + answer} slots that were not by {size}.",
        ),
        solution=f"({room} - {answer}) / ({prompt} + {room}) = {unused} / {size} = {share} %",
        right=share,
        wrong=(("a fraction", share / 100), *((why, value) for value, why in slips.items())),
    )


def _per_cent(judge: Callable[[Any], Verdict], share: int) -> Callable[[Any], Verdict]:
    """`judge`, but "55 %" is 55, and of 0.55 it is said what it is."""

    def lenient(answer: Any) -> Verdict:
        if isinstance(answer, str):
            try:
                answer = float(answer.removesuffix("%"))
            except ValueError:
                return judge(answer)
        if answer == share / 100:
            return Verdict(False, f"that is the fraction; {answer} of all slots is how many per cent?")
        return judge(answer)

    return lenient


# ---- 01.kinds: reserved for later, or internal fragmentation? -------------------------------


def _kinds(rng: random.Random) -> Exercise:
    size = rng.randint(40, 60)
    written = rng.randint(12, 20)
    final = written + rng.randint(5, 12)
    reserved, internal = final - written, size - final
    slips = {
        (internal, reserved): "the other way round: reserved slots will be filled later, the others never",
        (size - written, 0): "not all of them will be filled: the request ends before",
        (0, size - written): "some of them will still be filled: they are reserved, not wasted for good",
        (reserved, size - written): "the empty slots are counted twice: each is of one kind only",
        (final, internal): "the slots that hold a token by now are neither",
    }
    slips = {value: why for value, why in slips.items() if value != (reserved, internal)}
    return Exercise(
        question=f"A request holds {size} slots. Now {written} of them hold a token; when it ends, {final} "
        "will. How many of its slots are reserved for later, and how many are internal fragmentation? "
        "Answer with both numbers, as in (3, 4).",
        judge=_pair((reserved, internal), slips),
        hints=(
            f"{size} - {written} slots are empty now. Which of these will be filled?",
            f"Up to {final} tokens will come: {final} - {written} slots are reserved for later.",
            f"What is left, {size} - {final}, is never filled.",
        ),
        solution=f"({final} - {written}, {size} - {final}) = ({reserved}, {internal}). "
        "Only with hindsight can the two be told apart.",
        right=(reserved, internal),
        wrong=tuple((why, value) for value, why in slips.items()),
    )


def _pair(value: tuple[int, int], slips: dict[tuple[int, int], str]) -> Callable[[Any], Verdict]:
    def judge(answer: Any) -> Verdict:
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            return Verdict(False, f"the answer is two numbers, as in (3, 4), not {answer!r}")
        answer = tuple(answer)
        if answer == value:
            return Verdict(True, f"{value[0]} will be filled later, {value[1]} never")
        why = next((why for slip, why in slips.items() if slip == answer), None)
        return Verdict(False, why or f"{answer} is not right; hint(…) helps")

    return judge


# ---- 01.fits: the largest request that finds a place ----------------------------------------


def _fits(rng: random.Random) -> Exercise:
    sizes = rng.sample(range(6, 20), 5)
    b, c, e = sizes[1], sizes[2], sizes[4]
    memory = sum(sizes) + rng.randint(2, 5)
    rest = memory - sum(sizes)
    largest = max(b + c, e + rest)
    slips = {
        b + c + e + rest: "that is all that is free; a reservation lies in one piece",
        max(b, c, e, rest): "holes that touch are one hole",
        max(b, c, e + rest): "B and C lie side by side: their slots are one hole",
        min(b + c, e + rest): "that one fits, but a larger one does, too",
        b + c + e: "the slots of D lie between: it still runs",
        rest: "that is what was never given to anybody",
    }
    slips = {value: why for value, why in slips.items() if value != largest}
    spans = ", ".join(f"{name} {size}" for name, size in zip("ABCDE", sizes, strict=True))
    return Exercise(
        question=f"A memory of {memory} slots. Side by side, from slot 0 on, these hold slots: {spans}. Then "
        "B, C and E end. How many slots may the next reservation have at most?",
        judge=number(largest, f"the holes have {b + c} and {e + rest} slots", slips),
        hints=(
            "Draw the memory as a line, and cross out those that have ended.",
            f"Who lies between the holes? A and D still run. Behind E, {rest} slots were free anyway.",
            f"B and C are one hole of {b} + {c}, E and what lies behind it one of {e} + {rest}.",
        ),
        solution=f"max({b} + {c}, {e} + {rest}) = {largest}, though {b + c + e + rest} are free.",
        right=largest,
        wrong=tuple((why, value) for value, why in slips.items()),
    )


# ---- 01.copied: what growing by doubling copies -----------------------------------------------


def _copied(rng: random.Random) -> Exercise:
    first, doublings = rng.choice((8, 16)), rng.choice((3, 4))
    last = first * 2**doublings
    total = last - rng.randint(1, first - 1)
    moves = [first * 2**n for n in range(doublings)]
    copied = sum(moves)
    slips = {
        moves[-1]: "that is the last move only",
        copied - moves[-1]: f"a move is missing: the reservation of {moves[-1]} was full once, too",
        copied + last: "the last reservation is never full, so nothing is copied out of it",
        copied - first: "the first reservation was full once, too",
        total: "that is how many tokens are stored at the end",
        last: "that is the last reservation",
        doublings: "that is the number of moves",
    }
    return Exercise(
        question=f"A request begins with a reservation of {first} slots. Whenever it is full and one more "
        "token comes, all of it moves to a reservation twice as large. It ends with "
        f"{total} tokens. How many tokens were copied in all?",
        judge=number(copied, f"{' + '.join(map(str, moves))} = {copied}, for {total} tokens", slips),
        hints=(
            "List the reservations one after the other. How many tokens are in each when it is full?",
            f"They are {', '.join(map(str, [*moves, last]))}. Which of them were ever full?",
            f"All but the last one: add up {', '.join(map(str, moves))}.",
        ),
        solution=f"{' + '.join(map(str, moves))} = {copied}: less than 2 copies a token, however long it "
        "gets. But each move stops the request, and needs the old and the new place at once.",
        right=copied,
        wrong=tuple((why, value) for value, why in slips.items() if value != copied),
    )


# ---- 01.place: first fit --------------------------------------------------------------------------


# The solution of 01.place, as a learner would write it; each wrong one differs in one thing.
def _my_place(holes, size):
    for start, room in holes:
        if room >= size:
            return start
    return None


def _too_strict(holes, size):
    return next((start for start, room in holes if room > size), None)


def _worst_fit(holes, size):
    fitting = [(room, start) for start, room in holes if room >= size]
    return max(fitting)[1] if fitting else None


def _best_fit(holes, size):
    return min(((room, start) for start, room in holes if room >= size), default=(0, None))[1]


def _first_hole_only(holes, size):
    return holes[0][0] if holes and holes[0][1] >= size else None


def _by_what_is_free(holes, size):
    return holes[0][0] if sum(room for _, room in holes) >= size else None


def _index(holes, size):
    return next((n for n, (_, room) in enumerate(holes) if room >= size), None)


def _zero_for_none(holes, size):
    return next((start for start, room in holes if room >= size), 0)


def _minus_one_for_none(holes, size):
    return next((start for start, room in holes if room >= size), -1)


def _as_float(holes, size):
    return next((float(start) for start, room in holes if room >= size), None)


def _place(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write place(holes, size): the start of the first hole with at least `size` slots, or None "
        "if there is none. holes is a list of (start, size), in the order in which they lie in memory.",
        judge=_judge_place,
        hints=(
            "Go through the holes in order. When do you stop?",
            "for start, room in holes: the request fits if room is at least size.",
            "Return start inside the loop, and None behind it.",
        ),
        solution="def place(holes, size):\n    for start, room in holes:\n        if room >= size:\n"
        "            return start\n    return None",
        right=_my_place,
        wrong=(
            ("a hole of exactly this size is not taken", _too_strict),
            ("takes the largest hole", _worst_fit),
            ("takes the smallest hole that is large enough", _best_fit),
            ("looks at the first hole only", _first_hole_only),
            ("adds up holes that do not touch", _by_what_is_free),
            ("answers with the number of the hole", _index),
            ("0 is a slot, not 'nowhere'", _zero_for_none),
            ("-1 for nowhere", _minus_one_for_none),
            ("a slot is no float", _as_float),
            ("untouched starter", lambda holes, size: ...),
        ),
    )


_HOLES: tuple[list[tuple[int, int]], ...] = (
    [],
    [(0, 5)],
    [(3, 4), (10, 9), (30, 5)],
    [(7, 2), (12, 3), (20, 3)],
    [(0, 1), (4, 6), (15, 6)],
)


def _judge_place(answer: Any) -> Verdict:
    if not callable(answer):
        return Verdict(False, f"the answer is a function, not {answer!r}")
    name = _name(answer)
    for holes in _HOLES:
        for size in range(1, 11):
            try:
                said = answer(list(holes), size)
            except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
                return Verdict(False, f"{name}({holes}, {size}) raised {type(error).__name__}: {error}")
            if said is ...:
                return Verdict(False, "not answered yet: the function still returns ...")
            fitting = [start for start, room in holes if room >= size]
            if said != (fitting[0] if fitting else None) or isinstance(said, bool | float):
                return _misplaced(f"{name}({holes}, {size}) is {said!r}", holes, said, fitting)
    return Verdict(True, "right for 5 memories and 10 sizes each")


def _name(function: Any) -> str:
    """What the learner calls it."""
    return getattr(function, "__name__", "the function")


def _misplaced(found: str, holes: list[tuple[int, int]], said: Any, fitting: list[int]) -> Verdict:
    """What is wrong with `said`; `found` tells the call and what it gave."""
    call = f"{found}, should be {fitting[0] if fitting else None}"
    if isinstance(said, float):
        return Verdict(False, f"{call}; a slot has a whole number")
    if not fitting and said == -1:
        return Verdict(False, f"{call}; where nothing fits the answer is None, not -1")
    if said is None or said in fitting or isinstance(said, bool) or not isinstance(said, int):
        return Verdict(False, call)
    room = next((start + room - said for start, room in holes if start <= said < start + room), 0)
    return Verdict(False, f"{call}; only {room} slots are free from there on", "I1")


# ---- 01.merge: holes that touch are one hole -----------------------------------------------------


# The solution of 01.merge, as a learner would write it; each wrong one differs in one thing.
def _my_merge(holes):
    joined: list[tuple[int, int]] = []
    for start, size in holes:
        if joined and joined[-1][0] + joined[-1][1] == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((start, size))
    return joined


def _pairs_only(holes):
    joined, n = [], 0
    while n < len(holes):
        if n + 1 < len(holes) and sum(holes[n]) == holes[n + 1][0]:
            joined.append((holes[n][0], holes[n][1] + holes[n + 1][1]))
            n += 2
        else:
            joined.append(holes[n])
            n += 1
    return joined


def _over_gaps(holes):
    return [(holes[0][0], sum(holes[-1]) - holes[0][0])] if holes else []


def _loses_the_last(holes):
    joined = []
    for before, after in pairwise(holes):
        joined.append((before[0], before[1] + after[1]) if sum(before) == after[0] else before)
    return joined


def _one_off(holes):
    joined: list[tuple[int, int]] = []
    for start, size in holes:
        if joined and sum(joined[-1]) + 1 >= start:
            joined[-1] = (joined[-1][0], start + size - joined[-1][0])
        else:
            joined.append((start, size))
    return joined


def _merge(rng: random.Random) -> Exercise:
    return Exercise(
        question="Write merge(holes): the same free slots, as a list of (start, size) in the same order, but "
        "holes that touch joined into one.",
        judge=_judge_merge,
        hints=(
            "Two holes touch when one ends where the next begins: start + size of one is the other's start.",
            "Build a new list. For each hole: does it touch the last one in the new list?",
            "If it does, replace that last one by (its start, its size + size); if not, append the hole.",
        ),
        solution="def merge(holes):\n    joined = []\n    for start, size in holes:\n"
        "        if joined and joined[-1][0] + joined[-1][1] == start:\n"
        "            joined[-1] = (joined[-1][0], joined[-1][1] + size)\n"
        "        else:\n            joined.append((start, size))\n    return joined",
        right=_my_merge,
        wrong=(
            ("joins nothing", lambda holes: list(holes)),
            ("joins two, but not three in a row", _pairs_only),
            ("joins over slots that are held", _over_gaps),
            ("loses the last hole", _loses_the_last),
            ("joins holes with a held slot between them", _one_off),
            ("throws everything away", lambda holes: []),
            ("untouched starter", lambda holes: ...),
        ),
    )


_PIECES: tuple[list[tuple[int, int]], ...] = (
    [],
    [(4, 3)],
    [(0, 4), (6, 2)],
    [(0, 4), (4, 2)],
    [(1, 2), (3, 4), (7, 1), (10, 5)],
    [(0, 2), (3, 3), (6, 1), (9, 1), (10, 2), (12, 4), (20, 1)],
)


def _judge_merge(answer: Any) -> Verdict:
    if not callable(answer):
        return Verdict(False, f"the answer is a function, not {answer!r}")
    for holes in _PIECES:
        try:
            said = as_holes(answer(list(holes)))
        except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
            return Verdict(False, f"{_name(answer)}({holes}) raised {type(error).__name__}: {error}")
        if said is ...:
            return Verdict(False, "not answered yet: the function still returns ...")
        right = _my_merge(holes)
        if said != right:
            found = f"{_name(answer)}({holes}) is {said!r}, should be {right}"
            return Verdict(False, found, _broken(said, right))
    return Verdict(True, "right for 6 memories: nothing is lost, and nothing that touches is apart")


def as_holes(said: Any) -> Any:
    """A list of holes where each may be a list, too, as in [[4, 3]]; anything else as it is."""
    if not isinstance(said, list):
        return said
    return [tuple(hole) if isinstance(hole, list) else hole for hole in said]


def _broken(said: Any, right: list[tuple[int, int]]) -> str | None:
    """I1 if a slot is lost, free twice, or free and held."""
    try:
        slots = sorted(slot for start, size in said for slot in range(start, start + size))
    except (TypeError, ValueError):
        return None
    free = [slot for start, size in right for slot in range(start, start + size)]
    return None if slots == free else "I1"


EXERCISES = {
    "01.waste": _waste,
    "01.kinds": _kinds,
    "01.fits": _fits,
    "01.copied": _copied,
    "01.place": _place,
    "01.merge": _merge,
}
WITH_VARIANTS = ("01.waste", "01.kinds", "01.fits", "01.copied")
