"""Several packing games side by side, and the same requests paged: the use of memory, and its cost.

compared = compare({"you": mine, "max": another})
print(compared)
compared.bars()
"""

from __future__ import annotations

from collections.abc import Mapping

from minikv.lab.packing import PackingGame, Score
from minikv.lab.packing_paged import play_paged
from minikv.lab.packing_split import KINDS
from minikv.lab.plots_memory import MemoryBars

_COSTS = ("served", "written", "copied", "dropped", "lost")


class Compared:
    """Scores by name. It prints itself as a table."""

    def __init__(self, scores: Mapping[str, Score]) -> None:
        self.scores = dict(scores)

    def bars(self) -> MemoryBars:
        """What memory was used for, as a picture."""
        bars = {name: score.split._asdict() for name, score in self.scores.items()}
        return MemoryBars("Memory in the packing game", bars)

    def __repr__(self) -> str:
        kinds = [kind for kind in KINDS if any(getattr(s.split, kind) for s in self.scores.values())]
        rows = [["", *(f"{kind} %" for kind in kinds), *_COSTS]]
        for name, score in self.scores.items():
            tokens = (score.tokens_written, score.tokens_copied)
            costs = (score.served, *tokens, score.dropped, score.tokens_lost)
            rows.append([name, *(f"{getattr(score.split, kind):.1f}" for kind in kinds), *map(str, costs)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
        )


def compare(games: Mapping[str, PackingGame], block_size: int = 4) -> Compared:
    """The games' scores, and last the same requests paged. Games that have not begun are left out.

    Raises:
        ValueError: no game has begun; or they have not the same requests, memory and number of steps.
    """
    begun = {name: game for name, game in games.items() if game.steps}
    if not begun:
        raise ValueError("no game has begun; let one play(…) first")
    first, *others = begun.values()
    for game in others:
        if (game.requests, game.num_slots) != (first.requests, first.num_slots):
            raise ValueError(f"{game!r} and {first!r} have not the same requests and memory")
    longest = max(begun.values(), key=lambda game: game.steps)
    scores = {name: game.score for name, game in begun.items()}
    return Compared({**scores, "paged": play_paged(longest, block_size).score})
