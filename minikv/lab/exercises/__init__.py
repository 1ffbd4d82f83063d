"""Exercises: check an answer, ask for a hint, look at the solution.

    check("02.slot", 13)        hint("02.slot")         solution("02.slot")
    variant(7)                  the same kind of question with other numbers

An exercise with numbers has variants: "02.slot#7" is "02.slot" with the numbers of seed 7, and
`check`, `hint` and `solution` take that id, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from minikv.lab.exercises import (
    blocks_and_tables,
    contiguous,
    decode,
    experiment,
    kernel,
    manager,
    modes,
    pool,
    ref_counts,
    sharing,
    start_here,
)
from minikv.lab.exercises.exercise import Exercise, Verdict, folded

__all__ = ["EXERCISES", "Exercise", "Variant", "Verdict", "check", "get", "hint", "solution", "variant"]

#: id -> a function from a random source to the exercise; those that ignore it have no variants.
EXERCISES: dict[str, Callable[[random.Random], Exercise]] = {
    **start_here.EXERCISES,
    **contiguous.EXERCISES,
    **blocks_and_tables.EXERCISES,
    **manager.EXERCISES,
    **ref_counts.EXERCISES,
    **pool.EXERCISES,
    **decode.EXERCISES,
    **kernel.EXERCISES,
    **sharing.EXERCISES,
    **experiment.EXERCISES,
    **modes.EXERCISES,
}
WITH_VARIANTS = (
    *start_here.WITH_VARIANTS,
    *contiguous.WITH_VARIANTS,
    *blocks_and_tables.WITH_VARIANTS,
    *manager.WITH_VARIANTS,
    *ref_counts.WITH_VARIANTS,
    *pool.WITH_VARIANTS,
    *decode.WITH_VARIANTS,
    *kernel.WITH_VARIANTS,
    *sharing.WITH_VARIANTS,
    *experiment.WITH_VARIANTS,
    *modes.WITH_VARIANTS,
)

_hints_given: dict[str, int] = {}


class Text(str):
    """A text that a notebook shows as it is, without quotes."""

    def __repr__(self) -> str:
        return str(self)


class Variant:
    """A question with its own numbers, and the id to answer it by."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.exercise = get(id)

    def check(self, answer: Any) -> Verdict:
        """As `check(self.id, answer)`."""
        return check(self.id, answer)

    def __repr__(self) -> str:
        return folded(f"{self.id}: {self.exercise.question}")


def get(id: str) -> Exercise:
    """The exercise of an id such as "02.slot" or "02.slot#7". ValueError if there is none."""
    name, _, seed = id.partition("#")
    if name not in EXERCISES:
        raise ValueError(f"there is no exercise {name!r}; there are {', '.join(EXERCISES)}")
    if seed and name not in WITH_VARIANTS:
        raise ValueError(f"{name!r} has no variants; those that have are {', '.join(WITH_VARIANTS)}")
    if seed and not seed.isdigit():
        raise ValueError(f"{seed!r} is no seed; a variant's id looks like {name}#7")
    return EXERCISES[name](random.Random(int(seed) if seed else 0))


def check(id: str, answer: Any) -> Verdict:
    """Judge an answer. `...`, as the starter has it, counts as not answered yet, and nothing stops."""
    exercise = get(id)
    if answer is ...:
        return Verdict(False, "not answered yet: put your answer in place of ...")
    return exercise.judge(answer)


def hint(id: str) -> Text:
    """The next of three hints; after the third, the third again."""
    exercise = get(id)
    given = min(_hints_given.get(id, 0), 2)
    _hints_given[id] = given + 1
    more = f"   ({2 - given} more)" if given < 2 else "   (the last one; solution(…) shows the answer)"
    return Text(folded(f"Hint {given + 1}: {exercise.hints[given]}{more}"))


def solution(id: str) -> Text:
    """The solution, as text or as code."""
    return Text(get(id).solution)


def variant(seed: int, id: str | None = None) -> Variant:
    """A question with the numbers of `seed`; of the exercise `id`, or of one that the seed picks."""
    name = id or random.Random(seed).choice(WITH_VARIANTS)
    return Variant(f"{name}#{seed}")
