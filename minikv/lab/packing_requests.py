"""The requests of the packing game, and the ways to choose a reservation and a place for them.

Everything here is a plain function of plain numbers: a learner's own can stand in for any of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from minikv.news import letters

Hole = tuple[int, int]  # (start, size) of free slots that lie side by side
#: (request, tokens it has now, max_new_tokens) -> slots to reserve
Rule = Callable[["PackingRequest", int, int], int]
#: (holes in address order, size) -> the first slot to take, or None if no hole is large enough
Place = Callable[[list[Hole], int], int | None]
#: holes in address order -> the same slots, with holes that touch joined
Merge = Callable[[list[Hole]], list[Hole]]


class PackingRequest(NamedTuple):
    """One request. A player sees its name and its prompt; `answer` is known when the answer has ended."""

    name: str
    prompt: int  # tokens
    answer: int  # tokens, the full stop included

    @property
    def total(self) -> int:
        """Tokens it holds when it ends."""
        return self.prompt + self.answer


def seeded_requests(seed: int, count: int, max_new_tokens: int) -> tuple[PackingRequest, ...]:
    """`count` requests: prompts of 3 to 8 tokens; most answers short, a few as long as allowed.

    Answer lengths are log-normal, as those of real services are, roughly: median 6, cut at max_new_tokens.
    """
    rng = random.Random(seed)
    return tuple(
        PackingRequest(letters(n), rng.randint(3, 8), _answer(rng, max_new_tokens)) for n in range(count)
    )


def _answer(rng: random.Random, max_new_tokens: int) -> int:
    return max(1, min(max_new_tokens, round(rng.lognormvariate(1.8, 0.9))))


# ---- how much to reserve --------------------------------------------------------------------


def reserve_max(request: PackingRequest, tokens: int, max_new_tokens: int) -> int:
    """Room for the longest answer that is allowed. Never too little."""
    return request.prompt + max_new_tokens


def reserve_double(request: PackingRequest, tokens: int, max_new_tokens: int) -> int:
    """Twice what there is now; the same again whenever that was too little."""
    return min(2 * tokens, request.prompt + max_new_tokens)


def reserve_least(request: PackingRequest, tokens: int, max_new_tokens: int) -> int:
    """One slot more than there are tokens."""
    return tokens + 1


def reserve_oracle(request: PackingRequest, tokens: int, max_new_tokens: int) -> int:
    """Exactly what it will need, which nobody can know: the bound of what guessing can reach."""
    return request.total


RULES: dict[str, Rule] = {
    "max": reserve_max,
    "double": reserve_double,
    "least": reserve_least,
    "oracle": reserve_oracle,
}


# ---- where to put it ------------------------------------------------------------------------


def first_fit(holes: Sequence[Hole], size: int) -> int | None:
    """The start of the first hole that is large enough."""
    return next((start for start, room in holes if room >= size), None)


def best_fit(holes: Sequence[Hole], size: int) -> int | None:
    """The start of the smallest hole that is large enough; the first of equals."""
    return min(((room, start) for start, room in holes if room >= size), default=(0, None))[1]


PLACES: dict[str, Place] = {"first": first_fit, "best": best_fit}


def merge(holes: Sequence[Hole]) -> list[Hole]:
    """Join holes that touch. They are given, and come back, in address order."""
    joined: list[Hole] = []
    for start, size in holes:
        if joined and sum(joined[-1]) == start:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((start, size))
    return joined
