"""Playing the packing game by rule: how much to reserve, and where, decided by two functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minikv.lab.packing_requests import PLACES, RULES, Merge, Place, Rule

if TYPE_CHECKING:
    from minikv.lab.packing import PackingGame, Run


def resolve(reserve: str | Rule, place: str | Place) -> tuple[Rule, Place]:
    """The functions behind these names. ValueError for a name that there is not."""
    for name, known in ((reserve, RULES), (place, PLACES)):
        if isinstance(name, str) and name not in known:
            raise ValueError(f"there is no rule {name!r}; there are {', '.join(known)}, or give a function")
    rule = RULES[reserve] if isinstance(reserve, str) else reserve
    return rule, PLACES[place] if isinstance(place, str) else place


def play_step(game: PackingGame, rule: Rule, place: Place, merge: Merge) -> None:
    """Find room for those that have outgrown theirs, let in who fits, and let one step pass."""
    for run in game.outgrown:
        _grow(game, run, rule, place, merge)
    wanted = 0
    while game.waiting:
        request = game.waiting[0]
        wanted = rule(request, request.prompt, game.max_new_tokens)
        start = place(merge(game.pieces), wanted)
        if start is None:
            break
        game.place(request.name, start, wanted)
    game.step(wanted)


def _grow(game: PackingGame, run: Run, rule: Rule, place: Place, merge: Merge) -> None:
    """Where it is if the hole behind it is large enough, else somewhere else, else back to the queue."""
    size = rule(run.request, run.tokens, game.max_new_tokens)
    behind = next((room for start, room in merge(game.pieces) if start == run.stop), 0)
    if run.size + behind >= size:
        game.move(run.name, run.start, size)
        return
    start = place(merge(game.pieces), size)
    if start is None:
        game.drop(run.name)
    else:
        game.move(run.name, start, size)
