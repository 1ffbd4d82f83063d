"""Let a learner's own `place` and `merge` decide in the packing game; see where they go another way.

tried = try_place(my_place)
print(tried)
tried.board()
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikv.lab.exercises import check
from minikv.lab.exercises.contiguous import as_holes
from minikv.lab.packing import PackingGame
from minikv.lab.packing_board import PackingBoard
from minikv.lab.packing_requests import Hole, first_fit, merge


class _Diverged(Exception):
    """The learner's code decided otherwise than ours."""


class PackingTryout:
    """What came of it.

    Attributes:
        said: how it ended, in a sentence or two.
        game: the game as it stood at the first divergence, or at its end.
    """

    def __init__(self, game: PackingGame) -> None:
        self.game = game
        self.said = ""
        self._aim: Hole | None = None

    def board(self) -> PackingBoard:
        """The board at the first divergence, the wrong slots marked; at the end if there is none."""
        start, size = self._aim or (None, None)
        return PackingBoard(self.game, start, size)

    def __repr__(self) -> str:
        return self.said

    # ---- watching ----------------------------------------------------------------------------

    def watch_place(self, place: Callable[..., Any], name: str) -> Callable[[list[Hole], int], int | None]:
        """`place`, compared with first fit at every call."""

        def watched(holes: list[Hole], size: int) -> int | None:
            said, right = place(list(holes), size), first_fit(holes, size)
            if said != right or isinstance(said, bool | float):  # 10.0 == 10, but it is no slot
                call = f"{name}({holes}, {size}) is {said!r}, should be {right!r}"
                raise _Diverged(f"{call}. {self._why(said, size, right)}")
            return right

        return watched

    def watch_merge(self, joiner: Callable[..., Any], name: str) -> Callable[[list[Hole]], list[Hole]]:
        """`joiner`, compared with ours at every call."""

        def watched(holes: list[Hole]) -> list[Hole]:
            said, right = as_holes(joiner(list(holes))), merge(holes)
            if said != right:
                raise _Diverged(f"{name}({holes}) is {said!r}, should be {right}. {_difference(said, right)}")
            return right

        return watched

    def _why(self, said: Any, size: int, right: int | None) -> str:
        """What the wrong answer does to the game; marks the slots that it names."""
        if said is None:
            return "The request waits, though it fits."
        if isinstance(said, bool) or not isinstance(said, int):
            return "An answer is the first slot to take, a whole number, or None."
        self._aim = (said, size)
        if said < 0 or said + size > self.game.num_slots:
            return f"That breaks I5, capacity: the memory has slots 0 to {self.game.num_slots - 1}."
        for run in self.game.runs:
            if max(said, run.start) < min(said + size, run.stop):
                slot = max(said, run.start)
                whose = f"{run.name} holds slot {slot}, and it would be handed out again"
                return f"That breaks I1, conservation: {whose}."
        return f"It fits there, but first fit takes slot {right}."


def try_place(
    place: Callable[..., Any],
    joiner: Callable[..., Any] | None = None,
    reserve: str = "double",
    seed: int = 8,
) -> PackingTryout:
    """Play a game in which the learner's functions find the places, up to the first divergence from ours.

    Args:
        place: (holes, size) -> the first slot to take, or None.
        joiner: holes -> holes, those that touch joined; None is ours.
        reserve, seed: as in PackingGame.

    Raises:
        TypeError: one of them is no function.
    """
    tried = PackingTryout(PackingGame(seed))
    for exercise, function in (("01.place", place), ("01.merge", joiner)):
        if function is None:
            continue
        if not callable(function):
            raise TypeError(f"try_place takes functions, not {function!r}; leave off the brackets")
        if "not answered yet" in check(exercise, function).message:
            tried.said = f"{_name(function)} is not written yet."
            return tried
    tried.said = _play(tried, place, joiner, reserve)
    return tried


def _play(
    tried: PackingTryout, place: Callable[..., Any], joiner: Callable[..., Any] | None, reserve: str
) -> str:
    name = _name(place)
    join = merge if joiner is None else tried.watch_merge(joiner, _name(joiner))
    try:
        score = tried.game.play(reserve, tried.watch_place(place, name), join)
    except _Diverged as divergence:
        return f"First divergence, before step {tried.game.steps + 1}: {divergence}"
    except Exception as error:  # a learner's code may raise anything; it is shown, not hidden
        return f"Before step {tried.game.steps + 1} the game stops with {type(error).__name__}: {error}"
    return f"With {name} the game was played to its end, every place the right one.\n{score}"


def _difference(said: Any, right: list[Hole]) -> str:
    try:
        slots = [slot for start, size in said for slot in range(start, start + size)]
    except (TypeError, ValueError):
        return "An answer is a list of (start, size)."
    free = {slot for start, size in right for slot in range(start, start + size)}
    if len(slots) != len(set(slots)):
        return "That breaks I1, conservation: a slot would be free twice."
    if lost := free - set(slots):
        return f"That breaks I1, conservation: slot {min(lost)} would be lost."
    if more := set(slots) - free:
        return f"That breaks I1, conservation: slot {min(more)} would be free and held."
    return "No slot is lost, but holes that touch are still apart, or the order has changed."


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", "the function")
